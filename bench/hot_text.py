"""Nanoseconds a token costs in ``llamaserve._hot`` and in its pure-Python twins. Run: python -m bench.hot_text

The twins are written to be right, not fast: the one of StopMatcher looks at the whole text again and again.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence

from llamaserve._hot import StopMatcher, Utf8Stream
from llamaserve.text import TokenText
from tests.reference.stop_matcher import StopMatcher as ReferenceMatcher
from tests.reference.utf8_stream import Utf8Stream as ReferenceStream

N_TOKENS = 2000  # a long answer; the twins keep the whole text, which is what the native loops avoid
N_ROUNDS = 15
ENGLISH = [b" the", b" quick", b" brown", b" fox", b",", b" jump", b"ed", b" over"]
EMOJI = [b"\xf0\x9f", b"\x99", b"\x82", b" ok", b"\xe6\x97", b"\xa5", b" \xe6\x9c", b"\xac"]
STOPS = ["<|im_end|>", "\nUser:", " fox trot", "over!"]

Push = Callable[[bytes], object] | Callable[[str], object]


def nanoseconds_per_push(new_push: Callable[[], Push], pieces: Sequence[bytes] | Sequence[str]) -> float:
    """The best of some rounds; each starts with a fresh object."""
    tokens = list(pieces) * (N_TOKENS // len(pieces))
    best_ns = float("inf")
    for _ in range(N_ROUNDS):
        push = new_push()
        start = time.perf_counter_ns()
        for token in tokens:
            push(token)  # type: ignore[arg-type]  # a case pairs the push with pieces of its type
        best_ns = min(best_ns, (time.perf_counter_ns() - start) / len(tokens))
    return best_ns


def main() -> None:
    english = [piece.decode() for piece in ENGLISH]
    cases: list[tuple[str, Callable[[], Push], Callable[[], Push] | None, Sequence[bytes] | Sequence[str]]] = [
        ("Utf8Stream, ASCII", lambda: Utf8Stream().push, lambda: ReferenceStream().push, ENGLISH),
        ("Utf8Stream, cut characters", lambda: Utf8Stream().push, lambda: ReferenceStream().push, EMOJI),
        ("StopMatcher, no stop", lambda: StopMatcher([]).push, lambda: ReferenceMatcher([]).push, english),
        ("StopMatcher, 1 stop", lambda: StopMatcher(STOPS[:1]).push, lambda: ReferenceMatcher(STOPS[:1]).push, english),
        ("StopMatcher, 4 stops", lambda: StopMatcher(STOPS).push, lambda: ReferenceMatcher(STOPS).push, english),
        ("TokenText, no stop, ASCII", lambda: TokenText([]).push, None, ENGLISH),
        ("TokenText, 4 stops, ASCII", lambda: TokenText(STOPS).push, None, ENGLISH),
        ("TokenText, 4 stops, cut characters", lambda: TokenText(STOPS).push, None, EMOJI),
        ("the empty loop", lambda: len, None, ENGLISH),
    ]
    print(f"ns per token, {N_TOKENS} tokens, Python {sys.version.split()[0]}, {platform.machine()}\n")
    print(f"| {'case':35} | native | twin | twin/native |\n|---|---|---|---|")
    for name, native, twin, pieces in cases:
        native_ns = nanoseconds_per_push(native, pieces)
        twin_ns = nanoseconds_per_push(twin, pieces) if twin else None
        ratio = f"{twin_ns / native_ns:.1f}" if twin_ns else ""
        print(f"| {name:35} | {native_ns:.0f} | {'' if twin_ns is None else f'{twin_ns:.0f}'} | {ratio} |")


if __name__ == "__main__":
    main()

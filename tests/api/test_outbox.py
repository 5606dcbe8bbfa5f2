"""What waits for a client that does not read: text as text, log probabilities as events."""

from __future__ import annotations

from functools import partial

from llamaserve.api.outbox import EVENT_BYTES, Outbox
from llamaserve.request import TextDelta, TokenLogprob

LONG = TextDelta("x" * EVENT_BYTES, (1,))
SCORE = TokenLogprob(1, b"a", -1.0)


class Encoder:
    """Writes a choice's text and how many probabilities it has, and keeps what it wrote."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def __call__(self, choice: int, delta: TextDelta) -> bytes:
        self.written.append(f"{choice}:{delta.text[:20]}/{len(delta.logprobs)} ")
        return self.written[-1].encode() if delta is not LONG else b" " * EVENT_BYTES


def full_outbox() -> tuple[Outbox, Encoder]:
    """One that takes no more events of bare text."""
    encoder = Encoder()
    outbox = Outbox([partial(encoder, 0), partial(encoder, 1)])
    outbox.add_text(0, LONG)
    encoder.written.clear()
    return outbox, encoder


def test_bare_text_is_kept_until_the_client_reads() -> None:
    outbox, encoder = full_outbox()
    for letter in "abc":
        outbox.add_text(0, TextDelta(letter, (1,)))
    assert encoder.written == []
    assert outbox.take().endswith(b" 0:abc/0 ")


def test_probabilities_are_written_as_they_come() -> None:
    """Nothing is left to write when a client that was slow reads on."""
    outbox, encoder = full_outbox()
    for letter in "abc":
        outbox.add_text(0, TextDelta(letter, (1,), (SCORE,)))
    assert encoder.written == ["0:a/1 ", "0:b/1 ", "0:c/1 "]
    assert outbox.take().endswith(b" 0:a/1 0:b/1 0:c/1 ")
    assert len(encoder.written) == 3


def test_text_that_was_kept_comes_before_what_is_behind_it() -> None:
    outbox, _ = full_outbox()
    outbox.add_text(0, TextDelta("a", (1,)))
    outbox.add_text(1, TextDelta("b", (1,)))
    outbox.add_text(0, TextDelta("c", (1,), (SCORE,)))
    outbox.add_text(0, TextDelta("d", (1,)))
    assert outbox.take().strip() == b"0:a/0 1:b/0 0:c/1 0:d/0"

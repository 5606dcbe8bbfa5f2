"""Which short prompts are computed together: the window of seed 004 (T1 to T8). Pure.

A window holds the first prompts in line as long as rows times the longest of them stays within a budget of tokens. The
formula is that of a padded batch; nothing is padded here, and the same product bounds the work that a first token waits
for. A prompt that would not fit twice is long: it is computed in pieces, and others with it do not wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterable

DEFAULT_CHUNK = 512
"""Tokens of a piece that the budget is derived from where pieces are unlimited."""


def default_window_budget(*, max_rows: int, prefill_chunk: int) -> int:
    """The budget in tokens where nobody set one: twice ``max_rows`` pieces (T3).

    Twice, because prompts of about a piece are often a little longer, and the last would not fit (K101).
    """
    return 2 * max(1, max_rows) * (prefill_chunk or DEFAULT_CHUNK)


def batched_window_admits(*, n_rows: int, longest: int, next_length: int, budget: int) -> bool:
    """Whether a prompt of ``next_length`` tokens joins a window of ``n_rows`` whose longest has ``longest`` (T1).

    The first one always does, so that there is progress; with budget 0 every one does.
    """
    return budget == 0 or n_rows == 0 or (n_rows + 1) * max(longest, next_length) <= budget


def window_admits_head(head_length: int | None, budget: int) -> bool:
    """Whether the first prompt in line is short enough to share a window of two (T2); None = nobody is in line."""
    return head_length is not None and (budget == 0 or 2 * head_length <= budget)


def window_length(lengths: Iterable[int], *, max_rows: int, budget: int) -> int:
    """How many prompts in line make the window; at least 1 unless there is none (T6)."""
    n_rows = longest = 0
    for length in lengths:
        if n_rows >= max_rows or not batched_window_admits(
            n_rows=n_rows, longest=longest, next_length=length, budget=budget
        ):
            break
        n_rows += 1
        longest = max(longest, length)
    return n_rows


def joint_rows(lengths: Iterable[int], *, max_rows: int, budget: int) -> int:
    """How many prompts in line are computed together; 0 = the first goes alone, in pieces (T5, T7).

    T15 would let nobody in while a long prompt is in the middle of its pieces; here short ones may go between (K9).
    """
    in_line = list(lengths)
    head = in_line[0] if in_line else None
    if max_rows < 2 or len(in_line) < 2 or not window_admits_head(head, budget):
        return 0
    n_rows = window_length(in_line, max_rows=max_rows, budget=budget)
    return n_rows if n_rows >= 2 else 0

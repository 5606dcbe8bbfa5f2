"""Twin of ``llamaserve._hot.common_prefix``: one token after the other."""

from collections.abc import Sequence


def common_prefix(
    a: Sequence[int], b: Sequence[int], a_start: int = 0, b_start: int = 0, limit: int | None = None
) -> int:
    n_tokens = min(len(a) - a_start, len(b) - b_start)
    if limit is not None:
        n_tokens = min(n_tokens, limit)
    return next((i for i in range(n_tokens) if a[a_start + i] != b[b_start + i]), n_tokens)

"""How many log probabilities one HTTP request may ask for, of all its choices together. Pure; any thread.

Each is an object of about 140 bytes that waits until its answer is written, which takes a microsecond. A whole answer
is written apart from the event loop, a stream on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.api.openai.shown import Shown
from llamaserve.errors import BadRequest

MAX_LOGPROBS = 2**21
MAX_STREAMED_PROMPT_LOGPROBS = 2**15
"""Of a stream's prompts, which come in one event each."""


def check_logprobs(
    shown: Shown, prompts: Sequence[int], n_per_prompt: int, *, max_tokens: int | None, n_ctx: int, is_streamed: bool
) -> None:
    """``prompts`` has the tokens of each prompt. Raises BadRequest, which says how many are allowed."""
    if not shown.has_logprobs:
        return
    n_of_prompts = n_of_texts = 0
    if shown.n_prompt_logprobs is not None:
        n_of_prompts = n_per_prompt * sum(prompts) * (shown.n_prompt_logprobs + 1)
    if shown.n_top is not None:
        n_drawn = sum(n_ctx - n if max_tokens is None else min(n_ctx - n, max_tokens) for n in prompts)
        n_of_texts = n_per_prompt * n_drawn * (shown.n_top + 1)
    if is_streamed and n_of_prompts > MAX_STREAMED_PROMPT_LOGPROBS:
        raise BadRequest(
            f"the prompts' log probabilities are {n_of_prompts}: a stream may have at most "
            f"{MAX_STREAMED_PROMPT_LOGPROBS}; ask for the whole answer, or for fewer of them",
            "prompt_logprobs" if shown.n_prompt_top is not None else "echo",
        )
    if n_of_prompts + n_of_texts > MAX_LOGPROBS:
        raise BadRequest(
            f"the answer may have {n_of_prompts + n_of_texts} log probabilities, {n_of_prompts} of prompts and "
            f"{n_of_texts} of texts: at most {MAX_LOGPROBS} are allowed; ask for fewer of them, fewer choices or a "
            "smaller max_tokens",
            "prompt_logprobs" if n_of_prompts > n_of_texts and shown.n_prompt_top is not None else "logprobs",
        )

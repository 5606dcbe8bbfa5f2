"""From the body of ``/completion`` to its prompts as token ids. Preparing threads only: tokenisers block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from llamaserve.api.native.completion_bodies import NativeCompletionBody, PromptObject
from llamaserve.api.openai.tokenizing import check_fits, check_tokens, tokenize
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest, EmptyPrompt

Prompt = str | PromptObject | list[str | int]


def split_native_prompts(body: NativeCompletionBody) -> Sequence[Prompt]:
    """The prompts of a body: one, or those of a list. A list with a token id among texts is one prompt, as in
    llama-server; a list of texts is several. Raises EmptyPrompt for none."""
    given = body.prompt
    if not isinstance(given, list):
        return [given]
    if not given:
        raise EmptyPrompt
    has_ids = any(isinstance(item, int) for item in given)
    if has_ids and all(isinstance(item, (int, str)) for item in given):
        return [cast("list[str | int]", given)]
    return [[item] if isinstance(item, int) else item for item in given]


def native_prompt_tokens(prompt: Prompt, vocab: Vocabulary, n_ctx: int, *, add_special: bool = True) -> tuple[int, ...]:
    """The tokens of one prompt. What belongs in front of a text is put there, unless it begins with a token id or
    ``add_special`` is false.

    Raises EmptyPrompt, BadRequest for data that is no text, BadToken, PromptTooLong as soon as it does not fit.
    """
    if isinstance(prompt, PromptObject):
        if prompt.multimodal_data:
            raise BadRequest(
                f"multimodal_data has {len(prompt.multimodal_data)} items: this server reads text only", "prompt"
            )
        prompt = prompt.prompt_string
    parts = [prompt] if isinstance(prompt, str) else prompt
    if not any(isinstance(part, int) or part for part in parts):
        raise EmptyPrompt
    check_tokens("prompt", [part for part in parts if isinstance(part, int)], vocab)
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            tokens += tokenize(part, vocab, n_ctx, add_special=add_special and index == 0)
        else:
            tokens.append(part)
        check_fits(tokens, n_ctx)
    return tuple(tokens)

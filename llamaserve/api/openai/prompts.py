"""From the body of a completion to one prompt as token ids. Preparing threads only: tokenisers block."""

from __future__ import annotations

from llamaserve.api.openai.body import CompletionBody
from llamaserve.api.openai.tokenizing import tokenize
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest, EmptyPrompt


def completion_prompt(body: CompletionBody, vocab: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    """The tokens of a completion's prompt: a string, token ids, or a list with one of these.

    Raises EmptyPrompt, BadRequest for a batch of prompts, PromptTooLong for a text far over the context.
    """
    prompt: object = body.prompt
    if isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt):
        if len(prompt) != 1:
            raise BadRequest(
                f"prompt has {len(prompt)} entries that are not token ids: this server takes one prompt per request",
                "prompt",
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise EmptyPrompt
        return tokenize(prompt, vocab, n_ctx)
    if not isinstance(prompt, list) or not prompt:
        raise EmptyPrompt
    return tuple(prompt)

"""From a completion's body to its prompts as token ids. Preparing threads only: tokenisers block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from llamaserve.api.openai.answer_plan import PlannedPrompt
from llamaserve.api.openai.body import CompletionBody
from llamaserve.api.openai.tokenizing import check_fits, check_tokens, tokenize
from llamaserve.engine.port import FimTokens, Vocabulary
from llamaserve.errors import BadRequest, EmptyPrompt

Prompt = str | list[int]


def split_prompts(body: CompletionBody) -> Sequence[Prompt]:
    """The prompts of a body, a text or token ids each: one, or a list of them.

    Raises EmptyPrompt for none and for one that is empty, BadRequest for token ids beside prompts.
    """
    given = body.prompt
    if isinstance(given, str):
        prompts: Sequence[Prompt] = [given]
    elif given and all(isinstance(item, int) for item in given):
        prompts = [cast("list[int]", given)]
    elif any(isinstance(item, int) for item in given):
        raise BadRequest(
            "prompt has token ids beside texts or lists: it must be a string, a list of token ids, or a list of these",
            "prompt",
        )
    else:
        prompts = cast("list[Prompt]", given)
    if not prompts or not all(prompts):
        raise EmptyPrompt
    return prompts


def plan_prompts(
    prompts: Sequence[Prompt], body: CompletionBody, vocab: Vocabulary, n_ctx: int
) -> tuple[PlannedPrompt, ...]:
    """The tokens of a completion's prompts, and what an answer that echoes them begins with.

    Raises BadRequest for a suffix the model or the other fields do not allow, BadToken, and PromptTooLong for the first
    that does not fit: those behind it are not tokenised.
    """
    fim = _fim_tokens(body, vocab) if body.suffix else None
    planned = []
    for prompt in prompts:
        planned.append(_planned(prompt, body, vocab, n_ctx, fim))
        check_fits(planned[-1].tokens, n_ctx)
    return tuple(planned)


def _planned(
    prompt: Prompt, body: CompletionBody, vocab: Vocabulary, n_ctx: int, fim: FimTokens | None
) -> PlannedPrompt:
    if fim is not None:
        has_special = body.add_special_tokens is not False
        return PlannedPrompt(_infill(prompt, body.suffix or "", vocab, n_ctx, fim, has_special=has_special))
    if isinstance(prompt, str):
        tokens = tokenize(prompt, vocab, n_ctx, add_special=body.add_special_tokens is not False)
        return PlannedPrompt(tokens, prompt if body.echo else "")
    check_tokens("prompt", prompt, vocab)
    echo = vocab.detokenize(prompt, special=False).decode("utf-8", "replace") if body.echo else ""
    return PlannedPrompt(tuple(prompt), echo)


def _fim_tokens(body: CompletionBody, vocab: Vocabulary) -> FimTokens:
    if vocab.fim_tokens is None:
        raise BadRequest(
            "suffix: the model has no tokens for filling in the middle (prefix, suffix and middle); leave it out",
            "suffix",
        )
    if body.echo:
        raise BadRequest("echo is true: with suffix the text does not follow the prompt; leave one of them out", "echo")
    return vocab.fim_tokens


def _infill(
    prefix: Prompt, suffix: str, vocab: Vocabulary, n_ctx: int, fim: FimTokens, *, has_special: bool
) -> tuple[int, ...]:
    """As llama-server's ``/infill`` without extra context. What stands around the gap is text: no special token is read
    in it."""

    def plain(text: str) -> tuple[int, ...]:
        return tokenize(text, vocab, n_ctx, add_special=False, parse_special=False)

    beginning = vocab.tokenize("", add_special=has_special, parse_special=False)
    before = plain(prefix) if isinstance(prefix, str) else prefix
    return (*beginning, fim.prefix, *before, fim.suffix, *plain(suffix), fim.middle)

"""The prompt of ``/infill``: other files, then what is before the gap and behind it. Preparing threads only.

Layout as in llama-server, which follows https://arxiv.org/pdf/2409.12186. No special token is read in what is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llamaserve.api.native.completion_bodies import ExtraText, InfillBody
from llamaserve.api.openai.tokenizing import check_fits, tokenize
from llamaserve.engine.port import FimTokens, Vocabulary
from llamaserve.errors import PromptTooLong

REPOSITORY = "myproject\n"
THIS_FILE = "filename\n"
UNNAMED_FILE = "tmp"
PLAIN_SEPARATOR = "\n\n--- snippet ---\n\n"
"""Between files for a model that has no token for that."""


ROOM_FOR_TEXT = 4
"""Where nobody says how long the text may be, other files leave a quarter of the context to it."""


def infill_prompt(
    body: InfillBody, fim: FimTokens, vocab: Vocabulary, n_ctx: int, max_tokens: int | None
) -> tuple[int, ...]:
    """The tokens. Of ``input_extra`` there are as many of the last as leave room for the text; nothing else is left
    out. Raises PromptTooLong where that does not fit."""

    def plain(text: str) -> tuple[int, ...]:
        return tokenize(text, vocab, n_ctx, add_special=False, parse_special=False)

    beginning = tuple(vocab.tokenize("", add_special=True, parse_special=False))
    before = plain(body.input_prefix) + plain(body.prompt or "")
    gap = (fim.prefix, *before, fim.suffix, *plain(body.input_suffix), fim.middle)
    head = () if fim.repository is None else (fim.repository, *plain(REPOSITORY))
    name = () if fim.file is None else (fim.file, *plain(THIS_FILE))
    check_fits((*beginning, *head, *name, *gap), n_ctx)
    n_text = n_ctx // ROOM_FOR_TEXT if max_tokens is None else max_tokens
    n_left = n_ctx - n_text - len(beginning) - len(head) - len(name) - len(gap)
    around = _last_that_fit(body.input_extra or (), n_left, lambda extra: _file_tokens(extra, fim, vocab, n_ctx))
    return (*beginning, *head, *around, *name, *gap)


def _file_tokens(extra: ExtraText, fim: FimTokens, vocab: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    if fim.file is None:
        return tokenize(PLAIN_SEPARATOR + extra.text, vocab, n_ctx, add_special=False, parse_special=False)
    named = f"{extra.filename or UNNAMED_FILE}\n{extra.text}"
    return (fim.file, *tokenize(named, vocab, n_ctx, add_special=False, parse_special=False))


def _last_that_fit(
    files: Sequence[ExtraText], n_left: int, tokens_of: Callable[[ExtraText], tuple[int, ...]]
) -> list[int]:
    """Clients send what matters most last. Those before one that does not fit are not even tokenised."""
    taken: list[tuple[int, ...]] = []
    for file in reversed(files):
        if n_left <= 0:
            break
        try:
            tokens = tokens_of(file)
        except PromptTooLong:
            break
        n_left -= len(tokens)
        if n_left < 0:
            break
        taken.append(tokens)
    return [token for tokens in reversed(taken) for token in tokens]

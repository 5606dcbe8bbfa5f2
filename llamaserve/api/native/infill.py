"""The prompt of ``/infill``: other files, then what is before the gap and behind it. Preparing threads only.

Layout as in llama-server, which follows https://arxiv.org/pdf/2409.12186. No special token is read in what is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.api.native.completion_bodies import ExtraText, InfillBody
from llamaserve.api.openai.tokenizing import tokenize
from llamaserve.engine.port import FimTokens, Vocabulary

REPOSITORY = "myproject\n"
THIS_FILE = "filename\n"
UNNAMED_FILE = "tmp"
PLAIN_SEPARATOR = "\n\n--- snippet ---\n\n"
"""Between files for a model that has no token for that."""


def infill_prompt(body: InfillBody, fim: FimTokens, vocab: Vocabulary, n_ctx: int, n_predict: int) -> tuple[int, ...]:
    """The tokens. Of ``input_extra`` there are as many of the last as leave room for ``n_predict`` tokens; nothing else
    is left out. Raises PromptTooLong for a text far over the context."""

    def plain(text: str) -> tuple[int, ...]:
        return tokenize(text, vocab, n_ctx, add_special=False, parse_special=False)

    beginning = tuple(vocab.tokenize("", add_special=True, parse_special=False))
    before = plain(body.input_prefix) + plain(body.prompt or "")
    gap = (fim.prefix, *before, fim.suffix, *plain(body.input_suffix), fim.middle)
    head = () if fim.repository is None else (fim.repository, *plain(REPOSITORY))
    name = () if fim.file is None else (fim.file, *plain(THIS_FILE))
    n_left = n_ctx - n_predict - len(beginning) - len(head) - len(name) - len(gap)
    files = [_file_tokens(extra, fim, vocab, n_ctx) for extra in body.input_extra or ()]
    around = _last_that_fit(files, n_left)
    return (*beginning, *head, *around, *name, *gap)


def _file_tokens(extra: ExtraText, fim: FimTokens, vocab: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    if fim.file is None:
        return tokenize(PLAIN_SEPARATOR + extra.text, vocab, n_ctx, add_special=False, parse_special=False)
    named = f"{extra.filename or UNNAMED_FILE}\n{extra.text}"
    return (fim.file, *tokenize(named, vocab, n_ctx, add_special=False, parse_special=False))


def _last_that_fit(files: Sequence[tuple[int, ...]], n_left: int) -> list[int]:
    """Clients send what matters most last."""
    first = len(files)
    while first and len(files[first - 1]) <= n_left:
        first -= 1
        n_left -= len(files[first])
    return [token for tokens in files[first:] for token in tokens]

"""Control tokens that texts and grammars spell out. Immutable; any thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class SpecialTexts:
    """The control tokens of a vocabulary that end nothing, by how they are written."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = dict(tokens)
        # Names that begin like others come after them.
        names = sorted(filter(None, self._tokens), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, names))) if names else None

    def token(self, name: str) -> int | None:
        """The token that is written so."""
        return self._tokens.get(name)

    def is_in(self, text: str) -> bool:
        """Whether the text spells one."""
        return self._any is not None and self._any.search(text) is not None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text in parts: of each the text, and the token if it spells one."""
        end = 0
        for match in self._any.finditer(text) if self._any else ():
            if match.start() > end:
                yield text[end : match.start()], None
            yield match[0], self._tokens[match[0]]
            end = match.end()
        if end < len(text):
            yield text[end:], None

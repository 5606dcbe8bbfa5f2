"""A message parser whose syntax is words."""

from __future__ import annotations

from collections.abc import Sequence

from llamaserve.chat.message import MessageDelta, ToolCallDelta


class ScriptedParser:
    """Reads lower-case text as content, upper-case as reasoning, ``<name`` as the beginning of a tool call, digits as
    its arguments, and holds ``_`` back until the end."""

    def __init__(self) -> None:
        self.n_calls = 0
        self._held = ""

    def feed(self, text: str) -> Sequence[MessageDelta]:
        deltas = []
        for word in text.split():
            if word.startswith("<"):
                part = ToolCallDelta(self.n_calls, id=f"call_{self.n_calls}", name=word[1:])
                self.n_calls += 1
                deltas.append(MessageDelta(tool_calls=(part,)))
            elif word.isdigit():
                deltas.append(MessageDelta(tool_calls=(ToolCallDelta(self.n_calls - 1, word),)))
            elif word == "_":
                self._held += word
            else:
                deltas.append(MessageDelta(reasoning=word) if word.isupper() else MessageDelta(word))
        return deltas

    def finish(self) -> Sequence[MessageDelta]:
        return (MessageDelta(self._held),) if self._held else ()

    @property
    def has_tool_calls(self) -> bool:
        return self.n_calls > 0


class WordParser(ScriptedParser):
    """The same for text in pieces of any size: waits for the end of a word."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def feed(self, text: str) -> Sequence[MessageDelta]:
        whole, _, self._text = (self._text + text).rpartition(" ")
        return super().feed(whole)

    def finish(self) -> Sequence[MessageDelta]:
        return (*super().feed(self._text), *super().finish())

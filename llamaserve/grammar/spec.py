"""What a text shall be like, as the caller says it: plain values, not compiled. Any thread; knows no llguidance."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from llamaserve.errors import BadGrammar, shown


class GrammarKind(enum.Enum):
    """How the source of a restriction is written."""

    JSON_OBJECT = "json_object"
    """Any JSON object; the source is empty."""
    JSON_SCHEMA = "json_schema"
    """A JSON Schema, as JSON."""
    REGEX = "regex"
    """A regular expression for the whole text, in the syntax of Rust's regex crate."""
    CHOICE = "choice"
    """A JSON array of strings, one of which is the whole text."""
    LARK = "lark"
    """A Lark grammar, in llguidance's dialect."""
    GBNF = "gbnf"
    """llama.cpp's grammar format; the text is its rule ``root``."""


class TriggerKind(enum.Enum):
    """What sets a grammar going."""

    TOKEN = "token"
    """A token of the vocabulary."""
    WORD = "word"
    """A text, anywhere."""
    PATTERN = "pattern"
    """A regular expression of Python, found anywhere. It must come from a template, never from a client: nothing limits
    the time it takes."""
    PATTERN_FULL = "pattern_full"
    """A regular expression of Python that matches all the text there is."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Something after which a grammar begins; before it, any token may come.

    The grammar is fed what triggered it: the token, the word, or of a pattern the text from its first group on that
    matched anything (from where the match begins, without such a group) to the end of what has come.

    Raises BadGrammar when the value is not of the kind's type.
    """

    kind: TriggerKind
    value: str | int
    """A token id for TOKEN, else a text that is not empty."""

    def __post_init__(self) -> None:
        is_token = self.kind is TriggerKind.TOKEN
        is_right = type(self.value) is int if is_token else isinstance(self.value, str) and self.value != ""
        if not is_right:
            expected = "a token id" if is_token else "a text that is not empty"
            raise BadGrammar(f"the trigger's value is {shown(self.value)}: it must be {expected}")


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """One restriction of one answer. Hashable: equal ones are compiled once."""

    kind: GrammarKind
    source: str
    triggers: tuple[Trigger, ...] = ()
    """Any of them sets the grammar going; none = it holds from the first token on."""
    after: str = ""
    """The grammar, or the watch for its triggers, begins behind this text and the white space after it: the end of a
    model's reasoning. "" = at once. A grammar without triggers lets no answer end before."""
    prefix: str = ""
    """Text the grammar has taken before the first token it restricts: what a template wrote of the answer already."""
    content: GrammarSpec | None = None
    """What ``@content`` in a Lark source stands for. Only its kind and source count."""

"""Reads llama.cpp's grammar format, GBNF, into rules. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from llamaserve.errors import BadGrammar, shown

MAX_NESTING = 64
"""Brackets within each other."""
MAX_REPEATS = 2000
"""Of one element, as llama.cpp has it."""
MAX_REPETITIONS = 4
"""Of a repetition: ``a*?{2}`` has three."""

_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TOKEN = re.compile(r"!?<(?:\[(?P<id>[0-9]{1,9})\]|(?P<text>[^>\r\n]{1,256}))>")
_COUNTS = re.compile(r"\{[ \t]*(?P<least>[0-9]{1,9})[ \t]*(?:(?P<comma>,)[ \t]*(?P<most>[0-9]{1,9})?[ \t]*)?\}")
_ESCAPES = {"x": 2, "u": 4, "U": 8}
"""How many hexadecimal digits follow."""
_PLAIN_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_SHORTHANDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Literal:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of some ranges, or of all others."""

    ranges: tuple[tuple[int, int], ...]
    is_inverse: bool


@dataclass(frozen=True, slots=True)
class TokenElement:
    """One token of the vocabulary, or any but that."""

    name: str | int
    """How it is written, or its id."""
    is_inverse: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """A rule, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Elements after each other."""

    elements: tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An element several times."""

    element: Element
    least: int
    most: int | None


Element = Literal | Characters | TokenElement | Reference | Sequence | Choice | Repeat


def read_gbnf(source: str) -> Mapping[str, Element]:
    """The rules of a grammar by name; ``root`` is among them, and so is every rule that is referred to.

    Raises BadGrammar with line and column.
    """
    reader = _Reader(source)
    rules = reader.rules()
    if "root" not in rules:
        raise BadGrammar("the grammar has no rule named root")
    for name, position in reader.references.items():
        if name not in rules:
            reader.fail(f"the rule {shown(name)} is not defined", position)
    return rules


class _Reader:
    """Where reading is in a source."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._n_open = 0
        self.references: dict[str, int] = {}
        """Rules that are referred to, and where first."""

    def rules(self) -> dict[str, Element]:
        rules: dict[str, Element] = {}
        self._skip(_SPACE_AND_LINES)
        while self._position < len(self._source):
            position = self._position
            name = self._name()
            self._skip(_SPACE)
            if not self._take("::="):
                self.fail("'::=' is missing after the name of a rule")
            self._skip(_SPACE_AND_LINES)
            if name in rules:
                self.fail(f"the rule {shown(name)} is defined twice", position)
            rules[name] = self._choice(_SPACE)
            if self._position < len(self._source) and self._peek() not in "\r\n":
                self.fail(f"unexpected {shown(self._peek())}")
            self._skip(_SPACE_AND_LINES)
        return rules

    def fail(self, what: str, position: int | None = None) -> NoReturn:
        """Raise BadGrammar for what stands there."""
        position = self._position if position is None else position
        line = self._source.count("\n", 0, position) + 1
        column = position - self._source.rfind("\n", 0, position)
        raise BadGrammar(f"{what} (line {line}, column {column} of the grammar)")

    # Elements; ``between`` says what may separate them: inside brackets lines too.

    def _choice(self, between: re.Pattern[str]) -> Element:
        options = [self._sequence(between)]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            options.append(self._sequence(between))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, between: re.Pattern[str]) -> Element:
        elements: list[Element] = []
        while (element := self._element(between)) is not None:
            self._skip(between)
            n_repetitions = 0
            while (counts := self._counts()) is not None:
                n_repetitions += 1
                if n_repetitions > MAX_REPETITIONS:
                    self.fail(f"an element has more than {MAX_REPETITIONS} repetitions")
                element = Repeat(element, *counts)
                self._skip(between)
            elements.append(element)
        return elements[0] if len(elements) == 1 else Sequence(tuple(elements))

    def _element(self, between: re.Pattern[str]) -> Element | None:
        start = self._peek()
        if start == '"':
            return self._literal()
        if start == "[":
            return self._characters()
        if start == "(":
            return self._group()
        if start in ("<", "!"):
            return self._token()
        if self._take("."):
            return Characters((), is_inverse=True)
        if start and _NAME.match(start):
            position = self._position
            name = self._name()
            self.references.setdefault(name, position)
            return Reference(name)
        return None

    def _group(self) -> Element:
        self._n_open += 1
        if self._n_open > MAX_NESTING:
            self.fail(f"brackets are nested more than {MAX_NESTING} deep")
        self._take("(")
        self._skip(_SPACE_AND_LINES)
        element = self._choice(_SPACE_AND_LINES)
        if not self._take(")"):
            self.fail("')' is missing")
        self._n_open -= 1
        return element

    def _literal(self) -> Literal:
        self._take('"')
        characters = []
        while not self._take('"'):
            characters.append(chr(self._character()))
        return Literal("".join(characters))

    def _characters(self) -> Characters:
        self._take("[")
        is_inverse = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character()
            if self._peek() == "-" and self._peek(1) != "]":
                self._take("-")
                last = self._character()
            if last < first:
                self.fail("a range of characters ends before it begins")
            ranges.append((first, last))
        if not ranges and not is_inverse:
            self.fail("a set of characters is empty")
        return Characters(tuple(ranges), is_inverse)

    def _token(self) -> TokenElement:
        match = _TOKEN.match(self._source, self._position)
        if match is None:
            self.fail("a token is written <text> or <[id]>")
        self._position = match.end()
        name = match["text"]
        return TokenElement(int(match["id"]) if name is None else f"<{name}>", match[0].startswith("!"))

    def _counts(self) -> tuple[int, int | None] | None:
        """How often the element before shall come, if that is said here."""
        if (shorthand := _SHORTHANDS.get(self._peek())) is not None:
            self._position += 1
            return shorthand
        if self._peek() != "{":
            return None
        match = _COUNTS.match(self._source, self._position)
        if match is None:
            self.fail("a repetition is written {n}, {n,} or {n,m}")
        least = int(match["least"])
        most = None if match["comma"] and match["most"] is None else int(match["most"] or least)
        if max(least, most or 0) > MAX_REPEATS:
            self.fail(f"an element is repeated {max(least, most or 0)} times: at most {MAX_REPEATS} are allowed")
        if most is not None and most < least:
            self.fail(f"an element is repeated at least {least} and at most {most} times")
        self._position = match.end()
        return least, most

    # Characters.

    def _character(self) -> int:
        character = self._peek()
        if not character:
            self.fail("a text or a set of characters does not end")
        self._position += 1
        return ord(character) if character != "\\" else self._escaped()

    def _escaped(self) -> int:
        kind = self._peek()
        self._position += 1
        if kind in _PLAIN_ESCAPES:
            return ord(_PLAIN_ESCAPES[kind])
        n_digits = _ESCAPES.get(kind)
        if n_digits is None:
            self.fail(f"unknown escape \\{kind}", self._position - 2)
        digits = self._source[self._position : self._position + n_digits]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{n_digits}}}", digits):
            self.fail(f"\\{kind} wants {n_digits} hexadecimal digits")
        code = int(digits, 16)
        if code > _LAST_CHARACTER or code in _SURROGATES:
            self.fail(f"there is no character {digits}")
        self._position += n_digits
        return code

    def _name(self) -> str:
        match = _NAME.match(self._source, self._position)
        if match is None:
            self.fail("the name of a rule is missing")
        self._position = match.end()
        return match[0]

    def _peek(self, ahead: int = 0) -> str:
        """The character there; "" at the end."""
        return self._source[self._position + ahead : self._position + ahead + 1]

    def _take(self, text: str) -> bool:
        if not self._source.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._source, self._position)
        self._position = match.end() if match else self._position

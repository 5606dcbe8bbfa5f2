"""Rules as rows of lexemes, tokens and other rules, and how lexemes that touch become one. Pure; any thread."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


class Origin(enum.Enum):
    """Where a lexeme of a rule came from."""

    OWN = enum.auto()
    MOVED = enum.auto()
    """From beside a place where the rule stands."""
    GROWN = enum.auto()
    """From there, and it became one with others: it is not moved on, so that there is an end of moving."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular expression."""

    text: str
    is_open: bool
    """Whether something in it may go on without a bound."""
    is_loose: bool
    """Whether it may end and could yet go on."""
    origin: Origin = Origin.OWN


@dataclass(frozen=True, slots=True)
class TokenAtom:
    """A token, as Lark has it."""

    text: str


@dataclass(frozen=True, slots=True)
class RuleAtom:
    """A rule by name."""

    name: str
    counts: str = ""
    """How often, if not once."""


Atom = Lexeme | TokenAtom | RuleAtom
Row = list[Atom]


class Bodies:
    """The alternatives of rules by name, those that are made on the way too."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}
        self._names: dict[object, str] = {}
        self._is_loose: dict[str, bool] = {}

    def __getitem__(self, name: str) -> Sequence[Row]:
        return self._rows[name]

    def name(self, key: object) -> str:
        """The name of the rule that has this key, whether it is written yet or not."""
        return self._names.setdefault(key, f"r{len(self._names)}")

    def has(self, key: object) -> bool:
        """Whether it is written."""
        return self._names.get(key, "") in self._rows

    def write(self, key: object, rows: Iterable[Row]) -> str:
        """Write a rule; its name."""
        name = self.name(key)
        self._rows[name] = list(rows)
        return name

    def joined(self, row: Iterable[Atom]) -> Row:
        """With one lexeme where several follow each other. One that is open is moved into the rule it stands before,
        and one behind a rule that ends loosely into that: else the lexer would not let go in time."""
        joined: Row = []
        for atom in _merged(row):
            last = joined[-1] if joined else None
            if isinstance(last, Lexeme) and isinstance(atom, RuleAtom) and _may_move(last, atom) and last.is_open:
                moved = replace(last, origin=Origin.MOVED)
                rows = [[moved, *alternative] for alternative in self._rows[atom.name]]
                joined[-1] = RuleAtom(self._made(("first", moved, atom.name), rows))
            elif (
                isinstance(last, RuleAtom)
                and isinstance(atom, Lexeme)
                and _may_move(atom, last)
                and self._is_loose_rule(last.name)
            ):
                moved = replace(atom, origin=Origin.MOVED)
                rows = [[*alternative, moved] for alternative in self._rows[last.name]]
                joined[-1] = RuleAtom(self._made(("last", moved, last.name), rows))
            else:
                joined.append(atom)
        return joined

    def _made(self, key: object, rows: Iterable[Row]) -> str:
        return self.name(key) if self.has(key) else self.write(key, rows)

    def _is_loose_rule(self, name: str) -> bool:
        """Whether a text of the rule may end and could yet go on."""
        if name not in self._is_loose:
            self._is_loose[name] = self._find_loose(name)
        return self._is_loose[name]

    def _find_loose(self, name: str) -> bool:
        seen = {name}
        waiting = [name]
        while waiting:
            for row in self._rows[waiting.pop()]:
                last = row[-1] if row else None
                if isinstance(last, Lexeme) and last.is_loose:
                    return True
                if isinstance(last, RuleAtom) and last.name not in seen:
                    seen.add(last.name)
                    waiting.append(last.name)
        return False


def _may_move(lexeme: Lexeme, rule: RuleAtom) -> bool:
    return lexeme.origin is not Origin.GROWN and not rule.counts


def _merged(row: Iterable[Atom]) -> Row:
    """With one lexeme where several follow each other."""
    merged: Row = []
    for atom in row:
        last = merged[-1] if merged else None
        if isinstance(last, Lexeme) and isinstance(atom, Lexeme):
            is_own = last.origin is atom.origin is Origin.OWN
            origin = Origin.OWN if is_own else Origin.GROWN
            merged[-1] = Lexeme(f"{last.text} {atom.text}", last.is_open or atom.is_open, atom.is_loose, origin)
        else:
            merged.append(atom)
    return merged

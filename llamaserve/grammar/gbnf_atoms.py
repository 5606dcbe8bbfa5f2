"""Rules as rows of lexemes, tokens and other rules, and how lexemes that touch become one. Pure; any thread."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llamaserve.errors import BadGrammar

MAX_ATOMS = 200_000
"""Of all rules, those that are made on the way too; an alternative counts as one more. The longest source has a sixth
of them."""


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
        self._n_atoms = 0
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
        """Write a rule; its name. Raises BadGrammar where they are too long then, in all."""
        name = self.name(key)
        self._rows[name] = written = list(rows)
        self._n_atoms += sum(len(row) + 1 for row in written)
        if self._n_atoms > MAX_ATOMS:
            raise BadGrammar(f"the rules of the grammar become more than {MAX_ATOMS} parts: it must be simpler")
        return name

    def joined(self, row: Iterable[Atom]) -> Row:
        """With one lexeme where several follow each other. One that is open is moved into the rule it stands before,
        and one behind a rule that ends loosely into that: else the lexer would not let go in time."""
        joined: Row = []
        for atom in _merged(row):
            last = joined[-1] if joined else None
            if isinstance(last, Lexeme) and isinstance(atom, RuleAtom) and _may_move(last, atom) and last.is_open:
                moved = replace(last, origin=Origin.MOVED)
                joined[-1] = RuleAtom(self._with_first(moved, atom.name))
            elif (
                isinstance(last, RuleAtom)
                and isinstance(atom, Lexeme)
                and _may_move(atom, last)
                and self._is_loose_rule(last.name)
            ):
                moved = replace(atom, origin=Origin.MOVED)
                joined[-1] = RuleAtom(self._with_last(moved, last.name))
            else:
                joined.append(atom)
        return joined

    def _with_first(self, first: Lexeme, name: str) -> str:
        """The rule that has a lexeme at the beginning of all that this one has."""
        key = ("first", first, name)
        return self.name(key) if self.has(key) else self.write(key, ([first, *row] for row in self._rows[name]))

    def _with_last(self, last: Lexeme, name: str) -> str:
        key = ("last", last, name)
        return self.name(key) if self.has(key) else self.write(key, ([*row, last] for row in self._rows[name]))

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

"""Writes GBNF rules as a Lark grammar for llguidance. Pure; any thread.

llguidance reads a text with a lexer: what can match goes on matching as long as it can, and never gives a character
back. GBNF has no lexer; ``[a-z]* "end"`` would never come to its end. So rules that do not lead back to themselves
become regular expressions, and whatever of these follows each other becomes one lexeme, in which nothing is greedy. A
lexeme without a bound before a rule is moved into the beginning of that rule for the same reason. What is left is
greedy, so a text may be refused that GBNF would take; none is taken that GBNF would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.gbnf import Characters, Choice, Element, Literal, Reference, Repeat, Sequence, TokenElement
from llamaserve.grammar.special import SpecialTexts

MAX_RULES = 4000
"""Of the grammar that is written."""


@dataclass(frozen=True, slots=True)
class _Lexeme:
    """A regular expression."""

    text: str
    is_open: bool
    """Whether it may go on without a bound."""
    is_moved: bool = False
    """Whether it came from before the rule: it grows no further then, so that there is an end of moving."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    counts: str = ""
    """How often, if not once."""


_Atom = _Lexeme | _Token | _Rule
_Body = list[list[_Atom]]


def lark_of_gbnf(rules: Mapping[str, Element], special: SpecialTexts) -> str:
    """A Lark grammar of the rules. Where a literal spells one of the control tokens, the token stands for it too.

    Raises BadGrammar for a token that is not in the vocabulary, and for a grammar that becomes too large.
    """
    return _Writer(rules, special).write()


class _Writer:
    """One grammar being written."""

    def __init__(self, rules: Mapping[str, Element], special: SpecialTexts) -> None:
        self._rules = rules
        self._special = special
        self._regular = self._find_regular()
        self._is_open: dict[str, bool] = {}
        self._terminals: dict[str, str] = {name: f"T{index}" for index, name in enumerate(rules)}
        self._bodies: dict[str, _Body] = {}
        self._names: dict[tuple[object, str], str] = {}
        """Of rules made here: an element, or a rule and the lexeme that was moved into it."""
        self._lexemes: dict[str, str] = {}
        """Names of the lexemes that rules have, by their expressions."""

    def write(self) -> str:
        self._measure_open()
        bodies = {name: self._options(element) for name, element in self._rules.items() if name not in self._regular}
        if "root" in self._regular:
            bodies["root"] = [[self._lexeme(Reference("root"))]]
        self._bodies.update({self._rule_name(name): body for name, body in bodies.items()})
        done: dict[str, _Body] = {}
        waiting = [self._rule_name("root")]
        while waiting:
            name = waiting.pop()
            if name in done:
                continue
            if len(done) >= MAX_RULES:
                raise BadGrammar(f"the grammar becomes more than {MAX_RULES} rules: it must be simpler")
            done[name] = [self._joined(atoms) for atoms in self._bodies[name]]
            waiting += [atom.name for atoms in done[name] for atom in atoms if isinstance(atom, _Rule)]
        start = self._rule_name("root")
        lines = [f"start: {start}"]
        lines += [f"{name}: " + " | ".join(map(self._written, body)) for name, body in done.items()]
        lines += [f"{name}: {text}" for text, name in self._lexemes.items()]
        lines += [f"{self._terminals[name]}: {self._expression(self._rules[name])}" for name in sorted(self._regular)]
        return "\n".join(lines)

    # What is a regular expression.

    def _find_regular(self) -> frozenset[str]:
        """Rules that do not lead back to themselves and have no token in them."""
        users: dict[str, list[str]] = {name: [] for name in self._rules}
        n_open: dict[str, int] = {}
        for name, element in self._rules.items():
            parts = list(_parts(element))
            references = {part.name for part in parts if isinstance(part, Reference)}
            has_token = any(isinstance(part, TokenElement) or self._spells_token(part) for part in parts)
            n_open[name] = len(references) + has_token
            for reference in references:
                users[reference].append(name)
        regular = [name for name, count in n_open.items() if count == 0]
        for name in regular:  # grows on the way
            for user in users[name]:
                n_open[user] -= 1
                if n_open[user] == 0:
                    regular.append(user)
        return frozenset(regular)

    def _measure_open(self) -> None:
        """In an order in which every rule comes after those it refers to."""
        waiting = list(self._regular)
        while waiting:
            name = waiting.pop()
            missing = [
                part.name
                for part in _parts(self._rules[name])
                if isinstance(part, Reference) and part.name not in self._is_open
            ]
            if missing:
                waiting += [name, *missing]
            else:
                self._is_open[name] = self._goes_on(self._rules[name])

    def _goes_on(self, element: Element) -> bool:
        return any(
            (isinstance(part, Repeat) and part.most is None)
            or (isinstance(part, Reference) and self._is_open[part.name])
            for part in _parts(element)
        )

    def _spells_token(self, element: Element) -> bool:
        return isinstance(element, Literal) and self._special.is_in(element.text)

    def _is_regular(self, element: Element) -> bool:
        return not any(
            isinstance(part, TokenElement)
            or (isinstance(part, Reference) and part.name not in self._regular)
            or self._spells_token(part)
            for part in _parts(element)
        )

    def _lexeme(self, element: Element) -> _Lexeme:
        return _Lexeme(self._expression(element), self._goes_on(element))

    def _expression(self, element: Element) -> str:
        """A regular element, as the right side of a terminal; with brackets where it needs them beside others."""
        if isinstance(element, Literal):
            return json.dumps(element.text, ensure_ascii=False)
        if isinstance(element, Characters):
            return f"/{_character_class(element)}/"
        if isinstance(element, Reference):
            return self._terminals[element.name]
        if isinstance(element, Sequence):
            return "(" + " ".join(map(self._expression, element.elements)) + ")" if element.elements else '""'
        if isinstance(element, Choice):
            return "(" + " | ".join(map(self._expression, element.options)) + ")"
        if isinstance(element, Repeat):
            return f"({self._expression(element.element)}){_counts(element)}"
        raise TypeError(f"{element} is no regular expression")

    # What is not.

    def _options(self, element: Element) -> _Body:
        """An element as alternatives of atoms."""
        if isinstance(element, Choice):
            return [atoms for option in element.options for atoms in self._options(option)]
        return [list(self._atoms(element))]

    def _atoms(self, element: Element) -> Iterator[_Atom]:
        if self._is_regular(element):
            yield self._lexeme(element)
        elif isinstance(element, Sequence):
            for part in element.elements:
                yield from self._atoms(part)
        elif isinstance(element, Reference):
            yield _Rule(self._rule_name(element.name))
        elif isinstance(element, Choice):
            yield _Rule(self._made_rule(element))
        elif isinstance(element, Repeat):
            yield _Rule(self._made_rule(element.element), _counts(element))
        elif isinstance(element, TokenElement):
            yield _Token(self._token(element))
        elif isinstance(element, Literal):
            yield from self._spelled(element.text)

    def _token(self, element: TokenElement) -> str:
        name = element.name
        token = name if isinstance(name, int) else self._special.token(name)
        if token is None:
            raise BadGrammar(f"the grammar has the token {shown(name)}, which is no control token of this model")
        return f"<[^{token}]>" if element.is_inverse else f"<[{token}]>"

    def _spelled(self, text: str) -> Iterator[_Atom]:
        """A literal in which control tokens are spelled."""
        for part, token in self._special.split(text):
            if token is None:
                yield self._lexeme(Literal(part))
            else:
                spelled = _Lexeme(self._expression(Literal(part)), is_open=False)
                yield _Rule(self._made(("spelled", part), [[_Token(f"<[{token}]>")], [spelled]]))

    # Rules that are made.

    def _rule_name(self, name: str) -> str:
        return self._names.setdefault(("rule", name), f"r{len(self._names)}")

    def _made_rule(self, element: Element) -> str:
        """A rule for an element in brackets."""
        key = (element, "")
        return self._names[key] if key in self._names else self._made(key, self._options(element))

    def _made(self, key: tuple[object, str], body: _Body) -> str:
        if key not in self._names:
            self._names[key] = name = f"r{len(self._names)}"
            self._bodies[name] = body
        return self._names[key]

    def _joined(self, atoms: Iterable[_Atom]) -> list[_Atom]:
        """With one lexeme where several follow each other, and open ones moved into the rule they stand before."""
        joined: list[_Atom] = []
        for atom in atoms:
            last = joined[-1] if joined else None
            if isinstance(last, _Lexeme) and isinstance(atom, _Lexeme):
                may_move = (last.is_open or atom.is_open) and not last.is_moved
                joined[-1] = _Lexeme(f"{last.text} {atom.text}", may_move, last.is_moved)
            elif isinstance(last, _Lexeme) and last.is_open and isinstance(atom, _Rule) and not atom.counts:
                moved = replace(last, is_moved=True)
                body = [[moved, *alternative] for alternative in self._bodies[atom.name]]
                joined[-1] = _Rule(self._made((moved, atom.name), body))
            else:
                joined.append(atom)
        return joined

    def _written(self, atoms: list[_Atom]) -> str:
        return " ".join(map(self._atom_text, atoms)) or '""'

    def _atom_text(self, atom: _Atom) -> str:
        if isinstance(atom, _Lexeme):
            return self._lexemes.setdefault(atom.text, f"L{len(self._lexemes)}")
        return atom.text if isinstance(atom, _Token) else atom.name + atom.counts


def _parts(element: Element) -> Iterator[Element]:
    """The element and all in it; rules it refers to are not looked into."""
    waiting = [element]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Sequence):
            waiting += part.elements
        elif isinstance(part, Choice):
            waiting += part.options
        elif isinstance(part, Repeat):
            waiting.append(part.element)


def _counts(element: Repeat) -> str:
    if element.most is None:
        return {0: "*", 1: "+"}.get(element.least, f"{{{element.least},}}")
    return f"{{{element.least},{element.most}}}"


def _character_class(characters: Characters) -> str:
    if not characters.ranges:
        return "(?s:.)"
    ranges = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in characters.ranges)
    return f"[{'^' * characters.is_inverse}{ranges}]"

"""Writes GBNF rules as a Lark grammar for llguidance. Pure; any thread.

llguidance reads a text with a lexer: what can match goes on matching as long as it can, and never gives a character
back. GBNF has no lexer; ``[a-z]* "end"`` would never come to its end. So rules that do not lead back to themselves
become regular expressions, and whatever of these follows each other becomes one lexeme, in which nothing is greedy;
``gbnf_atoms`` moves lexemes into the rules beside them for the same reason. What is left is greedy, so a text may be
refused that GBNF would take; none is taken that GBNF would refuse.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

from llamaserve.errors import BadGrammar, shown
from llamaserve.grammar.gbnf import Characters, Choice, Element, Literal, Reference, Repeat, Sequence, TokenElement
from llamaserve.grammar.gbnf_atoms import Atom, Bodies, Lexeme, Row, RuleAtom, TokenAtom
from llamaserve.grammar.special import SpecialTexts

MAX_RULES = 4000
"""Of the grammar that is written."""


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
        self._is_loose: dict[str, bool] = {}
        self._bodies = Bodies()
        self._lexemes: dict[str, str] = {}
        """Names of the lexemes that rules have, by their expressions."""

    def write(self) -> str:
        self._measure()
        for name, element in self._rules.items():
            if name not in self._regular:
                self._bodies.write(("rule", name), self._options(element))
        if "root" in self._regular:
            self._bodies.write(("rule", "root"), [[self._lexeme(Reference("root"))]])
        start = self._rule_name("root")
        written = self._reached(start)
        lines = [f"start: {start}"]
        lines += [f"{name}: " + " | ".join(map(self._written, rows)) for name, rows in written.items()]
        lines += [f"{name}: {text}" for text, name in self._lexemes.items()]
        lines += [f"{self._terminals[name]}: {self._expression(self._rules[name])}" for name in sorted(self._regular)]
        return "\n".join(lines)

    def _reached(self, start: str) -> Mapping[str, list[Row]]:
        """The rules that a text needs, ready to be written."""
        reached: dict[str, list[Row]] = {}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            if len(reached) >= MAX_RULES:
                raise BadGrammar(f"the grammar becomes more than {MAX_RULES} rules: it must be simpler")
            reached[name] = [self._bodies.joined(row) for row in self._bodies[name]]
            waiting += [atom.name for row in reached[name] for atom in row if isinstance(atom, RuleAtom)]
        return reached

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

    def _measure(self) -> None:
        """In an order in which every rule comes after those it refers to."""
        waiting = list(self._regular)
        while waiting:
            name = waiting.pop()
            if name in self._is_open:
                continue
            missing = [
                part.name
                for part in _parts(self._rules[name])
                if isinstance(part, Reference) and part.name not in self._is_open
            ]
            if missing:
                waiting += [name, *missing]
            else:
                self._is_open[name] = self._goes_on(self._rules[name])
                self._is_loose[name] = self._ends_loosely(self._rules[name])

    def _goes_on(self, element: Element) -> bool:
        return any(
            (isinstance(part, Repeat) and part.most is None)
            or (isinstance(part, Reference) and self._is_open[part.name])
            for part in _parts(element)
        )

    def _ends_loosely(self, element: Element) -> bool:
        """Whether a text of it may be followed by more of it."""
        if isinstance(element, Repeat):
            return element.least != element.most or self._ends_loosely(element.element)
        if isinstance(element, Reference):
            return self._is_loose[element.name]
        if isinstance(element, Sequence):
            return bool(element.elements) and self._ends_loosely(element.elements[-1])
        if isinstance(element, Choice):
            return has_beginnings(element) or any(map(self._ends_loosely, element.options))
        return False

    def _spells_token(self, element: Element) -> bool:
        return isinstance(element, Literal) and self._special.is_in(element.text)

    def _is_regular(self, element: Element) -> bool:
        return not any(
            isinstance(part, TokenElement)
            or (isinstance(part, Reference) and part.name not in self._regular)
            or self._spells_token(part)
            for part in _parts(element)
        )

    def _lexeme(self, element: Element) -> Lexeme:
        return Lexeme(self._expression(element), self._goes_on(element), self._ends_loosely(element))

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

    def _options(self, element: Element) -> list[Row]:
        """An element as alternatives of atoms."""
        if isinstance(element, Choice):
            return [atoms for option in element.options for atoms in self._options(option)]
        return [list(self._atoms(element))]

    def _atoms(self, element: Element) -> Iterator[Atom]:
        if self._is_regular(element):
            yield self._lexeme(element)
        elif isinstance(element, Sequence):
            for part in element.elements:
                yield from self._atoms(part)
        elif isinstance(element, Reference):
            yield RuleAtom(self._rule_name(element.name))
        elif isinstance(element, Choice):
            yield RuleAtom(self._made_rule(element))
        elif isinstance(element, Repeat):
            yield RuleAtom(self._made_rule(element.element), _counts(element))
        elif isinstance(element, TokenElement):
            yield TokenAtom(self._token(element))
        elif isinstance(element, Literal):
            yield from self._spelled(element.text)

    def _token(self, element: TokenElement) -> str:
        name = element.name
        token = name if isinstance(name, int) else self._special.token(name)
        if token is None:
            raise BadGrammar(f"the grammar has the token {shown(name)}, which is no control token of this model")
        return f"<[^{token}]>" if element.is_inverse else f"<[{token}]>"

    def _spelled(self, text: str) -> Iterator[Atom]:
        """A literal in which control tokens are spelled."""
        for part, token in self._special.split(text):
            if token is None:
                yield self._lexeme(Literal(part))
            else:
                spelled = Lexeme(self._expression(Literal(part)), is_open=False, is_loose=False)
                rows: list[Row] = [[TokenAtom(f"<[{token}]>")], [spelled]]
                yield RuleAtom(self._bodies.write(("spelled", part), rows))

    # Rules.

    def _rule_name(self, name: str) -> str:
        return self._bodies.name(("rule", name))

    def _made_rule(self, element: Element) -> str:
        """A rule for an element in brackets."""
        key = ("element", element)
        return self._bodies.name(key) if self._bodies.has(key) else self._bodies.write(key, self._options(element))

    def _written(self, row: Row) -> str:
        return " ".join(map(self._atom_text, row)) or '""'

    def _atom_text(self, atom: Atom) -> str:
        if isinstance(atom, Lexeme):
            return self._lexemes.setdefault(atom.text, f"L{len(self._lexemes)}")
        return atom.text if isinstance(atom, TokenAtom) else atom.name + atom.counts


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


def has_beginnings(choice: Choice) -> bool:
    """Whether one option may be the beginning of another: certain for texts only, assumed for nothing at all."""
    texts = sorted({option.text for option in choice.options if isinstance(option, Literal)})
    has_empty = any(isinstance(option, Sequence) and not option.elements for option in choice.options)
    # In order: whatever stands between a text and one that begins with it begins with it too.
    return has_empty or any(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


def _counts(element: Repeat) -> str:
    if element.most is None:
        return {0: "*", 1: "+"}.get(element.least, f"{{{element.least},}}")
    return f"{{{element.least},{element.most}}}"


def _character_class(characters: Characters) -> str:
    if not characters.ranges:
        return "(?s:.)"
    ranges = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in characters.ranges)
    return f"[{'^' * characters.is_inverse}{ranges}]"

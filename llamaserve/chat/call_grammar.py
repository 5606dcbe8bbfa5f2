"""What an answer with tool calls looks like, as a Lark grammar for llguidance. Any thread; the tokeniser may block.

It is written from the parser that llama.cpp reads such answers with, so that what is allowed is what will be read.
llama.cpp would write a grammar too; four things differ here. The arguments of a call are held to their JSON Schema by
llguidance. A text up to a mark is one lexeme that ends with the first such mark. Where one call may come, no other
comes after it. And where a call must come, nothing may come before it but reasoning: an answer could go on without ever
calling otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from llamaserve.chat.tool_schemas import Node, tool_schemas
from llamaserve.errors import BadGrammar
from llamaserve.grammar.sources import JSON_SPACE, MAX_SOURCE_LENGTH

Spell = Callable[[str], Sequence[str | int]]
"""A text as texts and control tokens."""

EMPTY = '""'
_ANY_TEXT = "/(?s:.*)/"
_OPTIONAL_SPACE = "(/[ \\t\\r\\n]{1,20}/)?"
_STRING = {'"': r'/([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*/', "'": r"/([^'\\\x00-\x1f]|\\.)*/"}
_JSON_RULES: Mapping[str, object] = {
    "json-value": {},
    "json-object": {"type": "object"},
    "json-array": {"type": "array"},
}
"""Rules of llama.cpp's parser that llguidance has by itself."""
_MARK = re.compile(r"(<\|[^<>|]*\|>)")
_LOOKING = ("epsilon", "start", "end", "and", "not")
"""What takes no text."""


def call_grammar(
    parser: str,
    tools: Sequence[Node],
    spell: Spell,
    *,
    must_call: bool,
    in_parallel: bool = True,
    only_strict: bool = False,
) -> str:
    """The grammar of a whole answer where a call must come; else of what comes from the beginning of a call on.

    ``parser`` is llama.cpp's, as JSON; ``in_parallel`` says whether several calls may come. ``only_strict`` leaves the
    schemas of functions that are not strict out, and so does a grammar that becomes too long with them. Raises
    BadGrammar for parameters that cannot be enforced, with their place, and for one that is too long all the same.
    """
    arena = cast("Node", json.loads(parser))

    def written(schemas: Mapping[str, object]) -> str:
        return CallWriter(arena, schemas, spell, must_call=must_call, in_parallel=in_parallel).write()

    source = written(tool_schemas(tools, only_strict=only_strict))
    if len(source) > MAX_SOURCE_LENGTH and not only_strict:
        source = written(tool_schemas(tools, only_strict=True))
    if len(source) > MAX_SOURCE_LENGTH:
        raise BadGrammar(
            f"the grammar of the tools' calls has {len(source)} characters: at most {MAX_SOURCE_LENGTH} are allowed; "
            "give fewer or smaller tools, or fewer of them strict",
            "tools",
        )
    return source


class CallWriter:
    """One grammar being written."""

    def __init__(
        self, arena: Node, schemas: Mapping[str, object], spell: Spell, *, must_call: bool, in_parallel: bool
    ) -> None:
        self._nodes = cast("Sequence[Node]", arena["parsers"])
        self._rules = cast("Mapping[str, int]", arena["rules"])
        self._root = cast("int", arena["root"])
        self._schemas = schemas
        self._spell = spell
        self._must_call = must_call
        """Whether content is left out."""
        self._in_parallel = in_parallel
        self._has_calls = True
        """Whether calls are written at all."""
        self._names: dict[int | str, str] = {}
        """Rules of ours, by the parser or the text they stand for."""
        self._lines: list[str] = []

    def write(self) -> str:
        if self._must_call:
            start = self._expression(self._root)
        else:
            triggers = [index for _, index in sorted(self._rules.items()) if self._nodes[index].get("trigger")]
            start = choice_of([self._expression(index) for index in triggers])
        return "\n".join([f"start: {start}", *self._lines])

    def _expression(self, index: int) -> str:
        """A parser, as something that can stand anywhere."""
        node = self._nodes[index]
        kind = node["type"]
        if kind in _LOOKING:
            return EMPTY
        if kind == "literal":
            return self._literal(str(node["literal"]))
        if kind == "sequence":
            return self._sequence(list(self._items(index)))
        if kind == "choice":
            return choice_of([self._expression(child) for child in self._options(node)])
        if kind == "repetition":
            return self._repetition(node)
        if kind == "rule":
            return self._rule(index)
        if kind == "ref":
            return self._rule(self._rules[str(node["name"])])
        if kind == "schema":
            return self._schema(node)
        if kind == "gbnf":
            rule = self._rules.get(str(node["grammar"]))
            return EMPTY if node["grammar"] == "" else self._expression(child_of(node) if rule is None else rule)
        if self._is_dropped(node):
            return _OPTIONAL_SPACE
        if kind in ("tag", "atomic", "ac"):
            return self._sequence(list(self._items(child_of(node))))
        if kind == "until":
            return self._text_without(cast("Sequence[str]", node["delimiters"]))
        return _terminal(node)

    # Sequences: a text up to a mark is written together with the mark.

    def _items(self, index: int) -> Iterator[int]:
        """A parser as what comes one after the other, names and tags taken off."""
        node = self._nodes[index]
        kind = node["type"]
        if kind == "sequence":
            for child in cast("Sequence[int]", node["children"]):
                yield from self._items(child)
        elif self._is_dropped(node):
            yield index
        elif kind in ("tag", "atomic", "ac"):
            yield from self._items(child_of(node))
        elif kind == "ref":
            yield from self._items(self._rules[str(node["name"])])
        elif kind == "rule" and self._nodes[self._bare(child_of(node))]["type"] in ("until", "literal"):
            child = child_of(node)
            yield child if self._is_dropped(self._nodes[child]) else self._bare(child)
        else:
            yield index

    def _bare(self, index: int) -> int:
        while self._nodes[index]["type"] in ("tag", "atomic", "rule"):
            index = child_of(self._nodes[index])
        return index

    def _sequence(self, items: Sequence[int]) -> str:
        parts: list[str] = []
        position = 0
        while position < len(items):
            node = self._nodes[items[position]]
            within = list(self._items(child_of(node))) if _is_optional(node) else [items[position]]
            last = self._nodes[within[-1]] if within else node
            marks = cast("Sequence[str]", last["delimiters"]) if last["type"] == "until" else ()
            end = self._end_of_text(items, position, marks)
            if end is None:
                parts.append(self._expression(items[position]))
                position += 1
                continue
            text = self._text_to(self._literal_text(items[end]))
            if _is_optional(node):
                begun = self._sequence(within[:-1])
                text = choice_of([f"({begun} {text})", self._sequence(items[position + 1 : end + 1])])
            parts.append(text)
            position = end + 1
        parts = [part for part in parts if part != EMPTY]
        return f"({' '.join(parts)})" if len(parts) > 1 else "".join(parts) or EMPTY

    def _end_of_text(self, items: Sequence[int], position: int, marks: Sequence[str]) -> int | None:
        """Where the mark stands that a text goes up to: what comes between them can be left out."""
        for end in range(position + 1, len(items)):
            text = self._literal_text(items[end])
            if text and any(mark and (text.startswith(mark) or mark.startswith(text)) for mark in marks):
                return end
            node = self._nodes[items[end]]
            can_be_left_out = node["type"] == "repetition" and node["min_count"] == 0
            if not (can_be_left_out or node["type"] in (*_LOOKING, "space") or self._is_dropped(node)):
                return None
        return None

    def _literal_text(self, index: int) -> str:
        """What a parser reads, if it is a fixed text, or one that may be left out."""
        node = self._nodes[self._bare(index)]
        if _is_optional(node):
            node = self._nodes[self._bare(child_of(node))]
        if node["type"] == "choice":  # the mark, or a look at what comes instead of it
            first, *others = (self._nodes[option] for option in cast("Sequence[int]", node["children"]))
            node = first if all(other["type"] in _LOOKING for other in others) else node
        return str(node["literal"]) if node["type"] == "literal" else ""

    def _text_to(self, mark: str) -> str:
        """Any text with the mark behind it, the first that comes."""
        first, *rest = self._spell(mark)
        if isinstance(first, int):
            return f"({_ANY_TEXT} {self._literal(mark)})"
        name = self._names.get(f"to {first}")
        if name is None:
            name = self._names[f"to {first}"] = f"t{len(self._names)}"
            self._lines.append(f"{name}[lazy]: /(?s:.*){_escaped(first)}/")
        return f"({' '.join([name, *map(_spelled, rest)])})" if rest else name

    def _text_without(self, marks: Sequence[str]) -> str:
        """Any text without these marks; a mark that is a control token ends it anyway."""
        spelled = [self._spell(mark) for mark in marks if mark]
        forbidden = "|".join(_escaped(parts[0]) for parts in spelled if parts and isinstance(parts[0], str))
        if not forbidden:
            return _ANY_TEXT
        if forbidden not in self._names:
            self._names[forbidden] = f"T{len(self._names)}"
            self._lines.append(f"{self._names[forbidden]}: {_ANY_TEXT} & ~/(?s:.*)({forbidden})(?s:.*)/")
        return self._names[forbidden]

    def _literal(self, text: str) -> str:
        parts = [written for part in self._spell(text) for written in _lexemes(part)]
        return f"({' '.join(parts)})" if len(parts) > 1 else "".join(parts) or EMPTY

    # What must come, and what it must be like.

    def _repetition(self, node: Node) -> str:
        """Calls come once where they may not come in parallel; llama.cpp's parser reads some forms of them again and
        again all the same."""
        if not self._in_parallel and self._is_call(child_of(node)):
            node = {**node, "max_count": 1}
        return _repeated(self._expression(child_of(node)), node)

    def _is_call(self, index: int) -> bool:
        """Whether a parser reads a whole call: it begins with the rule for one, or is it."""
        first = next(self._items(index), None)
        return first is not None and bool(self._nodes[first].get("trigger"))

    def _is_dropped(self, node: Node) -> bool:
        return self._must_call and node["type"] == "tag" and node["tag"] == "content"

    def _options(self, node: Node) -> Sequence[int]:
        """The alternatives; where a call must come, without those whose content has a mark: it would have to be there
        without the content."""
        options = cast("Sequence[int]", node["children"])
        kept = [option for option in options if not (self._must_call and self._has_marked_content(option))]
        return kept or options

    def _has_marked_content(self, index: int) -> bool:
        node = self._nodes[index]
        if node["type"] in ("tag", "rule", "atomic"):
            return self._has_marked_content(child_of(node))
        if node["type"] != "sequence":
            return False
        items = [self._nodes[item] for item in self._items(index)]
        return any(
            before["type"] == "literal" and self._is_dropped(after) for before, after in itertools.pairwise(items)
        )

    def _schema(self, node: Node) -> str:
        schema = self._schemas.get(str(node["name"]))
        return self._expression(child_of(node)) if schema is None else self._json(schema)

    def _rule(self, index: int) -> str:
        node = self._nodes[index]
        if node.get("trigger") and not self._has_calls:
            return EMPTY
        known = _JSON_RULES.get(str(node["name"]))
        if known is not None:
            return self._json({**cast("Node", known), "x-guidance": {"whitespace_pattern": JSON_SPACE}})
        if index not in self._names:
            name = self._names[index] = f"r{len(self._names)}"
            self._lines.append(f"{name}: {self._expression(child_of(node))}")
        return self._names[index]

    def _json(self, schema: object) -> str:
        source = json.dumps(schema)
        if source not in self._names:
            self._names[source] = f"j{len(self._names)}"
            self._lines.append(f"{self._names[source]}: %json {source}")
        return self._names[source]


def _is_optional(node: Node) -> bool:
    return node["type"] == "repetition" and (node["min_count"], node["max_count"]) == (0, 1)


def child_of(node: Node) -> int:
    return cast("int", node["child"])


def choice_of(options: Sequence[str]) -> str:
    options = list(dict.fromkeys(options))
    return f"({' | '.join(options)})" if len(options) > 1 else options[0]


def _repeated(expression: str, node: Node) -> str:
    if expression == EMPTY:
        return EMPTY
    least, most = cast("int", node["min_count"]), cast("int", node["max_count"])
    if most == -1 and least < 2:
        return f"({expression}){'+' if least else '*'}"
    return f"({expression}){{{least},{'' if most == -1 else most}}}"


def _terminal(node: Node) -> str:
    """A parser of characters."""
    kind = node["type"]
    if kind == "space":
        return _OPTIONAL_SPACE
    if kind == "any":
        return "/(?s:.)/"
    if kind == "string":
        return _STRING[str(node["delimiter"])]
    ranges = cast("Sequence[Mapping[str, int]]", node["ranges"])
    inside = "".join(f"\\x{{{part['start']:x}}}-\\x{{{part['end']:x}}}" for part in ranges)
    most = cast("int", node["max_count"])
    counts = f"{{{node['min_count']},{'' if most == -1 else most}}}"
    return f"/[{'^' if node['negated'] else ''}{inside}]{counts}/"


def _lexemes(part: str | int) -> Iterator[str]:
    """A mark is a lexeme of its own: the lexer would not find it in a longer one that goes on differently."""
    for piece in (part,) if isinstance(part, int) else _MARK.split(part):
        if piece != "":
            yield _spelled(piece)


def _spelled(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)


def _escaped(text: str) -> str:
    """A text in a regular expression between slashes."""
    return "".join(
        character if character.isalnum() and character.isascii() else f"\\x{{{ord(character):x}}}" for character in text
    )

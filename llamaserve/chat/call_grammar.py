"""The grammar of an answer's tool calls, made fit for a restriction. Pure; any thread.

llama.cpp writes one from the parser it reads the answer with. Two things about it are changed here. Where a call must
come, it allows any content before the call, so that an answer may never come to it. And it repeats arguments with
``*``: a lexer that never gives a character back takes what follows for the beginning of one more. Written as a rule
that leads back to itself, a repetition is no single lexeme.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

_RULE = re.compile(r"^(?P<name>[a-zA-Z0-9-]+) ::= ", re.MULTILINE)
_PLAIN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[^"\[()]+')
"""A part of a rule that no bracket belongs to."""
_CALL_RULES = re.compile(r"root|tool-.*")
_WRAPPERS = frozenset({"tag", "atomic", "rule", "schema", "ac"})
_CONTENT = "content"
_SPACE = " space"

_WHITE_SPACE = r"[ \t\n]{0,8}"

Node = Mapping[str, object]


def with_repeating_rules(grammar: str) -> str:
    """The same language: ``(a)*`` and ``(a)+`` in the rules of calls become rules of their own."""
    lines = []
    made: list[str] = []
    for line in grammar.splitlines():
        name = _RULE.match(line)
        lines.append(_rewritten(line, made) if name and _CALL_RULES.fullmatch(name["name"]) else line)
    return "\n".join(lines + made)


def _rewritten(line: str, made: list[str]) -> str:
    """A line whose repeated groups are references to rules, which are added to ``made``."""
    open_groups: list[list[str]] = [[]]
    position = 0
    while position < len(line):
        character = line[position]
        if character == "(":
            open_groups.append([])
            position += 1
        elif character == ")" and len(open_groups) > 1:
            group = f"({''.join(open_groups.pop())})"
            position += 1
            if line[position : position + 1] in ("*", "+"):
                # White space twice in a row could be either's: a lexer takes it for one of them.
                is_doubled = group.endswith(f"{_SPACE})") and line.startswith(_SPACE, position + 1)
                group = _repeated(group, line[position], made)
                position += 1 + (len(_SPACE) if is_doubled else 0)
            open_groups[-1].append(group)
        else:
            plain = _PLAIN.match(line, position)
            text = character if plain is None else plain[0]
            open_groups[-1].append(text)
            position += len(text)
    return "(".join("".join(group) for group in open_groups)


def _repeated(group: str, count: str, made: list[str]) -> str:
    name = f"again-{len(made)}"
    made.append(f"{name} ::= | {group} {name}")
    return f"({group} {name})" if count == "+" else name


def without_content(grammar: str, parser: str) -> str:
    """The grammar with white space at most where the parser, as JSON, reads content. Content between marks of its own
    stays: the marks would be there without it."""
    nodes = json.loads(parser)["parsers"]
    bare = {reader for node in nodes if node["type"] == "sequence" for reader in _bare_content(nodes, node["children"])}
    marked = {reader for node in nodes for reader in _other_readers(nodes, node)}
    dropped = {f"until-{reader}" for reader in bare - marked}
    kept = []
    for line in grammar.splitlines():
        name = _RULE.match(line)
        rule = name["name"] if name else ""
        if rule in dropped:
            kept.append(f"{rule} ::= {_WHITE_SPACE}")
        elif re.sub(r"(until-[0-9]+)-[0-9]+", r"\1", rule) not in dropped:
            kept.append(line)
    return "\n".join(kept)


def _bare_content(nodes: Sequence[Node], children: Sequence[int]) -> Iterator[int]:
    """Parsers of a sequence that read content up to a mark, and stand behind no other mark."""
    before: Node | None = None
    for child in children:
        node = nodes[child]
        if node["type"] == "repetition" and node["min_count"] == 0:
            node = nodes[_child(node)]
        if node["type"] == "tag" and node["tag"] == _CONTENT and (before is None or before["type"] != "literal"):
            reader = _reader(nodes, _child(node))
            if reader is not None:
                yield reader
        before = nodes[child]


def _other_readers(nodes: Sequence[Node], node: Node) -> Iterator[int]:
    """Parsers that a tag other than content's has read."""
    if node["type"] == "tag" and node["tag"] != _CONTENT:
        reader = _reader(nodes, _child(node))
        if reader is not None:
            yield reader


def _reader(nodes: Sequence[Node], index: int) -> int | None:
    """The parser behind names and tags, if it reads up to a mark."""
    while nodes[index]["type"] in _WRAPPERS:
        index = _child(nodes[index])
    return index if nodes[index]["type"] == "until" else None


def _child(node: Node) -> int:
    child = node["child"]
    assert isinstance(child, int)  # llama.cpp's own JSON
    return child

"""What an answer without tool calls looks like whose content is restricted, where the answer might have called tools:
reasoning, the marks a template puts around content, and the content. Any thread; the tokeniser may block.

It is written from the same parser as the grammar of calls. Of several places that content may stand in, the last is the
answer's; those before it are for remarks, and there are none here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from llamaserve.chat.call_grammar import EMPTY, CallWriter, Spell, child_of, choice_of
from llamaserve.chat.tool_schemas import Node

CONTENT = "@content"


def content_frame(parser: str, generation_prompt: str, spell: Spell) -> str | None:
    """A Lark grammar of whole answers, ``generation_prompt`` included, with ``@content`` where the content is; None for
    a parser that reads no content."""
    return _FrameWriter(cast("Node", json.loads(parser)), generation_prompt, spell).write_frame()


class _FrameWriter(CallWriter):
    """One frame being written."""

    def __init__(self, arena: Node, generation_prompt: str, spell: Spell) -> None:
        super().__init__(arena, {}, spell, must_call=True, in_parallel=False)
        self._has_calls = False
        self._generation_prompt = generation_prompt
        self._is_begun = False
        """Whether the outermost sequence is being written: it begins with the generation prompt."""
        self._reads_content: dict[int, bool] = {}

    def write_frame(self) -> str | None:
        """The grammar."""
        if not self._has_content(self._root):
            return None
        start = self._framed(self._root)
        return "\n".join([f"start: {start}", *self._lines])

    def _has_content(self, index: int) -> bool:
        if index not in self._reads_content:
            self._reads_content[index] = False  # while it is looked at: a rule may lead back to itself
            node = self._nodes[index]
            is_call = bool(node.get("trigger"))
            is_content = node["type"] == "tag" and node["tag"] == "content"
            self._reads_content[index] = is_content or (
                not is_call and any(map(self._has_content, self._children(node)))
            )
        return self._reads_content[index]

    def _children(self, node: Node) -> Sequence[int]:
        if node["type"] in ("sequence", "choice"):
            return cast("Sequence[int]", node["children"])
        if node["type"] == "ref":
            return (self._rules[str(node["name"])],)
        return (child_of(node),) if node["type"] in ("tag", "atomic", "ac", "rule", "repetition", "gbnf") else ()

    def _framed(self, index: int) -> str:
        """A parser that reads content, with the restricted one in its place."""
        node = self._nodes[index]
        if node["type"] == "tag" and node["tag"] == "content":
            return CONTENT
        if node["type"] == "sequence":
            return self._framed_sequence(self._children(node))
        with_content = [child for child in self._children(node) if self._has_content(child)]
        if node["type"] == "choice":
            return choice_of([self._framed(child) for child in with_content])
        framed = self._framed(with_content[0])
        if node["type"] == "repetition" and node["max_count"] != 1:
            return f"({self._repetition({**node, 'min_count': 0})} {framed})"
        return framed

    def _framed_sequence(self, children: Sequence[int]) -> str:
        position = max(place for place, child in enumerate(children) if self._has_content(child))
        before = [item for child in children[:position] for item in self._items(child)]
        is_outermost, self._is_begun = not self._is_begun, True
        if before and not is_outermost and self._has_been_written(before[-1], children[position]):
            before = before[:-1]
        parts = [self._sequence(before), self._framed(children[position])]
        # What closes the content may come, or the token that ends the answer instead; nothing else does.
        closing = self._literal("".join(self._fixed(child) for child in children[position + 1 :]))
        parts += [] if closing == EMPTY else [f"({closing})?"]
        parts = [part for part in parts if part != EMPTY]
        return f"({' '.join(parts)})" if len(parts) > 1 else parts[0]

    def _has_been_written(self, mark: int, content: int) -> bool:
        """Whether a mark of content is in the prompt, behind which the answer goes on."""
        node, text = self._nodes[content], self._fixed(mark)
        return node["type"] == "tag" and text != "" and text in self._generation_prompt

    def _fixed(self, index: int) -> str:
        node = self._nodes[self._bare(index)]
        return str(node["literal"]) if node["type"] == "literal" else ""

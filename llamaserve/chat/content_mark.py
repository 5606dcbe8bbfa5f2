"""Which text a template begins the content of an answer with, read from llama.cpp's parser of it. Pure; any thread."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

Node = Mapping[str, object]


def content_mark(parser: str, generation_prompt: str) -> str:
    """The text right before the content, of a parser as JSON; "" where there is none, or the prompt has it already.

    Where an answer may have several texts of content, it is the last one's: those before it are remarks.
    """
    nodes: Sequence[Node] = json.loads(parser)["parsers"]
    mark = ""
    for node in nodes:
        children = node.get("children")
        if node["type"] != "sequence" or not isinstance(children, Sequence):
            continue
        for before, child in itertools.pairwise(children):
            if nodes[before]["type"] == "literal" and _is_content(nodes, child):
                text = str(nodes[before]["literal"])
                mark = "" if text in generation_prompt else text
    return mark


def _is_content(nodes: Sequence[Node], index: int) -> bool:
    node = nodes[index]
    return node["type"] == "tag" and node["tag"] == "content"

"""An answer that may have one call has one: ``parallel_tool_calls`` is false, or ``tool_choice`` names the function."""

from __future__ import annotations

import json

import pytest

from llamaserve.chat.call_grammar import call_grammar
from llamaserve.chat.tools import read_tool_use

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
PARSER = json.dumps(
    {
        "parsers": [
            {"type": "literal", "literal": "<call>"},
            {"type": "rule", "name": "tool-call", "child": 9, "trigger": True},
            {"type": "space"},
            {"type": "sequence", "children": [1, 2]},
            {"type": "repetition", "child": 3, "min_count": 1, "max_count": -1},
            {"type": "rule", "name": "tool-calls", "child": 4, "trigger": True},
            {"type": "literal", "literal": "!"},
            {"type": "repetition", "child": 6, "min_count": 1, "max_count": -1},
            {"type": "sequence", "children": [5, 7]},
            {"type": "sequence", "children": [0, 6]},
        ],
        "rules": {"tool-call": 1, "tool-calls": 5},
        "root": 8,
    }
)
"""llama.cpp's form for several calls, which it keeps where one may come; what else repeats goes on repeating."""


@pytest.mark.parametrize(("in_parallel", "times"), [(True, "+"), (False, "{1,1}")])
@pytest.mark.parametrize("must_call", [True, False])
def test_calls_repeat_only_where_several_may_come(must_call: bool, in_parallel: bool, times: str) -> None:
    source = call_grammar(PARSER, [TOOL], lambda text: [text], must_call=must_call, in_parallel=in_parallel)
    (calls,) = [line for line in source.splitlines() if "{1,20}/" in line]
    assert calls.endswith(f"){times}")
    assert ('("!")+' in source) == must_call


@pytest.mark.parametrize(
    ("choice", "is_named"),
    [
        (None, False),
        ("auto", False),
        ("required", False),
        ({"type": "function", "function": {"name": "f"}}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}, False),
    ],
)
def test_a_choice_that_names_the_function_says_so(choice: object, is_named: bool) -> None:
    assert read_tool_use([TOOL], choice).is_named == is_named

"""Tools for templates that know none."""

from __future__ import annotations

from llamaserve.chat.own_tools import with_described_tools, with_written_calls

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Wetter: ☀", "parameters": {}}}


def test_the_description_stands_in_a_system_message_with_every_tool_as_json() -> None:
    user = {"role": "user", "content": "Hi"}
    system, *rest = with_described_tools([user], [TOOL], has_form=True)
    assert rest == [user]
    assert system["role"] == "system"
    assert '{"name": "get_weather", "description": "Wetter: ☀", "parameters": {}}' in str(system["content"])
    assert "<tool_call>" in str(system["content"])
    plain, _ = with_described_tools([user], [TOOL], has_form=False)
    assert "<tool_call>" not in str(plain["content"])


def test_the_description_follows_the_first_system_message() -> None:
    system, user = with_described_tools(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], [TOOL], has_form=True
    )
    assert str(system["content"]).startswith("Be brief.\n\n# Tools\n")
    assert user == {"role": "user", "content": "Hi"}
    empty, *_ = with_described_tools([{"role": "system", "content": ""}], [TOOL], has_form=True)
    assert str(empty["content"]).startswith("# Tools\n")


def test_calls_and_results_are_written_into_the_messages_of_assistant_and_user() -> None:
    calls = [
        {"type": "function", "function": {"name": "a", "arguments": '{"x": "é"}'}},
        {"type": "function", "function": {"name": "b", "arguments": {"y": 2}}},
        {"type": "function", "function": {"name": "c", "arguments": ""}},
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls[:1], "reasoning_content": "hm"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": calls[1:]},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": None},
        {"role": "assistant", "content": "Done."},
        {"role": "tool", "content": "late"},
    ]
    assert with_written_calls(messages) == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": 'Let me see.\n<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>',
            "reasoning_content": "hm",
        },
        {"role": "user", "content": "<tool_response>\n1\n</tool_response>"},
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "b", "arguments": {"y": 2}}\n</tool_call>\n'
            '<tool_call>\n{"name": "c", "arguments": {}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\n2\n</tool_response>\n<tool_response>\n\n</tool_response>"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "<tool_response>\nlate\n</tool_response>"},
    ]

"""What an answer of a chat is restricted to, from all that asks for a restriction. Any thread; compiling blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamaserve.chat.prepared import PreparedChat
from llamaserve.chat.reasoning_budget import ReasoningBudget
from llamaserve.constraint import Constraint
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest
from llamaserve.grammar.spec import GrammarSpec


def chat_restriction(
    chat: PreparedChat,
    content: GrammarSpec | None,
    compile_grammar: Callable[[GrammarSpec], Constraint],
    vocab: Vocabulary,
    *,
    param: str,
) -> Constraint | None:
    """The tool calls' grammar, or what ``content`` shall be, within the budget of the reasoning; None = any text.

    ``param`` is the field that asked for ``content``. An answer that has to call a tool has no content. One that may do
    either cannot be restricted in both. Raises BadRequest for that, BadGrammar.
    """
    spec = chat.calls
    if content is not None and not chat.must_call:
        if chat.has_tools:
            raise BadRequest(
                f"{param}: an answer that may call tools cannot be restricted too: set tool_choice to 'none' or "
                "'required'",
                param,
            )
        spec = replace(content, after=chat.content_after)
    inner = None if spec is None else compile_grammar(spec)
    if chat.reasoning_budget is None or chat.reasoning is None:
        return inner
    return ReasoningBudget(chat.reasoning_budget, chat.reasoning, vocab, inner)

"""What an answer of a chat is restricted to, from all that asks for a restriction. Any thread; compiling blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamaserve.chat.prepared import PreparedChat
from llamaserve.chat.reasoning_budget import ReasoningBudget
from llamaserve.constraint import Constraint
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadGrammar, BadRequest
from llamaserve.grammar.either import Either
from llamaserve.grammar.spec import GrammarSpec

TOOLS = "tools"
"""The field that functions come in."""
Compile = Callable[[GrammarSpec, str], Constraint]
"""Compiles a restriction that a field of the request asked for, which it names in its errors. Raises BadGrammar."""


def chat_restriction(
    chat: PreparedChat,
    content: GrammarSpec | None,
    compile_grammar: Compile,
    vocab: Vocabulary,
    *,
    param: str,
) -> Constraint | None:
    """The tool calls' grammar, or what ``content`` shall be, or either, within the budget of the reasoning; None = any
    text.

    ``param`` is the field that asked for ``content``. An answer that has to call a tool has no content. One that may do
    either is calls or content from its beginning on, never both. Raises BadRequest where the template's form knows no
    answer without calls, BadGrammar.
    """
    inner = _inner(chat, content, compile_grammar, param)
    if chat.reasoning_budget is None or chat.reasoning is None:
        return inner
    return ReasoningBudget(chat.reasoning_budget, chat.reasoning, vocab, inner)


def _inner(chat: PreparedChat, content: GrammarSpec | None, compile_grammar: Compile, param: str) -> Constraint | None:
    if content is None or chat.must_call:
        return None if chat.calls is None else _compiled_calls(chat, chat.calls, compile_grammar)
    if not chat.has_tools:
        return compile_grammar(replace(content, after=chat.content_after), param)
    if chat.calls is None or chat.content_frame is None:
        raise BadRequest(
            f"{param}: with this model an answer that may call tools cannot be restricted too: set tool_choice to "
            "'none' or 'required'",
            param,
        )
    framed = compile_grammar(replace(chat.content_frame, content=content), param)
    return Either(_compiled_calls(chat, chat.calls, compile_grammar), framed)


def _compiled_calls(chat: PreparedChat, calls: GrammarSpec, compile_grammar: Compile) -> Constraint:
    """One schema that cannot be enforced costs all functions theirs, but for the strict ones, and not the request its
    answer."""
    try:
        return compile_grammar(calls, TOOLS)
    except BadGrammar:
        for place, spec in chat.strict_arguments.items():  # which of them is at fault, and where
            compile_grammar(spec, place)
        looser = None if chat.make_looser_calls is None else chat.make_looser_calls()
        if looser is None or looser == calls:
            raise
        return compile_grammar(looser, TOOLS)

"""What the engine gets of a rendered conversation, and what its answer is restricted to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llamaserve.chat.message import ContentParser
from llamaserve.chat.prepared import PreparedChat, prepare_chat, spelled
from llamaserve.chat.reasoning_budget import ReasoningBudget, ReasoningMarks
from llamaserve.chat.restriction import chat_restriction
from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, Messages, RenderedChat
from llamaserve.constraint import Constraint
from llamaserve.engine.fake import BOS, EOS, FakeVocabulary
from llamaserve.errors import BadGrammar, BadRequest
from llamaserve.grammar.either import Either
from llamaserve.grammar.spec import GrammarKind, GrammarSpec

HI = [{"role": "user", "content": "hi"}]
MARK = 300
CALLS = GrammarSpec(GrammarKind.LARK, 'start: "call"')
CONTENT = GrammarSpec(GrammarKind.JSON_OBJECT, "")
THINK = ReasoningMarks("<t>", "</t>", is_begun=True)


class MarkedVocabulary(FakeVocabulary):
    """Single bytes, and the control token ``<m>``."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        for index, part in enumerate(text.split("<m>")):
            tokens += [MARK] if index else []
            tokens += super().tokenize(part, add_special=False, parse_special=parse_special)
        return tokens

    def detokenize(self, tokens: list[int], *, special: bool) -> bytes:  # type: ignore[override]  # lists will do
        if tokens == [MARK]:
            return b"<m>" if special else b""
        return super().detokenize(tokens, special=special)

    def is_eog(self, token: int) -> bool:
        return token != MARK and super().is_eog(token)


class OneRendering:
    """Renders every conversation the same."""

    def __init__(self, rendered: RenderedChat) -> None:
        self._rendered = rendered

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        return self._rendered


def prepared(rendered: RenderedChat) -> PreparedChat:
    vocab = MarkedVocabulary()
    return prepare_chat(
        HI, OneRendering(rendered), vocab, lambda text: vocab.tokenize(text, add_special=True, parse_special=True)
    )


def test_control_tokens_among_the_marks_are_visible_and_the_end_is_not() -> None:
    chat = prepared(RenderedChat("x", ("|",), marks=("<m>", "</think>", "a<m>b", "<eos>")))
    assert chat.visible_tokens == {MARK: b"<m>"}
    assert (chat.tokens, chat.stops, chat.make_parser) == ((ord("x"),), ("|",), ContentParser)


def test_a_text_is_spelled_with_control_tokens_that_end_nothing() -> None:
    vocab = MarkedVocabulary()
    assert spelled("a<m>b<m><m>", vocab) == ["a", MARK, "b", MARK, MARK]
    assert spelled("a<eos>b", vocab) == ["a<eos>b"]
    assert vocab.tokenize("<eos>", add_special=False, parse_special=True) == [EOS]
    assert spelled("", vocab) == []


@pytest.mark.parametrize(
    ("generation_prompt", "is_begun"),
    [("", False), ("assistant", False), ("assistant<t>\n", True), ("assistant<t></t>", False), ("<t></t><t>", True)],
)
def test_the_prompt_says_whether_a_reasoning_is_begun(generation_prompt: str, is_begun: bool) -> None:
    rendered = RenderedChat("x", (), generation_prompt, reasoning_start="<t>", reasoning_end="</t>")
    chat = prepared(rendered)
    assert chat.reasoning == ReasoningMarks("<t>", "</t>", is_begun=is_begun)
    assert chat.content_after == ("</t>" if is_begun else "")
    assert prepared(replace(rendered, content_mark="<final>")).content_after == "<final>"


class Compiler:
    """Keeps what it compiled, and for which field."""

    def __init__(self, refused: GrammarSpec | None = None) -> None:
        self.specs: list[GrammarSpec] = []
        self.params: list[str] = []
        self._refused = refused

    def __call__(self, spec: GrammarSpec, param: str) -> Constraint:
        self.specs.append(spec)
        self.params.append(param)
        if spec == self._refused:
            raise BadGrammar("no")
        return ReasoningBudget(9, THINK, FakeVocabulary())


def test_calls_content_and_budget_make_one_restriction() -> None:
    compiler, vocab = Compiler(), FakeVocabulary()
    plain = PreparedChat((BOS,), content_after="</t>")
    calling = replace(plain, calls=CALLS, has_tools=True)
    assert chat_restriction(plain, None, compiler, vocab, param="response_format") is None
    assert chat_restriction(calling, None, compiler, vocab, param="response_format") is not None
    assert chat_restriction(plain, CONTENT, compiler, vocab, param="response_format") is not None
    assert compiler.specs == [CALLS, replace(CONTENT, after="</t>")]
    budgeted = replace(calling, reasoning=THINK, reasoning_budget=3)
    restriction = chat_restriction(budgeted, None, compiler, vocab, param="response_format")
    assert isinstance(restriction, ReasoningBudget)
    assert restriction.n_tokens == 3
    assert isinstance(
        chat_restriction(replace(budgeted, calls=None), None, compiler, vocab, param="response_format"), ReasoningBudget
    )


def test_a_demanded_call_leaves_nothing_to_hold_content_to_and_a_possible_one_is_refused_beside_it() -> None:
    compiler, vocab = Compiler(), FakeVocabulary()
    calling = PreparedChat((BOS,), calls=CALLS, has_tools=True)
    assert (
        chat_restriction(replace(calling, must_call=True), CONTENT, compiler, vocab, param="response_format")
        is not None
    )
    assert compiler.specs == [CALLS]
    with pytest.raises(BadRequest, match="tool_choice") as caught:
        chat_restriction(calling, CONTENT, compiler, vocab, param="response_format")
    assert caught.value.param == "response_format"


def test_an_answer_that_may_call_or_have_restricted_content_is_held_to_either() -> None:
    compiler = Compiler()
    frame = GrammarSpec(GrammarKind.LARK, "start: @content")
    chat = PreparedChat((BOS,), calls=CALLS, has_tools=True, content_frame=frame)
    restriction = chat_restriction(chat, CONTENT, compiler, FakeVocabulary(), param="response_format")
    assert isinstance(restriction, Either)
    assert compiler.specs == [replace(frame, content=CONTENT), CALLS]
    assert compiler.params == ["response_format", "tools"]


def test_calls_that_cannot_be_compiled_are_tried_without_what_is_not_strict() -> None:
    looser = GrammarSpec(GrammarKind.LARK, "start: looser")
    chat = PreparedChat((BOS,), calls=CALLS, make_looser_calls=lambda: looser, has_tools=True)
    compiler = Compiler(refused=CALLS)
    assert chat_restriction(chat, None, compiler, FakeVocabulary(), param="") is not None
    assert compiler.specs == [CALLS, looser]
    with pytest.raises(BadGrammar, match="no"):
        chat_restriction(
            replace(chat, make_looser_calls=lambda: CALLS), None, Compiler(refused=CALLS), FakeVocabulary(), param=""
        )


def test_of_strict_functions_the_one_at_fault_is_named() -> None:
    fault = GrammarSpec(GrammarKind.JSON_SCHEMA, '{"not": {}}')
    place = "tools[1].function.parameters"
    chat = PreparedChat((BOS,), calls=fault, has_tools=True, strict_arguments={place: fault})
    compiler = Compiler(refused=fault)
    with pytest.raises(BadGrammar):
        chat_restriction(chat, None, compiler, FakeVocabulary(), param="")
    assert compiler.params == ["tools", place]

"""From a conversation to what the engine needs of it. Any thread; templates and tokenisers block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from llamaserve.chat.boundaries import message_boundaries
from llamaserve.chat.call_arguments import check_call_arguments
from llamaserve.chat.call_grammar import call_grammar
from llamaserve.chat.call_grammar_content import content_frame
from llamaserve.chat.message import ContentParser, MessageParser
from llamaserve.chat.reasoning_budget import ReasoningMarks
from llamaserve.chat.template import PLAIN_CHAT, CallForm, ChatOptions, ChatTemplate, Messages, RenderedChat
from llamaserve.chat.tool_schemas import check_tools, strict_arguments
from llamaserve.engine.port import Vocabulary
from llamaserve.grammar.spec import GrammarKind, GrammarSpec, Trigger, TriggerKind


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation, ready to be answered."""

    tokens: tuple[int, ...]
    stops: tuple[str, ...] = ()
    """Strings that end the answer, of the template's."""
    boundaries: tuple[int, ...] = ()
    """Positions where messages end, if they were asked for."""
    calls: GrammarSpec | None = None
    """What the answer's tool calls are restricted to; None where nothing restricts them."""
    make_looser_calls: Callable[[], GrammarSpec] | None = None
    """Makes the same without the schemas of functions that are not strict, for when ``calls`` cannot be compiled."""
    strict_arguments: Mapping[str, GrammarSpec] = field(default_factory=dict)
    """What the arguments of strict functions are held to, by where the request says so."""
    content_frame: GrammarSpec | None = None
    """Where content will be restricted and the answer may call a tool: what stands around the content of an answer that
    calls none. ``calls`` are whole answers then too."""
    has_tools: bool = False
    """Whether the answer may call a tool."""
    must_call: bool = False
    """Whether it has to."""
    make_parser: Callable[[], MessageParser] = ContentParser
    """Makes what reads one answer."""
    visible_tokens: Mapping[int, bytes] = field(default_factory=dict)
    """Control tokens that the parser has to see in the text, with how they are written."""
    reasoning: ReasoningMarks | None = None
    """Where the reasoning of an answer begins and ends; None where the template has none."""
    reasoning_budget: int | None = None
    """The most tokens it may have; None = any number."""
    content_after: str = ""
    """A text of the answer that its content begins behind, if that was asked for: what content is restricted to holds
    from there on. "" = it begins at once."""


def prepare_chat(
    messages: Messages,
    template: ChatTemplate,
    vocab: Vocabulary,
    tokenize: Callable[[str], Sequence[int]],
    options: ChatOptions = PLAIN_CHAT,
    *,
    wants_boundaries: bool = False,
) -> PreparedChat:
    """Render and tokenise a conversation.

    ``tokenize`` reads the whole text, and may refuse it. Raises BadTemplate when the template refuses the messages,
    BadRequest for arguments of calls that are nested too deep, BadGrammar for parameters of tools that cannot be
    enforced.
    """
    check_call_arguments(messages)
    check_tools(options.tools)
    rendered = template.render(messages, options)
    tokens = tuple(tokenize(rendered.prompt))
    calls, make_looser_calls, content_frame = _restrictions(rendered, messages, template, options, vocab)
    return PreparedChat(
        tokens=tokens,
        stops=rendered.stops,
        boundaries=message_boundaries(template, messages, vocab, tokens, options) if wants_boundaries else (),
        calls=calls,
        make_looser_calls=make_looser_calls,
        strict_arguments=strict_arguments(options.tools) if calls is not None else {},
        content_frame=content_frame,
        has_tools=bool(options.tools),
        must_call=options.must_call,
        make_parser=rendered.make_parser,
        visible_tokens=_visible_tokens(rendered.marks, vocab),
        reasoning=_reasoning(rendered),
        content_after=rendered.content_mark or (rendered.reasoning_end if rendered.begins_with_reasoning else ""),
    )


class _Restrictions(NamedTuple):
    """As in PreparedChat."""

    calls: GrammarSpec | None = None
    make_looser_calls: Callable[[], GrammarSpec] | None = None
    content_frame: GrammarSpec | None = None


def _restrictions(
    rendered: RenderedChat, messages: Messages, template: ChatTemplate, options: ChatOptions, vocab: Vocabulary
) -> _Restrictions:
    frame: GrammarSpec | None = None
    if rendered.call_form is not None and options.wants_content_mark and options.tools and not options.must_call:
        frame = _content_frame(rendered, rendered.call_form, vocab)
        # An answer either calls or has content, so its calls are those of one that must call.
        options = replace(options, must_call=True)
        rendered = template.render(messages, options)
    form = rendered.call_form
    if form is None or not (options.must_call or form.triggers):
        return _Restrictions()
    make = partial(_calls, rendered, form, options, vocab)
    return _Restrictions(make(only_strict=False), partial(make, only_strict=True), frame)


def _calls(
    rendered: RenderedChat, form: CallForm, options: ChatOptions, vocab: Vocabulary, *, only_strict: bool
) -> GrammarSpec:
    source = call_grammar(
        form.parser,
        options.tools,
        partial(spelled, vocab=vocab),
        must_call=options.must_call,
        in_parallel=form.in_parallel,
        only_strict=only_strict,
    )
    if options.must_call:
        return GrammarSpec(GrammarKind.LARK, source, prefix=rendered.generation_prompt)
    # A reasoning may speak of calls.
    after = rendered.reasoning_end if rendered.begins_with_reasoning else ""
    return GrammarSpec(GrammarKind.LARK, source, _triggers(form), after=after)


def _content_frame(rendered: RenderedChat, form: CallForm, vocab: Vocabulary) -> GrammarSpec | None:
    source = content_frame(form.parser, rendered.generation_prompt, partial(spelled, vocab=vocab))
    return None if source is None else GrammarSpec(GrammarKind.LARK, source, prefix=rendered.generation_prompt)


def _triggers(form: CallForm) -> tuple[Trigger, ...]:
    return tuple(
        Trigger(TriggerKind.PATTERN if trigger.is_pattern else TriggerKind.WORD, trigger.value)
        for trigger in form.triggers
    )


def spelled(text: str, vocab: Vocabulary) -> Sequence[str | int]:
    """A text as control tokens of the vocabulary, but for those that end an answer, and the texts between them."""
    parts: list[str | int] = []
    rest = text
    for token, written in _control_tokens(text, vocab):
        before, found, behind = rest.partition(written)
        if found:
            parts += [before, token] if before else [token]
            rest = behind
    return [*parts, rest] if rest else parts


def _control_tokens(text: str, vocab: Vocabulary) -> Iterator[tuple[int, str]]:
    for token in vocab.tokenize(text, add_special=False, parse_special=True):
        if not vocab.detokenize([token], special=False) and not vocab.is_eog(token):
            written = vocab.detokenize([token], special=True).decode(errors="replace")
            if written:
                yield token, written


def _visible_tokens(marks: Iterable[str], vocab: Vocabulary) -> Mapping[int, bytes]:
    """The control tokens among the marks. Those that end an answer never come in its text."""
    return {token: written.encode() for mark in marks for token, written in _control_tokens(mark, vocab)}


def _reasoning(rendered: RenderedChat) -> ReasoningMarks | None:
    if not rendered.reasoning_end:
        return None
    return ReasoningMarks(rendered.reasoning_start, rendered.reasoning_end, rendered.begins_with_reasoning)

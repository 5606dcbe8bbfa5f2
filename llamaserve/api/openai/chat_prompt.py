"""From the body of a chat to what the engine needs of it. Preparing threads only: templates and tokenisers block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import msgspec

from llamaserve.api.openai.body import ChatBody
from llamaserve.api.openai.chat_messages import TemplateMessage, template_messages
from llamaserve.api.openai.tokenizing import tokenize
from llamaserve.chat.prepared import PreparedChat, prepare_chat
from llamaserve.chat.template import ChatOptions, ChatTemplate
from llamaserve.chat.tools import read_tool_use
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import BadRequest, BadTemplate, PromptTooLong, shown

REASONING_FORMATS = {"auto": True, "deepseek": True, "none": False}
"""Whether reasoning is given apart from the content."""
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
BUDGET_FIELDS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")
"""Spellings of the most tokens a reasoning may have; the first that is given counts."""
NO_BUDGET = -1
MAX_VARIABLES_BYTES = 64 * 1024
"""JSON of the template's variables."""


def chat_prompt(
    body: ChatBody,
    template: ChatTemplate | None,
    vocab: Vocabulary,
    n_ctx: int,
    *,
    wants_boundaries: bool = False,
    wants_content_mark: bool = False,
) -> PreparedChat:
    """A conversation as tokens, with what its answer will be read and restricted by. ``wants_content_mark``: what its
    content may be will be restricted too.

    Raises BadRequest for messages, tools and options we cannot use, BadTemplate when the template cannot render them,
    PromptTooLong for a text far over the context and, before anything is rendered, for more messages than the context
    has tokens.
    """
    usable, messages, options = _conversation(body, template, n_ctx)
    prepared = prepare_chat(
        messages,
        usable,
        vocab,
        partial(tokenize, vocab=vocab, n_ctx=n_ctx),
        replace(options, wants_content_mark=wants_content_mark),
        wants_boundaries=wants_boundaries,
    )
    return _with_budget(prepared, body)


def chat_text(body: ChatBody, template: ChatTemplate | None, n_ctx: int) -> str:
    """A conversation as its template writes it. Raises what ``chat_prompt`` raises."""
    usable, messages, options = _conversation(body, template, n_ctx)
    return usable.render(messages, options).prompt


def _conversation(
    body: ChatBody, template: ChatTemplate | None, n_ctx: int
) -> tuple[ChatTemplate, list[TemplateMessage], ChatOptions]:
    """What is rendered, and how."""
    if template is None:
        raise BadTemplate("the model has no chat template: use /v1/completions")
    # Templates take their time for each message, not for its text, of which they may leave some out. A message is a
    # token at least: a template marks where each begins.
    if len(body.messages) > n_ctx:
        raise PromptTooLong(len(body.messages), n_ctx, is_at_least=True)
    messages = template_messages(body.messages)
    options = _chat_options(body)
    if options.continue_final_message:
        _check_continued(messages)
    return template, messages, options


def _chat_options(body: ChatBody) -> ChatOptions:
    use = read_tool_use(body.tools, body.tool_choice)
    if body.continue_final_message and body.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt are both true: an answer is begun anew or gone on with",
            "continue_final_message",
        )
    variables, enable_thinking = _variables(body)
    return ChatOptions(
        tools=use.tools,
        must_call=use.must_call,
        parallel_calls=False if use.is_named else body.parallel_tool_calls,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        enable_thinking=enable_thinking,
        extract_reasoning=_extracts_reasoning(body),
        variables=variables,
    )


def _variables(body: ChatBody) -> tuple[Mapping[str, object], bool]:
    """The template's variables, and whether the model shall reason."""
    variables = dict(body.chat_template_kwargs or {})
    size = len(msgspec.json.encode(variables))
    if size > MAX_VARIABLES_BYTES:
        raise BadRequest(
            f"chat_template_kwargs has {size} bytes: at most {MAX_VARIABLES_BYTES} are allowed", "chat_template_kwargs"
        )
    enable_thinking = variables.pop("enable_thinking", None)
    if enable_thinking is None:
        enable_thinking = True
    if not isinstance(enable_thinking, bool):
        param = "chat_template_kwargs.enable_thinking"
        raise BadRequest(f"{param} is {shown(enable_thinking)}: it must be true or false", param)
    effort = body.reasoning_effort
    if effort is not None and effort not in REASONING_EFFORTS:
        raise BadRequest(
            f"reasoning_effort is {shown(effort)}: it must be one of {', '.join(REASONING_EFFORTS)}", "reasoning_effort"
        )
    if effort == "none":
        return variables, False
    if effort is not None:
        variables["reasoning_effort"] = effort
    return variables, enable_thinking


def _extracts_reasoning(body: ChatBody) -> bool:
    given = "auto" if body.reasoning_format is None else body.reasoning_format
    if given not in REASONING_FORMATS:
        raise BadRequest(
            f"reasoning_format is {shown(given)}: it must be one of {', '.join(REASONING_FORMATS)}", "reasoning_format"
        )
    return REASONING_FORMATS[given]


def _check_continued(messages: list[TemplateMessage]) -> None:
    last, path = messages[-1], f"messages[{len(messages) - 1}]"
    if last["role"] != "assistant":
        raise BadRequest(
            f"continue_final_message: {path}.role is {shown(last['role'])}: only an assistant's message can be gone on "
            "with",
            "continue_final_message",
        )
    if "tool_calls" in last:
        raise BadRequest(
            f"continue_final_message: {path} has tool_calls: such a message is complete", "continue_final_message"
        )


def _with_budget(prepared: PreparedChat, body: ChatBody) -> PreparedChat:
    for name in BUDGET_FIELDS:
        budget: int | None = getattr(body, name)
        if budget is None or budget == NO_BUDGET:
            continue
        if budget < 0:
            raise BadRequest(f"{name} is {budget}: it must be at least 0, or -1 for no limit", name)
        if prepared.reasoning is None:
            raise BadRequest(f"{name} is {budget}: the model's template knows no reasoning; leave it out", name)
        return replace(prepared, reasoning_budget=budget)
    return prepared

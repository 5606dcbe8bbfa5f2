"""Request fields outside our typed bodies: which are harmless, which must be refused, which are news. Any thread.

Clients send many fields. One that would change the result and that we cannot honour is refused by name, so that no
answer silently ignores what was asked for; one without effect on the result is accepted; an unknown one is accepted
with a warning, once for each name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from llamaserve.errors import BadRequest, shown

logger = logging.getLogger("llamaserve.api")

MAX_NAMES_WARNED = 1000  # clients choose the names, so what is remembered of them is bounded
MAX_NAME_LENGTH = 64

HARMLESS_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "n_cache_reuse",
        "n_keep",
        "n_discard",
        "id_slot",
        "t_max_prompt_ms",
        "request_id",
        "guided_decoding_backend",
    }
)

UNHONOURED_FIELDS: Mapping[str, tuple[object, ...]] = {
    # OpenAI
    "echo": (False,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"], []),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "reasoning_format": (),
    "reasoning_budget": (-1,),
    "reasoning_budget_tokens": (-1,),
    "thinking_budget_tokens": (-1,),
    "thinking_token_budget": (-1,),
    "reasoning_budget_message": ("",),
    "reasoning_budget_start_tag": ("",),
    "reasoning_budget_end_tag": ("",),
    "reasoning_budget_end_tags": ([],),
    "reasoning_control": (False,),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "thinking": (True, {"type": "enabled"}),
    "enable_thinking": (True,),
    "verbosity": ("medium",),
    "verbose": (False,),
    # structured output
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "preserved_tokens": ([],),
    "parse_tool_calls": (True,),
    "chat_parser": ("",),
    "repetition_detection": ({},),
    "guided_whitespace_pattern": ("",),
    "structural_tag": ("",),
    # the chat template
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "generation_prompt": ("",),
    "add_special_tokens": (False,),
    "prompt_embeds": ([],),
    # samplers we do not have
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "stop_regex": ("", []),
    "no_stop_trim": (False,),
    "min_new_tokens": (0,),
    "max_new_tokens": (),
    "logits_processors": ([],),
    "custom_logit_processor": ("",),
    "backend_sampling": (False,),
    # what the answer shows and where it runs
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "response_fields": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_token_strs": (False,),
    "return_hidden_states": (False,),
    "post_sampling_probs": (False,),
    "truncate_prompt_tokens": (-1,),
    "lora": ([],),
    "lora_path": ("",),
}
"""Fields that change the result and that we do not honour, with the values that ask for nothing. Some of them one
endpoint honours and another does not."""

INSTEAD: Mapping[str, str] = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "chat_template": "the model's own template is used",
    "enable_thinking": "use chat_template_kwargs.enable_thinking",
    "thinking": "use chat_template_kwargs.enable_thinking, or reasoning_effort",
    "documents": "put them into a message",
    "min_new_tokens": "use min_tokens",
    "max_new_tokens": "use max_tokens",
}
"""What to do about some of them."""


def refuse_unhonoured(fields: Mapping[str, object], known: Collection[str]) -> None:
    """Raise BadRequest for the first field that is not ``known`` and asks for something we do not do. null asks for
    nothing."""
    for name, value in fields.items():
        neutral = None if name in known else UNHONOURED_FIELDS.get(name)
        if neutral is None or value is None or any(_is_same(value, allowed) for allowed in neutral):
            continue
        instead = INSTEAD.get(name, "leave it out")
        raise BadRequest(f"{name} is {shown(value)}: this server does not support it; {instead}", name)


def _is_same(value: object, allowed: object) -> bool:
    # In Python True == 1; in JSON they are different values.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


class UnknownFieldLog:
    """Warns of what has no effect: fields nobody reads, and values that are left out. Once for each. Any thread."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def note(self, fields: Mapping[str, object], known: Iterable[str], prefix: str = "") -> None:
        """Warn of the fields that are not null, not ``known``, and in neither of our tables."""
        for name in fields.keys() - set(known) - HARMLESS_FIELDS - UNHONOURED_FIELDS.keys():
            if fields[name] is not None:
                self._warn((prefix + name)[:MAX_NAME_LENGTH], "request field %r is unknown here and has no effect")

    def note_left_out(self, field: str, value: str) -> None:
        """Warn of one of the values of a field."""
        self._warn(f"{field}: {value}", "request field %r has no effect here")

    def _warn(self, what: str, message: str) -> None:
        if what not in self._names and len(self._names) < MAX_NAMES_WARNED:
            self._names.add(what)
            logger.warning(message, what)

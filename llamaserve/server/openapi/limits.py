"""What values a body's fields may have, beyond their types: the document says them, the code that reads a body refuses
others. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamaserve.api.openai.chat_messages import ROLES
from llamaserve.api.openai.choices import MAX_CHOICES
from llamaserve.api.openai.sampling import OFF_BELOW_0, SAMPLING_ALIASES, SEED_RANGE
from llamaserve.api.openai.shown import MAX_CHAT_TOP, MAX_TOP
from llamaserve.request import MAX_NAME_LENGTH
from llamaserve.sampling import INT_RANGES, RANGES
from llamaserve.service import MAX_TIMEOUT_S

_SAMPLING: Mapping[str, Mapping[str, Any]] = {
    name: {"maximum": most} if name in OFF_BELOW_0 else {"minimum": least, "maximum": most}
    for name, (least, most) in {**RANGES, **INT_RANGES}.items()
}
FIELD_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "role": {"enum": sorted(ROLES)},
    **_SAMPLING,
    "min_tokens": {"minimum": 0},  # its maximum is max_tokens
    **{alias: _SAMPLING[name] for name, alias in SAMPLING_ALIASES.items()},
    "seed": {"minimum": SEED_RANGE[0], "maximum": SEED_RANGE[1]},
    "max_tokens": {"minimum": -1},
    "max_completion_tokens": {"minimum": -1},
    "n_predict": {"minimum": -1},
    "n_indent": {"minimum": 0},
    "t_max_predict_ms": {"minimum": -1},
    "n": {"minimum": 1, "maximum": MAX_CHOICES},
    "n_cmpl": {"minimum": 1, "maximum": MAX_CHOICES},
    "n_probs": {"minimum": 0, "maximum": MAX_TOP},
    "top_logprobs": {"minimum": 0, "maximum": MAX_CHAT_TOP},
    "session": {"minLength": 1, "maxLength": MAX_NAME_LENGTH},
    "cache_salt": {"maxLength": MAX_NAME_LENGTH},
    "timeout": {"exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S},
    "sse_ping_interval": {"minimum": -1, "maximum": MAX_TIMEOUT_S},
}
"""By the name of the field, which means the same in every body."""


def with_limits(components: Mapping[str, Mapping[str, Any]], bodies: frozenset[str]) -> dict[str, Any]:
    """The schemas, those of ``bodies`` with the limits of their fields."""
    return {name: _limited(schema) if name in bodies else schema for name, schema in components.items()}


def _limited(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = {
        name: _with(field, FIELD_LIMITS[name]) if name in FIELD_LIMITS else field
        for name, field in schema["properties"].items()
    }
    return {**schema, "properties": properties}


def _with(field: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """A field that may be null has its limits beside that."""
    if "anyOf" not in field:
        return {**field, **limits}
    options = [option if option.get("type") == "null" else {**option, **limits} for option in field["anyOf"]]
    return {**field, "anyOf": options}

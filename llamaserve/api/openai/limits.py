"""How long a request may take, how urgent it is and where its text ends early: from the body or a header. Any thread.

The body wins. A timeout's header that cannot be read is an error like a field that cannot: a deadline that silently is
none would be found when it is needed.
"""

from __future__ import annotations

import re

from llamaserve.api.openai.body import GenerationBody
from llamaserve.config import PriorityHeader
from llamaserve.errors import BadRequest, shown
from llamaserve.request import Lane
from llamaserve.scheduler.lanes import parse_field, parse_header
from llamaserve.service import MAX_TIMEOUT_S

TIMEOUT_HEADER = "x-request-timeout"
PRIORITY_HEADER = "x-priority"
NO_PRIORITY = 0
"""vLLM's default, which many clients send: it asks for nothing. There smaller numbers are more urgent."""
OFF_INTERVALS = (-1, 0)
"""Ping intervals that mean never: llama-server's and ours."""
_SECONDS = re.compile(r"[0-9]{1,16}(\.[0-9]{0,16})?|\.[0-9]{1,16}")


def timeout_s(body: GenerationBody, header: str | None) -> float | None:
    """Seconds from the queue to the last token; None is without limit, as is an empty header.

    Raises BadRequest, under the name the client used, when it is no number above 0 and at most 30 days.
    """
    if body.timeout is not None:
        return _checked("timeout", body.timeout, body.timeout)
    if header is None or not header.strip():
        return None
    text = header.strip()
    return _checked(TIMEOUT_HEADER, float(text) if _SECONDS.fullmatch(text) else None, text)


def lane(body: GenerationBody, header: str | None, honoured: PriorityHeader, most_urgent: Lane | None = None) -> Lane:
    """The lane a request asks for, as far as that is ``honoured``; a wish that is not is no error. A caller whose key
    says how urgent its requests may be, ``most_urgent``, has that instead.

    Raises BadRequest when the body names none; a header that names none is Normal (K142).
    """
    given = body.priority
    if given is None or given == NO_PRIORITY:
        wanted = parse_header(header)
    elif isinstance(given, int):
        wanted = Lane.HIGH if given < NO_PRIORITY else Lane.LOW
    else:
        wanted = parse_field(given)
    if most_urgent is not None:
        return wanted.at_most(most_urgent)
    if honoured is PriorityHeader.OFF:
        return Lane.NORMAL
    return wanted if honoured is PriorityHeader.ON else wanted.at_most(Lane.NORMAL)


def ping_interval_s(body: GenerationBody, default_s: float) -> float:
    """Seconds of silence after which a stream sends a comment; 0 = never. Raises BadRequest below -1 and above 30
    days."""
    interval = body.sse_ping_interval
    if interval is None:
        return default_s
    if interval in OFF_INTERVALS:
        return 0.0
    if not 0 < interval <= MAX_TIMEOUT_S:
        raise BadRequest(
            f"sse_ping_interval is {shown(interval)}: it must be a whole number of seconds from 1 to {MAX_TIMEOUT_S}, "
            "or -1 for never",
            "sse_ping_interval",
        )
    return float(interval)


def min_indent(body: GenerationBody) -> int:
    """Characters of indentation that each further line has at least. Raises BadRequest below 0."""
    n_indent = body.n_indent or 0
    if n_indent < 0:
        raise BadRequest(f"n_indent is {shown(n_indent)}: it must be a whole number of at least 0", "n_indent")
    return n_indent


def max_decode_s(body: GenerationBody) -> float | None:
    """Seconds from the first token after which the text ends with a line; None for no limit, which is 0 or -1. Raises
    BadRequest below -1."""
    limit_ms = body.t_max_predict_ms or 0
    if limit_ms < -1:
        raise BadRequest(
            f"t_max_predict_ms is {shown(limit_ms)}: it must be a whole number of milliseconds, or -1 for no limit",
            "t_max_predict_ms",
        )
    return min(limit_ms, 1000 * MAX_TIMEOUT_S) / 1000 if limit_ms > 0 else None


def _checked(name: str, seconds: float | None, given: object) -> float:
    if seconds is None or not 0 < seconds <= MAX_TIMEOUT_S:
        raise BadRequest(
            f"{name} is {shown(given)}: it must be a number of seconds above 0, at most {MAX_TIMEOUT_S} (30 days)", name
        )
    return seconds

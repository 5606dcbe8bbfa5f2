"""From a drawn token to text and, maybe, an end: what one row of a step does to its request. No engine, no slots."""

from __future__ import annotations

from itertools import starmap
from typing import NamedTuple

from llamaserve.engine.port import RowOutput
from llamaserve.request import Finished, FinishReason, PromptLogprobs, TextDelta, Timings, TokenLogprob
from llamaserve.scheduler.finish import finish_reason
from llamaserve.scheduler.slot import Work


class Intake(NamedTuple):
    """What a token brought."""

    delta: TextDelta | None
    reason: FinishReason | None
    """Why the request ends with it; None if it goes on."""


def take_token(
    work: Work, token: int, output: RowOutput, *, now: float, n_ctx_seq: int, is_complete: bool = False
) -> Intake:
    """Add a drawn token to its request (E7). ``is_complete``: its restriction wants it to be the last."""
    if work.first_token_at is None:
        work.first_token_at = now
    is_eog = output.is_eog
    text = ""
    if not is_eog:
        work.generated.append(token)
        text = _in_lines(work, work.text.push(output.piece or work.request.visible_tokens.get(token, b"")), now)
    reason = finish_reason(
        is_eog=is_eog,
        is_stopped=work.text.stop_sequence is not None,
        is_line_over=work.lines is not None and work.lines.is_over,
        n_generated=work.n_generated,
        max_tokens=work.request.max_tokens,
        n_prompt=work.n_prompt,
        n_ctx_seq=n_ctx_seq,
        is_complete=is_complete,
    )
    if reason is not None:
        text += _in_lines(work, work.text.flush(), now)
    if is_eog:
        return Intake(TextDelta(text, ()) if text else None, reason)
    logprobs = () if work.request.logprobs is None else tuple(starmap(TokenLogprob, output.scores[-1:]))
    return Intake(TextDelta(text, (token,), logprobs), reason)


def _in_lines(work: Work, text: str, now: float) -> str:
    """What of the text the limits of its lines leave."""
    if work.lines is None or work.first_token_at is None:
        return text
    return work.lines.take(text, now - work.first_token_at)


def prompt_logprobs(work: Work) -> PromptLogprobs:
    """How likely the prompt was, when all of it is computed; its scores are given away."""
    scores, work.prompt_scores = work.prompt_scores, []
    return PromptLogprobs(tuple(starmap(TokenLogprob, scores)))


def finished(work: Work, reason: FinishReason, now: float) -> Finished:
    """The terminal event of a request that came to its end."""
    first = now if work.first_token_at is None else work.first_token_at
    return Finished(
        reason=reason,
        stop_sequence=work.text.stop_sequence if reason is FinishReason.STOP_SEQUENCE else None,
        prompt_tokens=work.n_prompt,
        completion_tokens=work.n_generated,
        cached_tokens=work.n_cached,
        timings=Timings(
            queue_s=work.admitted_at - work.submitted_at,
            prefill_s=first - work.admitted_at,
            decode_s=now - first,
        ),
    )

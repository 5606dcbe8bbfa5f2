"""How many choices a body asks for, and the request of each of them. Any thread."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from llamaserve.api.openai.body import GenerationBody
from llamaserve.errors import BadRequest, shown
from llamaserve.request import GenerationRequest
from llamaserve.sampling import SEED_MAX

MAX_CHOICES = 128
"""Of all prompts of a request together: OpenAI's limit of ``n``. Each takes a place in the queue."""


def choices_per_prompt(body: GenerationBody) -> int:
    """``n``, or ``n_cmpl``. Raises BadRequest when it is out of range, and for a ``best_of`` that is another number."""
    name = "n" if body.n is not None or body.n_cmpl is None else "n_cmpl"
    n: int = getattr(body, name) if getattr(body, name) is not None else 1
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"{name} is {shown(n)}: it must be a whole number from 1 to {MAX_CHOICES}", name)
    if body.best_of is not None and body.best_of != n:
        raise BadRequest(
            f"best_of is {shown(body.best_of)}: this server returns every choice it computes, so it can only be n, "
            f"which is {n}; leave it out",
            "best_of",
        )
    return n


def check_choices(n_prompts: int, n_per_prompt: int, most_at_once: int | None) -> None:
    """Raise BadRequest for more choices than a request may have, or than the queue can ever take together: they are
    taken all or none."""
    n_choices = n_prompts * n_per_prompt
    if n_prompts > 1:
        param, asked = (
            "prompt",
            f"prompt has {n_prompts} prompts and n is {n_per_prompt}: these are {n_choices} choices",
        )
    else:
        param, asked = "n", f"n is {n_per_prompt}"
    if n_choices > MAX_CHOICES:
        raise BadRequest(f"{asked}, and a request may have at most {MAX_CHOICES}", param)
    if most_at_once is not None and n_choices > most_at_once:
        raise BadRequest(
            f"{asked}, but slots and queue of this server hold {most_at_once}, and a request is taken whole or not at "
            "all; ask for fewer, or start the server with a larger --max-queue-depth",
            param,
        )


def choice_requests(prompts: Sequence[GenerationRequest], n_per_prompt: int) -> tuple[GenerationRequest, ...]:
    """The requests of all choices, those of a prompt side by side. ``prompts`` has one for each prompt, all with the id
    of the answer.

    With a seed choice ``i`` of a prompt draws with ``seed + i``: the first is that of a request for one choice, and all
    are different. Choices that may not use what is cached for others still share their own prompt.
    """
    if len(prompts) == n_per_prompt == 1:
        return tuple(prompts)
    requests: list[GenerationRequest] = []
    for prompt in prompts:
        group = secrets.token_hex(16) if n_per_prompt > 1 and not prompt.cache_prompt else ""
        for choice in range(n_per_prompt):
            request_id = f"{prompt.request_id}-{len(requests)}"
            requests.append(replace(_seeded(prompt, choice), request_id=request_id, prompt_group=group))
    return tuple(requests)


def _seeded(request: GenerationRequest, choice: int) -> GenerationRequest:
    seed = request.sampling.seed
    if seed is None or choice == 0:
        return request
    return replace(request, sampling=replace(request.sampling, seed=(seed + choice) % (SEED_MAX + 1)))

"""What each request of a run asks for. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llamaserve.errors import ConfigError
from llamaserve.loadtest.call import CHAT_PATH, COMPLETIONS_PATH, Call
from llamaserve.loadtest.prompts import distinct_text, shared_text

Endpoint = Literal["completions", "chat"]

OWN_FIELDS = frozenset(
    (
        "ignore_eos",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "prompt",
        "seed",
        "stream",
        "stream_options",
        "temperature",
    )
)
"""Fields of the body that have their own flag or that the counting rests on."""

MOST_TOKENS = 10_000_000  # more than any model reads or writes; the words of a prompt are made in memory


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that differ in their texts only. Raises ConfigError for values that cannot work."""

    endpoint: Endpoint = "completions"
    input_tokens: int = 128
    """Words of the prompt, each about a token; the server's template comes on top."""
    output_tokens: int = 64
    shared_prefix_tokens: int = 0
    """Of the input tokens, those all requests begin with."""
    any_length: bool = False
    """Let the model end its text; otherwise it must write exactly ``output_tokens``."""
    temperature: float = 0.0
    seed: int = 0
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("input", self.input_tokens), ("output", self.output_tokens)):
            if value < 1:
                raise ConfigError(f"{name} tokens are {value}: there must be at least 1")
            if value > MOST_TOKENS:
                raise ConfigError(f"{name} tokens are {value}: there must be at most {MOST_TOKENS}")
        if not 0 <= self.shared_prefix_tokens < self.input_tokens:
            raise ConfigError(
                f"shared prefix tokens are {self.shared_prefix_tokens}: they are part of the {self.input_tokens} "
                f"input tokens, so at most {self.input_tokens - 1}"
            )
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"temperature is {self.temperature}: it must be a number of at least 0")
        if taken := sorted(OWN_FIELDS.intersection(self.extra_body)):
            raise ConfigError(f"the extra body sets {', '.join(taken)}: the load generator sets that itself")

    @property
    def own_tokens(self) -> int:
        """Words of a prompt that are no other prompt's."""
        return self.input_tokens - self.shared_prefix_tokens

    def call(self, number: int, model: str | None, at: float | None = None) -> Call:
        """The request of this number; two numbers, two prompts."""
        body: dict[str, Any] = {**self.extra_body, **self._prompt(number)}
        body |= {"max_tokens": self.output_tokens, "temperature": self.temperature}
        if model is not None:
            body["model"] = model
        if not self.any_length:
            body["ignore_eos"] = True
        if self.temperature > 0:
            body["seed"] = self.seed + number
        return Call(
            body=body,
            path=CHAT_PATH if self.endpoint == "chat" else COMPLETIONS_PATH,
            expected_tokens=None if self.any_length else self.output_tokens,
            at=at,
        )

    def _prompt(self, number: int) -> dict[str, Any]:
        shared = shared_text(self.shared_prefix_tokens, self.seed)
        own = distinct_text(number, self.own_tokens, self.seed)
        if self.endpoint == "completions":
            return {"prompt": f"{shared} {own}" if shared else own}
        system = [{"role": "system", "content": shared}] if shared else []
        return {"messages": [*system, {"role": "user", "content": own}]}

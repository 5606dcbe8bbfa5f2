"""What one HTTP request is answered with: choices of one prompt or of several. Plain values; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llamaserve.api.openai.shown import Shown
from llamaserve.chat.message import ContentParser, MessageParser
from llamaserve.engine.port import Vocabulary


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every answer and chunk of one request repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """A prompt as the answer may show it."""

    tokens: tuple[int, ...]
    echo: str = ""
    """What a completion's text begins with."""
    text: str = ""
    """All of it, control tokens written out, for an answer that shows that."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Choice ``i`` is of prompt ``i // n_per_prompt``."""

    shown: Shown
    prompts: tuple[PlannedPrompt, ...]
    n_per_prompt: int
    vocab: Vocabulary
    make_parser: Callable[[], MessageParser] = ContentParser
    """For the message of each choice of a chat."""

    @property
    def n_choices(self) -> int:
        """Of all prompts."""
        return len(self.prompts) * self.n_per_prompt

    def prompt_of(self, index: int) -> PlannedPrompt:
        """The prompt of a choice."""
        return self.prompts[index // self.n_per_prompt]

"""What a chat template does for the rest of the package. Any thread; the native one releases the GIL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as the model wants to read it."""

    prompt: str
    """Text to tokenise with special tokens added and parsed."""
    stops: tuple[str, ...]
    """Strings that end an answer, besides the model's own end tokens."""


class ChatTemplate(Protocol):
    """Renders conversations."""

    def render(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True) -> RenderedChat:
        """Render OpenAI-shaped messages (role and content); with ``add_generation_prompt`` the text ends where the
        assistant's answer begins. Raises BadTemplate when the template refuses them."""

"""A chat template for tests without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamaserve.chat.template import RenderedChat
from llamaserve.errors import BadTemplate


class FakeTemplate:
    """Writes "role:content" lines and asks for a stop at "|"."""

    def render(self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True) -> RenderedChat:
        """Raises BadTemplate when there is no message."""
        if not messages:
            raise BadTemplate("messages is empty: a conversation has at least 1 message")
        lines = [f"{message['role']}:{message['content']}\n" for message in messages]
        return RenderedChat(prompt="".join([*lines, "assistant:" if add_generation_prompt else ""]), stops=("|",))

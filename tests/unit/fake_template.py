"""A chat template for tests without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, RenderedChat
from llamaserve.errors import BadTemplate


class FakeTemplate:
    """Writes "role:content" lines and asks for a stop at "|"."""

    def render(self, messages: Sequence[Mapping[str, object]], options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        """Raises BadTemplate when the last message is "unspeakable"."""
        if messages and messages[-1]["content"] == "unspeakable":
            raise BadTemplate("the template does not write 'unspeakable'")
        lines = [f"{message['role']}:{message['content']}\n" for message in messages]
        return RenderedChat(
            prompt="".join([*lines, "assistant:" if options.add_generation_prompt else ""]), stops=("|",)
        )

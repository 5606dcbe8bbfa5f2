"""Several system messages before a conversation, for templates that take one. Pure; any thread."""

from __future__ import annotations

from itertools import takewhile

from llamaserve.chat.template import Messages

BETWEEN = "\n\n"


def with_one_system_message(messages: Messages) -> Messages:
    """The messages with those that come first, as far as they are the system's, as one."""
    leading = list(takewhile(lambda message: message.get("role") == "system", messages))
    if len(leading) < 2:
        return messages
    text = BETWEEN.join(str(message["content"]) for message in leading if message.get("content"))
    return [{**leading[0], "content": text}, *messages[len(leading) :]]

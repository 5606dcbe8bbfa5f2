"""Where the messages of a rendered conversation end in its tokens. Any thread; templates and tokenisers block.

An engine that cannot cut a sequence anywhere keeps copies of its state at these positions: the next prompt of the
conversation will most likely agree with this one up to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, ChatTemplate, Messages
from llamaserve.engine.port import Vocabulary
from llamaserve.errors import LlamaServeError


def message_boundaries(
    template: ChatTemplate,
    messages: Messages,
    vocab: Vocabulary,
    prompt: Sequence[int],
    options: ChatOptions = PLAIN_CHAT,
) -> tuple[int, ...]:
    """Ascending positions, 1 to ``len(prompt) - 1``: where what came before the last user message ends, and where the
    last message does, before the answer is asked for.

    ``prompt`` are the tokens of all messages with the generation prompt. Each position is how much of them a shorter
    conversation begins with, rendered and tokenised by itself, so a token that spans two messages belongs to neither.
    A conversation the template or the tokeniser refuses has no boundary. Never fails.
    """
    unasked = replace(options, add_generation_prompt=False, continue_final_message=False)
    last_user = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=0)
    parts = (messages[:last_user], messages) if last_user else (messages,)
    positions = {_agreement(_tokens(template, part, vocab, unasked), prompt) for part in parts}
    return tuple(sorted(position for position in positions if 0 < position < len(prompt)))


def _tokens(template: ChatTemplate, messages: Messages, vocab: Vocabulary, options: ChatOptions) -> Sequence[int]:
    """A conversation without a generation prompt; empty where it cannot be written."""
    try:
        return vocab.tokenize(template.render(messages, options).prompt, add_special=True, parse_special=True)
    except LlamaServeError:
        return ()


def _agreement(tokens: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(tokens, prompt, strict=False)
    differing = (index for index, (token, other) in enumerate(pairs) if token != other)
    return next(differing, min(len(tokens), len(prompt)))

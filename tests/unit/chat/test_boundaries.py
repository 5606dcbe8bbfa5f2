"""Where the messages of a conversation end in its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from llamaserve.chat.boundaries import message_boundaries
from llamaserve.chat.template import PLAIN_CHAT, ChatOptions, ChatTemplate, RenderedChat
from llamaserve.engine.fake import FakeVocabulary
from llamaserve.errors import BadRequest, BadTemplate

Messages = Sequence[Mapping[str, object]]

SYSTEM = {"role": "system", "content": "be brief"}
HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
BYE = {"role": "user", "content": "bye"}


class Lines:
    """Writes "role: content" lines and asks with "assistant: "; a token is a byte."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        lines = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return RenderedChat(lines + ("assistant: " if options.add_generation_prompt else ""), ())


class Picky(Lines):
    """Wants a user's message last, as some templates do, and a generation prompt."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        if not messages or messages[-1]["role"] != "user" or not options.add_generation_prompt:
            raise BadTemplate("the last message must be the user's")
        return super().render(messages, options)


class Forgetful(Lines):
    """Leaves what the assistant said out of all but the last message, as templates do with thoughts."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        kept = [
            message if message["role"] != "assistant" or index == len(messages) - 1 else {**message, "content": ""}
            for index, message in enumerate(messages)
        ]
        return super().render(kept, options)


class Deaf(Lines):
    """Asks for an answer whether it shall or not."""

    def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
        return super().render(messages)


class PairVocabulary(FakeVocabulary):
    """Two characters a token, counted from the start: the end of a text may share a token with what follows."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [sum(text[start : start + 2].encode()) for start in range(0, len(text), 2)]


def boundaries(messages: Messages, template: ChatTemplate, vocab: FakeVocabulary | None = None) -> tuple[int, ...]:
    vocab = vocab or FakeVocabulary()
    prompt = vocab.tokenize(Lines().render(messages).prompt, add_special=True, parse_special=True)
    return message_boundaries(template, messages, vocab, prompt)


def length(text: str) -> int:
    """With a BOS token."""
    return 1 + len(text)


def test_the_history_ends_before_the_last_user_message_and_all_messages_before_the_answer() -> None:
    """K11."""
    history = "system: be brief\nuser: hi\nassistant: hello\n"
    assert boundaries([SYSTEM, HI, HELLO, BYE], Lines()) == (length(history), length(history + "user: bye\n"))


def test_the_first_message_has_nothing_before_it() -> None:
    assert boundaries([HI], Lines()) == (length("user: hi\n"),)


def test_a_system_message_is_history() -> None:
    assert boundaries([SYSTEM, HI], Lines()) == (length("system: be brief\n"), length("system: be brief\nuser: hi\n"))


def test_a_conversation_that_no_user_began_has_its_end_only() -> None:
    assert boundaries([SYSTEM, HELLO], Lines()) == (length("system: be brief\nassistant: hello\n"),)


def test_what_comes_after_the_last_user_message_belongs_to_the_turn() -> None:
    tool = {"role": "tool", "content": "42"}
    history = "user: hi\nassistant: hello\n"
    end = history + "user: bye\nassistant: hello\ntool: 42\n"
    assert boundaries([HI, HELLO, BYE, HELLO, tool], Lines()) == (length(history), length(end))


def test_a_template_that_cannot_write_a_shorter_conversation_gives_no_boundary() -> None:
    assert boundaries([HI], Picky()) == ()
    assert boundaries([SYSTEM, HI, HELLO, BYE], Picky()) == ()


def test_a_template_that_writes_history_in_another_way_is_believed_as_far_as_it_agrees() -> None:
    messages = [HI, HELLO, BYE]
    vocab = FakeVocabulary()
    prompt = vocab.tokenize(Forgetful().render(messages).prompt, add_special=True, parse_special=True)
    history, end = message_boundaries(Forgetful(), messages, vocab, prompt)
    assert history == length("user: hi\nassistant: ")
    assert end == length("user: hi\nassistant: \nuser: bye\n")


def test_a_template_that_always_asks_for_an_answer_gives_no_boundary_at_the_prompts_end() -> None:
    assert boundaries([HI], Deaf()) == ()


def test_a_token_across_the_end_of_a_message_belongs_to_neither_side() -> None:
    for name in ("a", "ab"):
        message = {"role": "user", "content": name}
        n_characters = len(f"user: {name}\n")
        assert boundaries([message], Lines(), PairVocabulary()) == (n_characters // 2,)


class RefusingVocabulary(FakeVocabulary):
    """Takes no text."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raise BadRequest("no")


def test_a_tokenizer_that_refuses_gives_no_boundary() -> None:
    assert message_boundaries(Lines(), [HI], RefusingVocabulary(), [1, 2, 3]) == ()


@pytest.mark.parametrize("prompt", [[], [1], [7, 7, 7]])
def test_a_prompt_that_does_not_agree_at_all_has_no_boundary(prompt: list[int]) -> None:
    assert message_boundaries(Lines(), [SYSTEM, HI], FakeVocabulary(), prompt) == ()


def test_a_message_without_a_role_is_nobodys() -> None:
    class Contents(Lines):
        def render(self, messages: Messages, options: ChatOptions = PLAIN_CHAT) -> RenderedChat:
            return RenderedChat("".join(f"{message['content']}|" for message in messages), ())

    vocab = FakeVocabulary()
    prompt = vocab.tokenize("one|two|?", add_special=True, parse_special=True)
    assert message_boundaries(Contents(), [{"content": "one"}, {"content": "two"}], vocab, prompt) == (9,)

"""A conversation keeps what was said, survives Ctrl-C, and never drops a message silently."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

from llamaserve.cli.conversation import Conversation
from llamaserve.cli.flags import SamplingFlags
from llamaserve.config import SchedulerConfig
from llamaserve.engine.fake import Continuation, FakeEngine, scripted
from llamaserve.errors import DecodeFailed, EngineError
from llamaserve.server_api import Server
from llamaserve.service import Service
from tests.unit.cli.conftest import PlainTemplate


class Talk:
    """A conversation over the fake engine, with what it wrote."""

    def __init__(
        self,
        continuation: Continuation,
        *,
        n_ctx: int = 1024,
        system: str | None = None,
        max_tokens: int | None = None,
        on_write: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.engine = FakeEngine(n_slots=1, n_ctx=n_ctx, continuation=continuation)
        self.server = Server.from_service(Service(self.engine, PlainTemplate(), SchedulerConfig(), "fake"))
        self.out = Written(on_write)
        self.notices = io.StringIO()
        self.conversation = Conversation(
            self.server,
            SamplingFlags(),
            system=system,
            max_tokens=max_tokens,
            stop=(),
            out=self.out,
            notices=self.notices,
        )

    def run(self, *lines: str | BaseException) -> None:
        """Give the lines, raising those that are exceptions, then the end of input."""
        given = iter([*lines, EOFError()])

        def read_line() -> str:
            line = next(given)
            if isinstance(line, BaseException):
                raise line
            return line

        self.conversation.run(read_line)
        self.n_unread = len(list(given))

    @property
    def said(self) -> list[str]:
        return [f"{message['role']}: {message['content']}" for message in self.conversation.messages]


class Written(io.StringIO):
    """Output that tells somebody what is written."""

    def __init__(self, on_write: Callable[[str], None]) -> None:
        super().__init__()
        self._on_write = on_write

    def write(self, text: str) -> int:
        n_written = super().write(text)
        self._on_write(text)
        return n_written


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    talks: list[Talk] = []

    def new_talk(continuation: Continuation, **options: object) -> Talk:
        talks.append(Talk(continuation, **options))  # type: ignore[arg-type]  # passed through
        return talks[-1]

    yield new_talk
    for each in talks:
        each.server.close()


HELLO = scripted(
    {
        "user: hi|assistant:": "hello",
        "user: hi|assistant: hello|user: more|assistant:": "again",
        "user: more|assistant:": "what?",
    }
)


def test_the_model_sees_what_was_said_before(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run("hi\n", "more\n")
    assert chat.out.getvalue() == "hello\nagain\n"
    assert chat.said == ["user: hi", "assistant: hello", "user: more", "assistant: again"]


def test_a_cleared_conversation_starts_anew(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run("hi", "/clear", "more")
    assert chat.out.getvalue() == "hello\nwhat?\n"
    assert chat.notices.getvalue() == "[a new conversation]\n"


def test_a_cleared_conversation_keeps_its_system_message(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO, system="be brief")
    chat.run("/clear")
    assert chat.said == ["system: be brief"]


def test_exit_ends_before_the_end_of_input(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run("/exit", "hi")
    assert (chat.out.getvalue(), chat.n_unread) == ("", 2)


def test_empty_lines_are_not_sent_and_unknown_commands_get_help(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run("", "   ", "/what")
    assert chat.said == []
    assert "/clear" in chat.notices.getvalue()
    assert "/exit" in chat.notices.getvalue()


def test_a_stopped_answer_stays_as_far_as_it_came(talk: Callable[..., Talk]) -> None:
    def interrupt(text: str) -> None:
        if text == "c":
            raise KeyboardInterrupt

    chat = talk(scripted({"user: letters|assistant:": "abcdefgh"}), on_write=interrupt)
    chat.run("letters")
    assert chat.said == ["user: letters", "assistant: abc"]
    assert chat.notices.getvalue() == "[stopped]\n"


def test_a_stopped_answer_is_cancelled_in_the_engine(talk: Callable[..., Talk]) -> None:
    """S54"""

    def interrupt(text: str) -> None:
        if text == "c":
            raise KeyboardInterrupt

    chat = talk(lambda history: ord("c"), on_write=interrupt)
    chat.run("go", "/clear")
    chat.server.close()
    assert chat.server.service.stats().requests_cancelled == 1


def test_a_message_that_was_stopped_before_its_answer_is_taken_back(
    talk: Callable[..., Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    chat = talk(HELLO)
    monkeypatch.setattr(chat.server, "chat_stream", interrupt)
    chat.run("hi")
    assert chat.said == []
    assert chat.notices.getvalue() == "[stopped; your message was taken back]\n"


def test_ctrl_c_at_the_prompt_asks_once_and_then_ends(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run(KeyboardInterrupt(), KeyboardInterrupt(), "hi")
    assert (chat.said, chat.n_unread) == ([], 2)
    assert chat.notices.getvalue() == "[press Ctrl-C again to leave]\n"


def test_ctrl_c_at_the_prompt_is_forgotten_when_the_talk_goes_on(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run(KeyboardInterrupt(), "hi", KeyboardInterrupt(), "more")
    assert chat.said[-1] == "assistant: again"


def test_a_conversation_that_no_longer_fits_says_so_and_goes_on_after_clear(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO, n_ctx=40)
    chat.run("hi", "a message that does not fit", "/clear", "hi")
    assert chat.said == ["user: hi", "assistant: hello"]
    assert "the conversation does not fit: " in chat.notices.getvalue()
    assert " tokens of 40; /clear starts a new conversation" in chat.notices.getvalue()
    assert "your message was taken back" in chat.notices.getvalue()


def test_an_answer_that_fills_the_context_says_so(talk: Callable[..., Talk]) -> None:
    chat = talk(lambda history: ord("z"), n_ctx=40)
    chat.run("hi")
    assert chat.said[-1].startswith("assistant: zzz")
    assert "the context is full, the answer ends here; /clear" in chat.notices.getvalue()


def test_an_answer_cut_by_its_limit_says_so(talk: Callable[..., Talk]) -> None:
    chat = talk(lambda history: ord("z"), max_tokens=3)
    chat.run("hi")
    assert chat.said[-1] == "assistant: zzz"
    assert chat.notices.getvalue() == "[the answer ends after 3 tokens (--predict)]\n"


def test_a_message_the_template_refuses_is_taken_back(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.run("unspeakable", "hi")
    assert chat.said == ["user: hi", "assistant: hello"]
    assert chat.notices.getvalue() == "[the template refuses this; your message was taken back]\n"


def test_a_model_that_answers_nothing_is_named(talk: Callable[..., Talk]) -> None:
    chat = talk(scripted({}))
    chat.run("hi")
    assert chat.said == []
    assert chat.notices.getvalue() == "[the model had nothing to say; your message was taken back]\n"


def test_a_failed_engine_ends_the_conversation(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.server.close()
    with pytest.raises(EngineError):
        chat.run("hi")


def test_a_failed_step_ends_the_conversation_with_its_reason(talk: Callable[..., Talk]) -> None:
    chat = talk(HELLO)
    chat.engine.fail_step(DecodeFailed("no luck"), times=100)
    with pytest.raises(EngineError, match="no luck"):
        chat.run("hi")

"""``llamaserve chat``: a conversation on the terminal. Main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from llamaserve.cli.flags import SamplingFlags
from llamaserve.errors import EngineError, LlamaServeError, PromptTooLong
from llamaserve.request import FinishReason
from llamaserve.server_api import Server

HELP = "/clear starts a new conversation, /exit (or Ctrl-D) ends, Ctrl-C stops an answer"
CLEAR_HINT = "/clear starts a new conversation; a larger --ctx-size holds longer ones"

ReadLine = Callable[[], str]
"""The user's next message. Raises EOFError at the end, KeyboardInterrupt at Ctrl-C."""


class Conversation:
    """Messages so far, and the talk that adds to them.

    What the user stops stays as far as it came; a message that got no answer is taken back, so that roles alternate as
    templates want it. Nothing is dropped to make room: a conversation that does not fit says so.
    """

    def __init__(
        self,
        server: Server,
        sampling: SamplingFlags,
        *,
        system: str | None,
        max_tokens: int | None,
        stop: Sequence[str],
        out: TextIO,
        notices: TextIO,
    ) -> None:
        self._server = server
        self._sampling = sampling
        self._system = system
        self._max_tokens = max_tokens
        self._stop = stop
        self._out = out
        self._notices = notices
        self.messages: list[dict[str, str]] = []
        self.has_failed = False
        """Whether some message could not be answered."""
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def introduce(self, model_name: str) -> None:
        """Say who answers and how to end it."""
        self._notice(f"{model_name}: {HELP}")

    def run(self, read_line: ReadLine) -> None:
        """Talk until the user ends it. Raises EngineError when the engine does."""
        is_leaving = False
        while True:
            try:
                line = read_line().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                if is_leaving:
                    return
                is_leaving = True
                self._notice("press Ctrl-C again to leave")
                continue
            is_leaving = False
            if line == "/exit":
                return
            if line == "/clear":
                self.clear()
                self._notice("a new conversation")
            elif line.startswith("/"):
                self._notice(HELP)
            elif line:
                self.say(line)

    def say(self, text: str) -> None:
        """Send a message and write the answer as it comes. Raises EngineError when the engine is down."""
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        notice: str | None = None
        try:
            notice = self._write_answer(answer)
        except KeyboardInterrupt:
            notice = "stopped"
        except PromptTooLong as error:
            notice = f"the conversation does not fit: {error.n_prompt} tokens of {error.n_ctx}; {CLEAR_HINT}"
            self.has_failed = True
        except EngineError:
            raise
        except LlamaServeError as error:
            notice = str(error)
            self.has_failed = True
        if answer:
            self._out.write("\n")
            self._out.flush()
            self.messages.append({"role": "assistant", "content": "".join(answer)})
        else:
            self.messages.pop()
            notice = f"{notice or 'the model had nothing to say'}; your message was taken back"
        if notice:
            self._notice(notice)

    def _write_answer(self, answer: list[str]) -> str | None:
        """Fill ``answer`` as it comes; what the user must know about its end."""
        with self._server.chat_stream(
            self.messages, max_tokens=self._max_tokens, stop=self._stop, **self._sampling.options
        ) as stream:
            for text in stream:
                answer.append(text)
                self._out.write(text)
                self._out.flush()
        if stream.finish_reason is FinishReason.CONTEXT_EXHAUSTED:
            return f"the context is full, the answer ends here; {CLEAR_HINT}"
        if stream.finish_reason is FinishReason.LENGTH:
            return f"the answer ends after {self._max_tokens} tokens (--predict)"
        return None

    def _notice(self, text: str) -> None:
        self._notices.write(f"[{text}]\n")
        self._notices.flush()

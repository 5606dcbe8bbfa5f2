"""A cancel reaches into a running step: it ends early, and whoever is not cancelled never notices (SmolLM2)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from llamaserve.config import Profile
from llamaserve.engine.native import NativeEngine
from llamaserve.engine.port import PromptPiece, RowError, SequenceSpec, StepPlan
from llamaserve.errors import Cancelled
from llamaserve.request import Event, Failed, Finished, GenerationRequest, SamplingParams, TextDelta
from llamaserve.server_api import Server
from llamaserve.service import Service
from tests.native.conftest import LoadEngine
from tests.native.faults import errors_of
from tests.native.greedy import GREEDY, continue_alone, generate, start

SENTENCE = "The old lighthouse keeper wrote every evening what the sea had brought that day. "
N_PROMPT = 5000
N_TEXT = 24
N_CTX = 12288  # split between two


def long_prompt(engine: NativeEngine | Service) -> tuple[int, ...]:
    """A text of 5,000 tokens."""
    tokens = engine.vocab.tokenize(SENTENCE * (N_PROMPT // 10), add_special=True, parse_special=False)
    assert len(tokens) >= N_PROMPT
    return tuple(tokens[:N_PROMPT])


def short_prompt(engine: NativeEngine | Service) -> tuple[int, ...]:
    return tuple(engine.vocab.tokenize("Once upon a time there was", add_special=True, parse_special=False))


@pytest.mark.parametrize(
    ("n_prompt", "n_last_piece"), [(800, 600), pytest.param(N_PROMPT, 2047, marks=pytest.mark.slow)]
)
def test_a_flag_stops_a_long_piece_at_once_and_it_can_run_again(
    load: LoadEngine, default_model: Path, n_prompt: int, n_last_piece: int
) -> None:
    """K12, S56, K116: cells are as before the piece, for its neighbour too, and both texts are as they are alone."""
    engine = load(default_model, n_ctx=N_CTX, n_threads=2, n_slots=2, profile=Profile.PARITY)
    neighbour_text = generate(engine, short_prompt(engine), 8, seq_id=1)
    neighbour = [start(engine, 1, short_prompt(engine)).token, *continue_alone(engine, 1, 2)]
    prompt = long_prompt(engine)[:n_prompt]
    n_before = n_prompt - n_last_piece
    engine.open(SequenceSpec(0, GREEDY))
    for at in range(0, n_before, n_last_piece):
        end = min(at + n_last_piece, n_before)
        (row,) = engine.step(StepPlan(pieces=[PromptPiece(0, prompt[at:end], is_last=False)]))
        assert row.error is None, row.message

    last_piece = PromptPiece(0, prompt[n_before:], is_last=True)
    began_at = time.monotonic()
    (row,) = engine.step(StepPlan(pieces=[last_piece]))
    unstopped_s = time.monotonic() - began_at
    expected = [row.token, *continue_alone(engine, 0, 3)]
    engine.close(0, keep=True)
    assert engine.trim(0, n_before)
    engine.open(SequenceSpec(0, GREEDY))
    cells = engine.used_cells()

    flag = engine.new_flag()
    timer = threading.Timer(0.05, flag.set)
    began_at = time.monotonic()
    timer.start()
    rows = engine.step(StepPlan(decode=[1], pieces=[last_piece]), flag)
    stopped_s = time.monotonic() - began_at
    timer.join()
    assert errors_of(rows) == [RowError.ABORTED] * 2
    assert stopped_s < unstopped_s / 3
    assert engine.used_cells() == cells
    assert engine.length(0) == n_before

    neighbour += continue_alone(engine, 1, 2)
    (row,) = engine.step(StepPlan(pieces=[last_piece]))
    assert [row.token, *continue_alone(engine, 0, 3)] == expected
    assert [*neighbour, *continue_alone(engine, 1, 3)] == neighbour_text


class Consumer(threading.Thread):
    """Reads the events of a request on a thread of its own; an event is set at the first text."""

    def __init__(self, service: Service, request: GenerationRequest) -> None:
        super().__init__()
        self.service = service
        self.request = request
        self.events: list[Event] = []
        self.has_begun = threading.Event()

    def run(self) -> None:
        for event in self.service.stream_blocking(self.request):
            self.events.append(event)
            self.has_begun.set()

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if isinstance(event, TextDelta) for token in event.tokens]


def test_a_request_cancelled_in_its_prompt_does_not_change_the_text_of_another(default_model: Path) -> None:
    """K12, S53, K116: through the scheduler; the other one streams all the while."""
    with Server(default_model, n_ctx=N_CTX, n_slots=2, n_threads=1, profile=Profile.PARITY) as server:
        service = server.service
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        prompt = short_prompt(service)
        alone = Consumer(service, GenerationRequest("alone", prompt, max_tokens=N_TEXT, sampling=sampling))
        alone.run()

        streaming = Consumer(service, GenerationRequest("streaming", prompt, max_tokens=N_TEXT, sampling=sampling))
        cancelled = Consumer(service, GenerationRequest("cancelled", long_prompt(service), max_tokens=4))
        streaming.start()
        assert streaming.has_begun.wait(60)
        cancelled.start()
        while service.stats().active_slots < 2 and streaming.is_alive():
            time.sleep(0.001)
        assert service.cancel("cancelled")
        cancelled.join(60)
        streaming.join(60)

    (end,) = cancelled.events
    assert isinstance(end, Failed)
    assert isinstance(end.error, Cancelled)
    assert isinstance(streaming.events[-1], Finished)
    assert len(streaming.tokens) == N_TEXT
    assert streaming.tokens == alone.tokens

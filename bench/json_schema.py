"""What a JSON Schema costs 8 streams, beside free text and beside llama-server.

Run: make bench-peers, then .venv/bin/python -m bench.json_schema [--rounds N] [-m MODEL]

Each round starts every server anew and has it answer the same 8 prompts twice, all at once, greedy, 128 tokens each:
free, and under a schema whose instances are longer than that, so that all answers have the same length.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.harness.arms import LLAMA_SERVER, LLAMASERVE, Arm
from bench.harness.figures import milliseconds, spread
from bench.harness.models import n_vocab
from bench.harness.options import read_options
from bench.harness.prompts import distinct_prompts
from bench.harness.ratio import paired
from bench.harness.report import Report, Table, publish
from bench.harness.rounds import NotEngaged, alternate
from bench.harness.serving import Setting, serving
from bench.harness.streams import GREEDY, StreamFigures, run_streams, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STREAMS = 8
N_PROMPT = 20
N_GENERATED = 128
N_CTX = 8192
ROUNDS = 5
QUICK_GENERATED = 48

FREE = "free text"
SCHEMA_TEXT = "json_schema"
ARMS = (LLAMASERVE, LLAMA_SERVER)

PERSON: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "enum": ["Berlin", "Cairo", "Lima", "Oslo", "Tokyo"]},
        "is_member": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "city", "is_member", "tags"],
    "additionalProperties": False,
}
SCHEMA: Mapping[str, Any] = {"type": "array", "items": PERSON, "minItems": 100}
"""No instance of it ends within the tokens a run has."""

ByText = Mapping[str, StreamFigures]
Results = Mapping[str, Sequence[ByText]]


def main() -> None:
    """Measure, check the answers, publish."""
    options = read_options(__doc__, rounds=ROUNDS)
    setting = Setting(options.model, options.threads, N_CTX, STREAMS)
    n_generated = QUICK_GENERATED if options.is_quick else N_GENERATED
    vocabulary = n_vocab(options.model)
    not_engaged: list[str] = []

    def run_one(arm: Arm, round_number: int) -> ByText:
        prompts = distinct_prompts(STREAMS, N_PROMPT, 100 * round_number, vocabulary)
        restricted = {**GREEDY, "json_schema": SCHEMA}
        with serving(arm, setting) as running:
            warm_up(running, STREAMS, N_PROMPT, vocabulary)
            run_streams(running, prompts[:1], 4, restricted)  # a server may compile a schema once
            figures = {
                FREE: run_streams(running, prompts, n_generated),
                SCHEMA_TEXT: run_streams(running, prompts, n_generated, restricted),
            }
        broken = [text for text in figures[SCHEMA_TEXT].texts if not is_beginning(text)]
        if broken:
            raise NotEngaged(f"{len(broken)} of {STREAMS} answers are no beginning of an instance: {broken[0]!r}")
        return figures

    results = alternate(ARMS, options.rounds, run_one, not_engaged)
    report = Report(
        scenario="json_schema",
        question=f"What does a JSON Schema cost {STREAMS} streams?",
        command=options.command,
        setting=f"{setting.described()}, {N_PROMPT} prompt tokens, {n_generated} generated, {options.rounds} rounds",
        tables=[rate_table(results), cost_table(results), peer_table(results), itl_table(results)],
        raw={name: [{text: row[text].as_json() for text in row} for row in rounds] for name, rounds in results.items()},
        notes=[
            "A rate counts while all streams run: from the last first token to the first last one.",
            "Texts under the schema are other texts: what they cost beside free ones is the restriction alone, since"
            " every token is one row of one step.",
            f"The schema: an array of at least {SCHEMA['minItems']} objects with a string, an integer with bounds, an"
            " enumeration, a boolean and an array of strings.",
        ],
        results=options.results,
        is_quick=options.is_quick,
        not_engaged=not_engaged,
    )
    publish(report, lambda figure: draw(figure, results))


def is_beginning(text: str) -> bool:
    """Whether a text that was cut begins an instance of the schema: its whole objects are as it says."""
    whole, bracket, _ = text.strip().rpartition("}")
    if not bracket:
        return text.strip().startswith("[")
    try:
        people = json.loads(whole + "}]")
    except ValueError:
        return False
    return isinstance(people, list) and all(map(is_person, people))


def is_person(value: object) -> bool:
    """Whether a value is an instance of ``PERSON``."""
    return (
        isinstance(value, dict)
        and list(value) == PERSON["required"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= PERSON["properties"]["name"]["maxLength"]
        and type(value["age"]) is int
        and 0 <= value["age"] <= PERSON["properties"]["age"]["maximum"]
        and value["city"] in PERSON["properties"]["city"]["enum"]
        and isinstance(value["is_member"], bool)
        and isinstance(value["tags"], list)
    )


def rates(results: Results, name: str, text: str) -> list[float]:
    """One a round."""
    return [row[text].rate for row in results[name]]


def rate_table(results: Results) -> Table:
    """Tokens a second."""
    rows = [[name, *(spread(rates(results, name, text)) for text in (FREE, SCHEMA_TEXT))] for name in results]
    return Table("Decode rate, tok/s over all streams, median (min..max) of the rounds", ["", FREE, SCHEMA_TEXT], rows)


def cost_table(results: Results) -> Table:
    """What a schema leaves of the rate."""
    rows = [[name, str(paired(rates(results, name, SCHEMA_TEXT), rates(results, name, FREE)))] for name in results]
    return Table(f"Ratio of the rates, {SCHEMA_TEXT} / {FREE}, median (min..max)", ["", "ratio"], rows)


def peer_table(results: Results) -> Table:
    """Beside llama-server."""
    rows = []
    for text in (FREE, SCHEMA_TEXT):
        if LLAMASERVE.name in results and LLAMA_SERVER.name in results:
            ratio = paired(rates(results, LLAMASERVE.name, text), rates(results, LLAMA_SERVER.name, text))
            rows.append([text, str(ratio)])
    return Table("Ratio of the rates, llamaserve / llama-server, median (min..max)", ["", "ratio"], rows)


def itl_table(results: Results) -> Table:
    """Gaps between tokens."""
    rows = []
    for name, rounds in results.items():
        for text in (FREE, SCHEMA_TEXT):
            cells = [[row[text].itl_p50 for row in rounds], [row[text].itl_p99 for row in rounds]]
            rows.append([f"{name}, {text}", *(milliseconds(cell) for cell in cells)])
    return Table("Time between tokens of a stream, ms", ["", "p50", "p99"], rows)


def draw(figure: Figure, results: Results) -> None:
    """Rates, free and under the schema."""
    axes = figure.subplots()
    width = 0.38
    for offset, text in ((-width / 2, FREE), (width / 2, SCHEMA_TEXT)):
        cells = [rates(results, name, text) for name in results]
        middle = [statistics.median(cell) for cell in cells]
        spans = [
            [mid - min(cell) for mid, cell in zip(middle, cells, strict=True)],
            [max(cell) - mid for mid, cell in zip(middle, cells, strict=True)],
        ]
        axes.bar([place + offset for place in range(len(cells))], middle, width, yerr=spans, capsize=3, label=text)
    axes.set_xticks(range(len(results)), list(results))
    axes.set_ylabel("decode rate, tok/s (lines: min..max)")
    axes.set_title(f"{STREAMS} streams, free and under a JSON Schema")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    main()

"""What each command does with its flags, where it writes, and how it ends."""

import errno
import importlib.metadata
import io
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llamaserve.api_key import ApiKey
from llamaserve.cli import serving
from llamaserve.cli.model_facts import parameters, quantisation
from llamaserve.config import CacheConfig, FlashAttention, PriorityHeader, Profile
from llamaserve.engine.fake import scripted
from llamaserve.engine.port import MemoryKind
from llamaserve.errors import ConfigError, ModelLoad
from llamaserve.request import Lane
from tests.unit.cli.conftest import MODEL_PATH, FakeParts, Header, Run


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


class Terminal(io.TextIOWrapper):
    """Input that somebody types."""

    def isatty(self) -> bool:
        return True


class Unwritable(io.StringIO):
    """Output that fails at the first flush, as a file does on a full disk and a pipe whose reader has gone."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def flush(self) -> None:
        raise self._error


def test_version_is_the_packages(run: Run) -> None:
    ended = run("--version")
    assert (ended.code, ended.out) == (0, f"llamaserve {importlib.metadata.version('llamaserve')}\n")


@pytest.mark.parametrize("command", ["serve", "chat", "complete", "pull", "info"])
def test_every_command_has_help_that_loads_nothing(run: Run, fake: FakeParts, command: str) -> None:
    ended = run(command, "-h")
    assert ended.code == 0
    assert f"llamaserve {command}" in ended.out
    assert fake.resolved == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance"],
        ["complete"],
        ["complete", "x", "--no-such-flag"],
        ["complete", "x", "-n", "0"],
        ["complete", "x", "-n", "-2"],
        ["complete", "x", "-c", "0"],
        ["complete", "x", "--temp", "hot"],
        ["serve", "-c", "0"],
        ["serve", "-np", "0"],
        ["serve", "-np", "257"],
        ["serve", "--port", "65536"],
        ["serve", "-fa", "maybe"],
        ["serve", "-t", "-1"],
        ["serve", "--preempt-ram", "-1"],
        ["serve", "--lookahead", "3"],
        ["serve", "--drain-timeout", "-1"],
        ["serve", "--sse-ping-interval", "often"],
        ["serve", "--priority-header", "maybe"],
        ["chat", "-s", "-2"],
    ],
)
def test_a_wrong_usage_ends_with_2_and_loads_nothing(run: Run, fake: FakeParts, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err
    assert fake.resolved == []


def test_a_batch_smaller_than_the_slots_ends_with_1_and_names_both(run: Run, fake: FakeParts) -> None:
    """K18"""
    ended = run("serve", "-b", "3", "-np", "4")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == "llamaserve: error: n_batch is 3: it must be at least n_slots, 4"
    assert fake.engine_configs == []


def test_an_error_of_ours_is_one_line_and_ends_with_1(run: Run) -> None:
    ended = run("pull", "missing.gguf")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "llamaserve: error: there is no model file 'missing.gguf'\n"


def test_flags_of_serve_reach_the_configurations(run: Run, fake: FakeParts) -> None:
    flags = "-m a.gguf -c 4096 -np 8 -b 1024 -ub 256 -t 3 -tb 5 -ngl 7 -fa off --no-mmap --mlock --swa-full"
    flags += " --no-gather-cells --check-tensors --profile parity --host 0.0.0.0 --port 9000 -a tiny"
    flags += " --max-queue-tokens 9 --no-queue-aging --target-itl 40.5 --max-batch-prefill 2"
    flags += " --max-batch-prefill-tokens 7 --prefill-grant-interval 5"
    flags += " --max-queue-depth 3 --prefill-chunk-size 64 --mixed-step --no-lookahead --preempt-ram 7"
    flags += " --no-cache-prompt -cram 9 --cache-disk kept,2.5 -sps 0.25 --no-slots"
    flags += " --drain-timeout 2.5 --sse-ping-interval 0 --priority-header cap"
    flags += " --max-body-size 2 --body-timeout 1.5 --cors-origin https://a.b,https://c.d --cors-origins http://e"
    flags += " --ssl-certfile cert.pem --ssl-keyfile key.pem --api-key one,two --api-key three"
    assert run("serve", *shlex.split(flags)).code == 0
    assert fake.resolved == ["a.gguf"]
    engine, scheduler, http = fake.engine_configs[0], fake.scheduler_configs[0], fake.http_configs[0]
    assert engine.model_path == MODEL_PATH
    assert (engine.n_ctx, engine.n_slots, engine.n_batch, engine.n_ubatch) == (4096, 8, 1024, 256)
    assert (engine.n_threads, engine.n_threads_batch, engine.n_gpu_layers) == (3, 5, 7)
    assert (engine.flash_attention, engine.profile) == (FlashAttention.OFF, Profile.PARITY)
    assert (engine.use_mmap, engine.use_mlock, engine.swa_full, engine.check_tensors) == (False, True, True, True)
    assert engine.gather_cells is False
    assert (scheduler.max_queue, scheduler.prefill_chunk, scheduler.mixed_step) == (3, 64, True)
    assert (scheduler.max_queue_tokens, scheduler.queue_aging) == (9, False)
    assert (scheduler.target_itl, scheduler.max_batch_prefill) == (40.5, 2)
    assert (scheduler.max_batch_prefill_tokens, scheduler.prefill_grant_interval) == (7, 5)
    assert (scheduler.lookahead, scheduler.preempt_ram) == (False, 7)
    assert fake.cache_configs == [
        CacheConfig(
            cache_prompt=False,
            cache_ram=9,
            cache_disk=Path("kept"),
            cache_disk_gib=2.5,
            slot_prompt_similarity=0.25,
        )
    ]
    assert (http.host, http.port, http.shows_slots) == ("0.0.0.0", 9000, False)
    assert (http.drain_timeout_s, http.sse_ping_interval_s) == (2.5, 0)
    assert http.priority_header is PriorityHeader.CAP
    assert (http.max_body_bytes, http.body_timeout_s) == (2 * 2**20, 1.5)
    assert http.cors_origins == ("https://a.b", "https://c.d", "http://e")
    assert (http.ssl_certfile, http.ssl_keyfile) == (Path("cert.pem"), Path("key.pem"))
    assert http.api_keys == tuple(map(ApiKey.of, ("one", "two", "three")))
    assert fake.names == ["tiny"]


def test_llama_servers_other_spellings_are_the_same_flags(run: Run, fake: FakeParts) -> None:
    flags = "--model a.gguf --ctx-size 4096 --parallel 2 --batch-size 1024 --ubatch-size 256 --threads 3"
    flags += " --threads-batch 5 --n-gpu-layers 7 --flash-attn off --alias tiny --cache-ram 5"
    flags += " --slot-prompt-similarity 0.5 --ssl-cert-file c --ssl-key-file k"
    assert run("serve", *shlex.split(flags)).code == 0
    engine, http = fake.engine_configs[0], fake.http_configs[0]
    assert (engine.n_ctx, engine.n_slots, engine.n_gpu_layers) == (4096, 2, 7)
    assert (http.ssl_certfile, http.ssl_keyfile) == (Path("c"), Path("k"))
    assert fake.names == ["tiny"]


@pytest.mark.parametrize(("value", "n_layers"), [("0", 0), ("33", 33), ("all", 9999), ("auto", 9999)])
def test_layers_for_the_gpu_are_a_number_or_all(run: Run, fake: FakeParts, value: str, n_layers: int) -> None:
    assert run("serve", "-ngl", value).code == 0
    assert fake.engine_configs[0].n_gpu_layers == n_layers


@pytest.mark.parametrize("value", ["-1", "some", "1.5"])
def test_layers_that_are_neither_are_refused(run: Run, value: str) -> None:
    ended = run("serve", f"--gpu-layers={value}")
    assert ended.code == 2
    assert "neither a number of layers nor all or auto" in " ".join(ended.err.replace("│", " ").split())


def test_api_keys_come_from_flags_and_file_or_from_the_environment(
    run: Run, fake: FakeParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna sk-anna high\n")
    monkeypatch.setenv("LLAMASERVE_API_KEY", "from-outside second")
    assert run("serve").code == 0
    assert run("serve", "--api-key-file", str(keys)).code == 0
    assert run("serve", "--api-key", "given", "--api-key-file", str(keys)).code == 0
    anna = ApiKey.of("sk-anna", "anna", Lane.HIGH)
    outside = (ApiKey.of("from-outside"), ApiKey.of("second"))
    assert [http.api_keys for http in fake.http_configs] == [outside, (*outside, anna), (ApiKey.of("given"), anna)]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--api-key ''", "an API key has 0 characters"),
        ("--api-key a,", "an API key has 0 characters"),
        ("--api-key 'hush hush'", "an API key has 9 characters"),
        ("--api-key-file nowhere", "nowhere cannot be read"),
        ("--cors-origin example.com", "a CORS origin is 'example.com'"),
        ("--ssl-certfile a", "ssl_certfile is given without ssl_keyfile"),
        ("--body-timeout 0", "body_timeout_s is 0"),
    ],
)
def test_access_that_cannot_work_is_said_before_anything_is_loaded(
    run: Run, fake: FakeParts, flags: str, says: str
) -> None:
    ended = run("serve", *shlex.split(flags))
    assert (ended.code, fake.http_configs) == (1, [])
    assert says in ended.err
    assert "hush" not in ended.err


def test_the_command_to_try_takes_the_key_from_the_environment(run: Run) -> None:
    ended = run("serve", "--api-key", "sk-secret")
    assert '-H "Authorization: Bearer $LLAMASERVE_API_KEY"' in ended.out
    assert "sk-secret" not in ended.out + ended.err
    assert "Authorization" not in run("serve").out


def test_without_flags_serve_takes_the_defaults_of_the_configurations(run: Run, fake: FakeParts) -> None:
    assert run("serve").code == 0
    assert fake.resolved == ["smollm2"]
    assert fake.engine_configs[0] == type(fake.engine_configs[0])(model_path=MODEL_PATH)
    assert fake.scheduler_configs[0] == type(fake.scheduler_configs[0])()
    assert fake.http_configs[0] == type(fake.http_configs[0])()
    assert fake.cache_configs == [CacheConfig()]
    assert fake.names == ["smollm2"]


def test_a_model_file_is_served_under_its_name_without_ending(run: Run, fake: FakeParts) -> None:
    run("serve", "-m", "some/folder/tiny.Q4_1.gguf")
    assert fake.names == ["tiny.Q4_1"]


def test_the_parity_profile_computes_prompts_alone(run: Run, fake: FakeParts) -> None:
    run("serve", "--profile", "parity")
    assert not fake.scheduler_configs[0].mixed_step


@pytest.mark.parametrize(
    ("value", "flags", "lookahead"),
    [
        ("0", [], False),
        ("false", [], False),
        ("1", [], True),
        ("true", [], True),
        ("0", ["--lookahead"], True),
        ("1", ["--no-lookahead"], False),
    ],
)
def test_lookahead_may_be_set_in_the_environment_and_the_flag_wins(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch, *, value: str, flags: list[str], lookahead: bool
) -> None:
    """L15."""
    monkeypatch.setenv("LLAMASERVE_LOOKAHEAD", value)
    assert run("serve", *flags).code == 0
    assert fake.scheduler_configs[0].lookahead is lookahead


def test_lookahead_set_to_no_answer_is_a_usage_error(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMASERVE_LOOKAHEAD", "maybe")
    ended = run("serve")
    assert ended.code == 2
    assert "--lookahead" in ended.err
    assert fake.resolved == []


@pytest.mark.parametrize(
    ("value", "path", "gib"),
    [
        ("kept", "kept", 10),
        ("/var/kept,20", "/var/kept", 20),
        ("kept,0.5", "kept", 0.5),
        ("a,b,1", "a,b", 1),
        ("kept, 3", "kept", 3),
    ],
)
def test_a_cache_on_disk_is_a_folder_and_perhaps_its_size(
    run: Run, fake: FakeParts, value: str, path: str, gib: float
) -> None:
    assert run("serve", "--cache-disk", value).code == 0
    (config,) = fake.cache_configs
    assert (config.cache_disk, config.cache_disk_gib) == (Path(path), gib)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (",5", "names no folder"),
        (",", "names no folder"),
        ("a,b", "'b' is no number of GiB"),
        ("kept,", "'' is no number of GiB"),
        ("kept,0", "must be above 0"),
        ("kept,-1", "must be above 0"),
        ("kept,nan", "must be above 0"),
        ("kept,inf", "must be above 0"),
    ],
)
def test_a_cache_on_disk_that_cannot_be_read_is_a_usage_error(run: Run, fake: FakeParts, value: str, says: str) -> None:
    ended = run("serve", "--cache-disk", value)
    assert ended.code == 2
    assert "--cache-disk" in ended.err
    assert says in " ".join(ended.err.replace("│", "").split())
    assert fake.resolved == []


def test_a_cache_larger_than_any_disk_names_value_and_limit(run: Run) -> None:
    ended = run("serve", "--cache-disk", "kept,1e9")
    assert (ended.code, ended.out) == (1, "")
    assert "cache_disk_gib is 1000000000.0: it must be above 0, at most 1048576" in ended.err


def test_the_prefix_cache_may_be_set_in_the_environment_and_flags_win(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PROMPT": "0", "RAM": "3", "DISK": "kept,4"}.items():
        monkeypatch.setenv(f"LLAMASERVE_CACHE_{name}", value)
    assert run("serve").code == 0
    assert run("serve", "--cache-prompt", "--cache-ram", "5", "--cache-disk", "other").code == 0
    first, second = fake.cache_configs
    assert first == CacheConfig(cache_prompt=False, cache_ram=3, cache_disk=Path("kept"), cache_disk_gib=4)
    assert second == CacheConfig(cache_prompt=True, cache_ram=5, cache_disk=Path("other"))


def test_a_command_for_one_caller_keeps_no_copies(run: Run, fake: FakeParts) -> None:
    """What it computed stays in its slot."""
    run("complete", "hi")
    assert fake.cache_configs == [CacheConfig(cache_ram=0)]


def test_serve_says_what_it_serves_where_and_how_to_try_it(run: Run) -> None:
    ended = run("serve", "--host", "0.0.0.0", "--port", "9000", "-np", "2", "-a", "it's tiny")
    assert "llamaserve serves it's tiny at http://0.0.0.0:9000" in ended.out
    assert "fake, 0.0 M parameters, 0 MB" in ended.out
    assert "1024 tokens, 2 slots" in ended.out
    curl = shlex.split(next(line for line in ended.out.splitlines() if line.strip().startswith("curl ")))
    assert curl[1] == "http://127.0.0.1:9000/v1/chat/completions"
    body = json.loads(curl[curl.index("-d") + 1])
    assert body["model"] == "it's tiny"
    assert body["messages"][0]["role"] == "user"


def test_the_command_to_try_a_model_without_a_template_is_a_completion(run: Run, fake: FakeParts) -> None:
    fake.template = None
    ended = run("serve", "--host", "::", "--port", "9000")
    curl = shlex.split(next(line for line in ended.out.splitlines() if line.strip().startswith("curl ")))
    assert curl[1] == "http://[::1]:9000/v1/completions"
    assert "prompt" in json.loads(curl[curl.index("-d") + 1])


@pytest.mark.parametrize("error", [ModelLoad("it is broken"), ConfigError("n_ctx is too large")])
def test_a_failed_load_ends_with_1_and_one_line(run: Run, fake: FakeParts, error: Exception) -> None:
    fake.load_error = error
    ended = run("complete", "hi")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.splitlines()[-1] == f"llamaserve: error: {error}"


def test_complete_writes_the_new_text_and_nothing_else(run: Run, fake: FakeParts) -> None:
    fake.continuation = scripted({"The capital of France is": " Paris, of course."})
    ended = run("complete", "The capital of France is")
    assert (ended.code, ended.out) == (0, " Paris, of course.")
    assert fake.engine_configs[0].n_slots == 1


def test_progress_goes_to_standard_error(run: Run, fake: FakeParts) -> None:
    fake.continuation = scripted({"hi": "ho"})
    ended = run("complete", "hi")
    assert ended.out == "ho"
    assert "downloading tiny" in ended.err


def test_complete_stops_at_its_limit_and_at_stop_strings(run: Run, fake: FakeParts) -> None:
    fake.continuation = scripted({"count": "one two three four"})
    assert run("complete", "count", "-n", "7").out == "one two"
    assert run("complete", "count", "--stop", "xx", "--stop", " three").out == "one two"
    assert run("complete", "count", "-n", "-1").out == "one two three four"


def test_complete_reads_standard_input_as_utf_8(run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.continuation = scripted({"zażółć\n": "gęślą"})
    give_stdin(monkeypatch, "zażółć\n".encode())
    assert run("complete", "-").out == "gęślą"


def test_standard_input_that_is_not_utf_8_is_a_usage_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, b"abc\xff")
    ended = run("complete", "-")
    assert ended.code == 2
    assert "not UTF-8" in ended.err


def test_sampling_is_greedy_unless_told_otherwise(run: Run, fake: FakeParts) -> None:
    """E25"""
    run("complete", "x")
    assert fake.engines[0].opened[0].sampling.temperature == 0.0


def test_sampling_flags_reach_the_sampler(run: Run, fake: FakeParts) -> None:
    flags = "--temp 0.7 --top-k 5 --top-p 0.9 --min-p 0.1 -s 42 --repeat-penalty 1.1 --repeat-last-n 32"
    run("complete", "x", *shlex.split(flags), "--frequency-penalty", "0.5", "--presence-penalty", "-0.5")
    sampling = fake.engines[0].opened[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.7, 5, 0.9, 0.1)
    assert (sampling.seed, sampling.repeat_penalty, sampling.repeat_last_n) == (42, 1.1, 32)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)


def test_a_temperature_below_0_names_value_and_limit(run: Run) -> None:
    ended = run("complete", "x", "--temp", "-1")
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "llamaserve: error: temperature is -1.0: it must be a number from 0 to 100"


def test_a_prompt_longer_than_the_context_names_both(run: Run, fake: FakeParts) -> None:
    fake.n_ctx = 8
    ended = run("complete", "much longer than that")
    assert ended.code == 1
    assert "maximum context length is 8 tokens" in ended.err
    assert "the prompt has 22 tokens" in ended.err


@pytest.mark.parametrize("command", [["chat"], ["complete", "hi"]], ids=["chat", "complete"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--temp", "-3"], "temperature is -3.0"), (["--top-p", "7"], "top_p is 7.0")],
)
def test_sampling_that_cannot_work_is_refused_before_the_model_is_loaded(
    run: Run, fake: FakeParts, command: list[str], flags: list[str], message: str
) -> None:
    ended = run(*command, *flags)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err
    assert fake.engine_configs == []


def test_a_piped_chat_that_could_not_answer_says_so_by_its_exit_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, b"x" * 100_000 + b"\n")
    ended = run("chat")
    assert (ended.code, ended.out) == (1, "")
    assert "does not fit" in ended.err


def test_a_piped_chat_must_be_utf_8(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, "héllo\n".encode() + b"a \xff\n")
    ended = run("chat")
    assert ended.code == 2
    assert "a line of standard input is not UTF-8" in ended.err


@pytest.mark.parametrize("command", [["complete", "hi"], ["info"], ["pull"], ["chat"], ["--version"]])
def test_output_that_cannot_be_written_ends_with_1_and_one_line(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    fake.continuation = scripted({"hi": "ho", "user: hi|assistant:": "ho"})
    give_stdin(monkeypatch, b"hi\n")
    monkeypatch.setattr(sys, "stdout", Unwritable(OSError(errno.ENOSPC, "No space left on device")))
    ended = run(*command)
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "llamaserve: error: [Errno 28] No space left on device"


@pytest.mark.parametrize("command", [["complete", "hi"], ["info"], ["pull"], ["--version"]])
def test_a_reader_who_has_seen_enough_ends_a_command_silently(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """With what a shell reports of programs that SIGPIPE ended."""
    fake.continuation = scripted({"hi": "ho"})
    monkeypatch.setattr(sys, "stdout", Unwritable(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    ended = run(*command)
    assert ended.code == 141
    assert "rror" not in ended.err


def test_serve_goes_on_when_nobody_can_read_what_it_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "ready_text", lambda *_, **__: raise_no_space())
    assert run("serve").code == 0


def raise_no_space() -> str:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_pull_prints_the_path(run: Run, fake: FakeParts) -> None:
    ended = run("pull", "hf:owner/repo/tiny.gguf")
    assert (ended.code, ended.out) == (0, f"{MODEL_PATH}\n")
    assert fake.resolved == ["hf:owner/repo/tiny.gguf"]


def test_info_says_what_the_file_says(run: Run) -> None:
    lines = dict(line.split(maxsplit=1) for line in run("info", "tiny.gguf").out.splitlines())
    assert lines["file"] == str(MODEL_PATH)
    assert lines["architecture"] == "llama"
    assert lines["parameters"] == "1.2 M in 12 tensors"
    assert lines["quantisation"] == "Q4_1"
    assert lines["size"] == "2.5 MB"
    assert lines["context"] == "2048 tokens"
    assert lines["memory"] == "KV cache"
    assert lines["layers"] == "3"
    assert lines["vocabulary"] == "99 tokens"
    assert lines["license"] == "mit"
    assert lines["chat"] == "template 26 characters (--template shows it)"


@pytest.mark.parametrize(
    ("description", "part"),
    [
        ("llama 256M Q4_1", "Q4_1"),
        ("qwen3 4B Q4_K - Medium", "Q4_K - Medium"),
        ("phi3 ?B all F32", "all F32"),
        ("fake bytes", None),
        ("", None),
    ],
)
def test_the_quantisation_is_what_llama_cpp_says_after_family_and_size(description: str, part: str | None) -> None:
    assert quantisation(description) == part


def test_parameters_are_counted_in_millions_and_from_a_billion_on_in_billions() -> None:
    assert [parameters(n_params) for n_params in (134_515_008, 999_000_000, 8_030_261_248)] == [
        "134.5 M",
        "999.0 M",
        "8.0 B",
    ]


def test_no_control_character_of_a_file_reaches_the_terminal(run: Run) -> None:
    assert "\x1b" not in run("info").out


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (MemoryKind.RECURRENT, "recurrent state"),
        (MemoryKind.HYBRID, "KV cache and recurrent state"),
        (MemoryKind.SLIDING_WINDOW, "KV cache with a sliding window"),
    ],
)
def test_info_names_the_kind_of_memory(run: Run, fake: FakeParts, memory: MemoryKind, words: str) -> None:
    fake.header = replace(fake.header, memory=memory)
    assert f"memory        {words}\n" in run("info").out


def test_info_as_json_has_all_metadata(run: Run, fake: FakeParts) -> None:
    said = json.loads(run("info", "--json").out)
    assert said["path"] == str(MODEL_PATH)
    assert (said["architecture"], said["memory"], said["n_ctx_train"]) == ("llama", "kv", 2048)
    assert said["chat_template"] == fake.header.chat_template
    assert said["metadata"] == dict(fake.header.metadata)


def test_info_shows_the_chat_template(run: Run) -> None:
    assert run("info", "--template").out == "{{ messages }}\nsecond line\n"


def test_info_of_a_model_without_a_template_says_so(run: Run, fake: FakeParts) -> None:
    fake.header = Header(chat_template=None)
    assert "chat template none\n" in run("info").out
    ended = run("info", "--template")
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == f"llamaserve: error: {Path(MODEL_PATH)} has no chat template"


def test_chat_reads_lines_from_a_pipe_and_answers_each(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.continuation = scripted(
        {
            "system: be brief|user: hi|assistant:": "hello",
            "system: be brief|user: hi|assistant: hello|user: bye|assistant:": "see you",
        }
    )
    give_stdin(monkeypatch, b"hi\nbye\n")
    ended = run("chat", "--system", "be brief")
    assert (ended.code, ended.out) == (0, "hello\nsee you\n")


def test_chat_says_at_a_terminal_who_answers_and_how_to_end(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.continuation = scripted({"user: hi|assistant:": "hello"})
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"hi\n"), encoding="ascii"))
    ended = run("chat")
    assert ended.code == 0
    (hint,) = [line for line in ended.err.splitlines() if line.startswith("[")]
    assert all(word in hint for word in ("smollm2", "/exit", "/clear", "Ctrl-C"))


def test_chat_says_nothing_of_it_to_a_pipe(run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch) -> None:
    give_stdin(monkeypatch, b"")
    assert "/exit" not in run("chat").err


@pytest.mark.parametrize(
    ("text", "flags", "is_mixed"),
    [("off", "", False), ("on", "--profile parity", True), ("nonsense", "", True), ("off", "--mixed-step", True)],
)
def test_the_environment_says_whether_steps_are_mixed_unless_a_flag_does(
    run: Run, fake: FakeParts, monkeypatch: pytest.MonkeyPatch, *, text: str, flags: str, is_mixed: bool
) -> None:
    """T14."""
    monkeypatch.setenv("LLAMASERVE_MIXED_STEP", text)
    assert run("serve", "-m", "a.gguf", *flags.split()).code == 0
    assert fake.scheduler_configs[0].mixed_step is is_mixed

"""The commands of ``llamaserve`` and how their failures end: usage errors with 2, all others with 1, one line each; a
reader who closes the pipe ends a command silently."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from llamaserve import __version__
from llamaserve.cli.bench import bench
from llamaserve.cli.conversation import Conversation
from llamaserve.cli.flag_groups import with_flag_groups
from llamaserve.cli.flags import (
    MODEL_HELP,
    CacheFlags,
    EngineFlags,
    ModelFlag,
    PredictFlag,
    SamplingFlags,
    SlotFlags,
    StopFlag,
    max_tokens,
)
from llamaserve.cli.http_flags import AccessFlags, HttpFlags
from llamaserve.cli.interrupt import ended_by_ctrl_c
from llamaserve.cli.model_facts import facts_json, facts_text
from llamaserve.cli.parts import Parts
from llamaserve.cli.progress import DownloadBar, LoadBar
from llamaserve.cli.serving import serve as run_serve
from llamaserve.cli.terminal import read_prompt, reader_of_lines
from llamaserve.config import CacheConfig, SchedulerConfig
from llamaserve.errors import BadTemplate, LlamaServeError
from llamaserve.models import DEFAULT_MODEL, model_name
from llamaserve.request_options import DEFAULT_MAX_TOKENS, check_options
from llamaserve.server_api import Server

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]

ENDED_BY_CLOSED_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


class CommandGroup(TyperGroup):
    """The commands. Typer ends with 1 when nobody reads their output any more; we do not call that an error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises SystemExit when nobody reads its output any more."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _end_by_closed_pipe()


app = typer.Typer(
    cls=CommandGroup,
    help="Serve GGUF models with llama.cpp.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"llamaserve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve GGUF models with llama.cpp."""


@app.command()
@with_flag_groups
def serve(
    ctx: typer.Context,
    *,
    engine: EngineFlags,
    slots: SlotFlags,
    cache: CacheFlags,
    http: HttpFlags,
    access: AccessFlags,
    model: ModelFlag = DEFAULT_MODEL,
) -> None:
    """Serve a model over HTTP, with OpenAI's API."""
    parts, console = _parts(ctx), _progress_console()
    path = _resolve(parts, model, console)
    run_serve(
        parts,
        engine.config(path, slots.parallel),
        slots.config(engine.profile),
        cache.config,
        http.config(access),
        model_name=http.alias or model_name(model),
        progress_console=console,
    )


@app.command()
@with_flag_groups
def chat(
    ctx: typer.Context,
    *,
    engine: EngineFlags,
    sampling: SamplingFlags,
    model: ModelFlag = DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option("--system", help="What the model shall be.")] = None,
    predict: PredictFlag = -1,
    stop: StopFlag = None,
) -> None:
    """Talk with a model; /exit or Ctrl-D ends, Ctrl-C stops an answer."""
    limit = max_tokens(predict)
    check_options(stop=stop or (), **sampling.options)  # what cannot work is said before anything is loaded
    with _open_server(_parts(ctx), model, engine) as server:
        conversation = Conversation(
            server,
            sampling,
            system=system,
            max_tokens=limit,
            stop=stop or (),
            out=sys.stdout,
            notices=sys.stderr,
        )
        is_interactive = sys.stdin.isatty()
        if is_interactive:
            conversation.introduce(server.service.model_name)
        conversation.run(reader_of_lines(sys.stdin))
    if conversation.has_failed and not is_interactive:
        raise typer.Exit(1)


@app.command()
@with_flag_groups
def complete(
    ctx: typer.Context,
    *,
    engine: EngineFlags,
    sampling: SamplingFlags,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.")],
    model: ModelFlag = DEFAULT_MODEL,
    predict: PredictFlag = DEFAULT_MAX_TOKENS,
    stop: StopFlag = None,
) -> None:
    """Continue a text; only what the model adds goes to standard output."""
    limit = max_tokens(predict)
    check_options(stop=stop or (), **sampling.options)
    text = read_prompt(sys.stdin) if prompt == "-" else prompt
    with (
        _open_server(_parts(ctx), model, engine) as server,
        server.stream(text, max_tokens=limit, stop=stop or (), **sampling.options) as stream,
    ):
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if sys.stdout.isatty():
        print()


@app.command()
def pull(ctx: typer.Context, model: ModelArgument = DEFAULT_MODEL) -> None:
    """Fetch a model and print where it is."""
    print(_resolve(_parts(ctx), model, _progress_console()))


@app.command()
def info(
    ctx: typer.Context,
    model: ModelArgument = DEFAULT_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all metadata.")] = False,
    template: Annotated[bool, typer.Option("--template", help="Show the chat template only.")] = False,
) -> None:
    """Show what a model file says of itself, without loading its weights."""
    parts = _parts(ctx)
    path = _resolve(parts, model, _progress_console())
    header = parts.read_gguf(path)
    if as_json:
        print(facts_json(path, header))
    elif not template:
        print(facts_text(path, header))
    elif header.chat_template is None:
        raise BadTemplate(f"{path} has no chat template")
    else:
        print(header.chat_template)


app.command()(bench)


def run_command_line(arguments: Sequence[str] | None = None, parts: Parts | None = None) -> NoReturn:
    """Run a command line; ``parts`` None takes the real ones. Raises SystemExit, always."""
    _mend_streams()
    try:
        try:
            app(args=arguments, prog_name="llamaserve", obj=parts)
        finally:
            sys.stdout.flush()
    except LlamaServeError as error:
        _end_with(str(error))
    except BrokenPipeError:
        _end_by_closed_pipe()
    except OSError as error:  # the disk is full, a file is gone: nothing a traceback would explain
        _forget_output()
        _end_with(str(error))
    sys.exit(0)


def _mend_streams() -> None:
    """Make the standard streams such that nothing fails on them that need not."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open to the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a character shows "?" and the text goes on


def _end_with(message: str) -> NoReturn:
    print(f"llamaserve: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(1)


def _end_by_closed_pipe() -> NoReturn:
    _forget_output()
    sys.exit(ENDED_BY_CLOSED_PIPE)


def _forget_output() -> None:
    """Let what could not be written go nowhere: the interpreter would try again at its end, and complain again."""
    with suppress(OSError, AttributeError):  # an output that is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _parts(ctx: typer.Context) -> Parts:
    parts = ctx.find_object(Parts)
    if parts is not None:
        return parts
    with ended_by_ctrl_c():
        from llamaserve.cli.real_parts import PARTS  # noqa: PLC0415 - the native module, which --help does without

    return PARTS


def _progress_console() -> Console:
    """Where progress is shown: never in the way of what a script reads."""
    return Console(stderr=True)


def _resolve(parts: Parts, model: str, console: Console) -> Path:
    with DownloadBar(console) as bar:
        return parts.resolve(model, progress=bar)


def _open_server(parts: Parts, model: str, engine: EngineFlags) -> Server:
    """A server for one caller: one slot, which has the whole context; what it computed stays there, without copies."""
    console = _progress_console()
    config = engine.config(_resolve(parts, model, console), n_slots=1)
    name = model_name(model)
    with LoadBar(console, name) as bar:
        service = parts.load_service(config, SchedulerConfig(), name, bar.advance, cache=CacheConfig(cache_ram=0))
        return Server.from_service(service)

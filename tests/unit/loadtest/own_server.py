"""A server of our own on the loopback that does what a test says and notes when it wrote what: the independent count.

It runs on a thread with an event loop of its own. Its clock is the client's, ``time.perf_counter()``.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Script = Callable[["Exchange"], Awaitable[None]]


class Hangup(Exception):
    """The script closes the connection."""


@dataclass
class Exchange:
    """One request the server got, and its answer so far."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    number: int
    connection: int
    """Which connection it came over."""
    arrived: float
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    writes: list[float] = field(default_factory=list)
    """When each event with text was handed to the socket."""
    was_dropped: bool = False
    is_over: bool = False

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: str = "200 OK", content_type: str = "text/event-stream") -> None:
        await self.raw(
            f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        )

    async def piece(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, **chunk: Any) -> None:
        await self.piece(event_bytes(**chunk))

    async def token(self, text: str = " x") -> None:
        self.writes.append(time.perf_counter())
        await self.event(choices=[{"index": 0, "text": text, "finish_reason": None}], usage=None)

    async def finish(self, n_tokens: int, *, n_prompt: int = 7, reason: str = "length") -> None:
        await self.event(choices=[{"index": 0, "text": "", "finish_reason": reason}], usage=None)
        await self.event(choices=[], usage={"prompt_tokens": n_prompt, "completion_tokens": n_tokens})
        await self.done()

    async def done(self) -> None:
        await self.piece(b"data: [DONE]\n\n")
        await self.end_body()

    async def end_body(self) -> None:
        await self.raw(b"0\r\n\r\n")


def event_bytes(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def well(exchange: Exchange) -> None:
    """A good answer of the length asked for, without delays."""
    await exchange.head()
    for _ in range(exchange.body["max_tokens"]):
        await exchange.token()
    await exchange.finish(exchange.body["max_tokens"])


@dataclass
class OwnServer:
    """Where it listens, what it does, what it saw."""

    script: Script = well
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    n_running: int = 0
    most_running: int = 0
    n_connections: int = 0
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each request whose script begins."""
    loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self.n_connections
        self.n_connections += 1
        try:
            while await self._one(reader, writer, connection):
                pass
        except (Hangup, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        if method == "GET":
            await self._list_models(writer)
            return True
        exchange = Exchange(
            method, path, headers, body, len(self.exchanges), connection, time.perf_counter(), reader, writer
        )
        self.exchanges.append(exchange)
        self.n_running += 1
        self.most_running = max(self.most_running, self.n_running)
        self.started.release()
        try:
            await self.script(exchange)
        except ConnectionError:
            exchange.was_dropped = True
            raise
        finally:
            exchange.is_over = True
            self.n_running -= 1
        return True

    async def _list_models(self, writer: asyncio.StreamWriter) -> None:
        body = b'{"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]}'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Serve on a free port until the block ends; no request outlives it."""
    server = OwnServer()
    is_up = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        server.loop = asyncio.get_running_loop()
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(server.serve(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        is_up.set()
        await stop.wait()
        listener.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await listener.wait_closed()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="own-server")
    thread.start()
    try:
        assert is_up.wait(10)
        yield server
    finally:
        assert server.loop is not None
        server.loop.call_soon_threadsafe(stop.set)
        thread.join(10)
    assert not thread.is_alive(), "the test's own server did not stop"

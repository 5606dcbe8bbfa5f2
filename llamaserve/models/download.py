"""One file over HTTP, into a ``.part`` that a later run goes on with. Any thread; blocks."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from llamaserve.errors import ModelLoad
from llamaserve.models.cache import BLOCK_BYTES

TIMEOUT_S = 30.0
MAX_FRUITLESS_TRIES = 4
RETRIABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class DownloadProgress(Protocol):
    """Who wants to know how a download goes. Called on the thread that resolves the model."""

    def note(self, text: str) -> None:
        """What happens now, in a few words."""

    def advance(self, done_bytes: int, total_bytes: int | None) -> None:
        """How much of the file is here; the total is None while the server does not tell."""


class Silent:
    """A progress nobody looks at."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done_bytes: int, total_bytes: int | None) -> None:
        """Show nothing."""


class _Broken(Exception):
    """The connection failed in a way that another try may mend."""


def download(url: str, part: Path, progress: DownloadProgress, *, pause_s: float = 1.0) -> bool:
    """Bring the whole file of ``url`` into ``part``; whether bytes of an earlier run were used.

    What ``part`` holds already is not asked for again. A connection that breaks is taken up where it broke; after
    some tries that brought nothing, with ``pause_s`` before each, it gives up and ``part`` stays. Proxy variables
    (HTTPS_PROXY …) are honoured. Raises ModelLoad, and OSError if the disk fails.
    """
    n_at_start = _size(part)
    n_fruitless = 0
    while True:
        n_before = _size(part)
        try:
            _continue(url, part, progress)
        except _Broken as error:
            n_fruitless = 0 if _size(part) > n_before else n_fruitless + 1
            if n_fruitless >= MAX_FRUITLESS_TRIES:
                raise ModelLoad(
                    f"the download of {part.stem} broke off after {_size(part) / 1e6:.1f} MB ({error}); check the "
                    f"network or the proxy (HTTPS_PROXY) and run again: it goes on from there"
                ) from error
            time.sleep(pause_s)
        else:
            return n_at_start > 0


def _continue(url: str, part: Path, progress: DownloadProgress) -> None:
    """One request for what is missing. Raises _Broken where a new try makes sense, ModelLoad where none does."""
    offset = _size(part)
    try:
        response = _open(url, part, offset)
    except urllib.error.HTTPError as error:
        error.close()
        _judge_status(error, part, offset)
        return
    with response:
        start = offset if response.status == 206 else 0  # 200: the server sends it all again
        if start and _range_start(response.headers.get("Content-Range")) != start:
            part.unlink()
            raise _Broken("the server answered with another range than it was asked for")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        done = start
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            progress.advance(done, total)
            for block in _blocks(response):
                file.write(block)
                done += len(block)
                progress.advance(done, total)
    if total is not None and done < total:
        raise _Broken(f"the server sent {done} of {total} bytes")


def _open(url: str, part: Path, offset: int) -> http.client.HTTPResponse:
    """Ask for the file from ``offset`` on. Raises HTTPError, _Broken, ModelLoad."""
    headers = {"User-Agent": "llamaserve", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_S, context=_tls_context())
    except urllib.error.HTTPError:
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise ModelLoad(
                f"the certificate of the server of {part.stem} is not trusted ({error.reason.verify_message}); if a "
                f"proxy of yours signs it, set SSL_CERT_FILE to its certificate"
            ) from error
        raise _Broken(error.reason) from error
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(str(error) or type(error).__name__) from error
    if not isinstance(response, http.client.HTTPResponse):
        response.close()
        raise ModelLoad(f"{part.stem} cannot be downloaded from an address that is not http: {url}")
    return response


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """What arrives, as it arrives. Raises _Broken when the connection does."""
    try:
        while block := response.read1(BLOCK_BYTES):
            yield block
    except (http.client.HTTPException, OSError) as error:
        raise _Broken(str(error) or type(error).__name__) from error


def _judge_status(error: urllib.error.HTTPError, part: Path, offset: int) -> None:
    """Return if the file is complete; else raise _Broken or ModelLoad."""
    if error.code == 416 and offset:
        # Nothing lies behind what is here: either it is complete or it is not this file at all.
        total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
        if total and int(total[1]) == offset:
            return
        part.unlink()
        raise _Broken("what an earlier run left does not fit") from error
    if error.code in RETRIABLE_STATUS:
        raise _Broken(f"the server answered {error.code} {error.reason}") from error
    raise ModelLoad(f"the server of {part.stem} answered {error.code} {error.reason}") from error


def _range_start(content_range: str | None) -> int | None:
    match = re.match(r"bytes (\d+)-", content_range or "")
    return int(match[1]) if match else None


def _tls_context() -> ssl.SSLContext:
    """The system's certificates (or SSL_CERT_FILE), and the one pip was told to trust."""
    context = ssl.create_default_context()
    extra = os.environ.get("PIP_CERT")
    if extra:
        try:
            context.load_verify_locations(extra)
        except OSError as error:
            raise ModelLoad(f"PIP_CERT is {extra!r}: no certificate can be read from it ({error})") from error
    return context


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

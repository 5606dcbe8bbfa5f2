"""HTTPS: a certificate is checked before anything is loaded, and then used."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from llamaserve.config import HttpConfig
from llamaserve.errors import ConfigError
from llamaserve.server.run import run_server
from llamaserve.service import Service
from tests.api.served import PATIENCE_S
from tests.api.test_lifecycle import fake_service

OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="makes its certificates with the openssl command")


def make_certificate(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    command = f"{OPENSSL} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN=test"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run([*command.split(), *(more or ["-nodes"])], check=True, capture_output=True)
    return certificate, key


def test_the_server_speaks_https_under_its_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "good")
    statuses: list[int] = []

    def probe(service: Service, url: str) -> None:
        assert url.startswith("https://127.0.0.1:")
        with httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), timeout=PATIENCE_S) as client:
            statuses.append(client.get(f"{url}/health").status_code)
            body = {"prompt": "a", "max_tokens": 2}
            statuses.append(client.post(f"{url}/v1/completions", json=body).status_code)
        signal.raise_signal(signal.SIGTERM)

    run_server(fake_service, HttpConfig(port=0, ssl_certfile=certificate, ssl_keyfile=key), on_ready=probe)
    assert statuses == [200, 200]


def test_files_that_cannot_be_used_are_named_before_anything_is_loaded(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "good")
    _, other_key = make_certificate(tmp_path, "other")
    locked, locked_key = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    empty = tmp_path / "empty.pem"
    empty.touch()
    for files, says in (
        ((tmp_path / "nowhere.pem", key), "nowhere.pem cannot be read: No such file"),
        ((certificate, tmp_path), "cannot be read: Is a directory"),
        ((certificate, other_key), "other-key.pem: .*(mismatch|MISMATCH)"),
        ((empty, key), "empty.pem cannot be used"),
        ((locked, locked_key), "locked-key.pem is encrypted"),
    ):
        with pytest.raises(ConfigError, match=says):
            run_server(_fail, HttpConfig(port=0, ssl_certfile=files[0], ssl_keyfile=files[1]), on_ready=lambda *_: None)


def _fail() -> Service:
    raise AssertionError("loaded")

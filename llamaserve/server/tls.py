"""The certificate of the server. At the start."""

from __future__ import annotations

import ssl
from pathlib import Path

from llamaserve.errors import ConfigError


class _EncryptedKey(Exception):
    """The private key needs a password."""


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise ConfigError, saying why, when a server cannot use this certificate with this private key: before a model is
    loaded, not when the first client comes."""
    for path in (certificate, key):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"the TLS file {path} cannot be read: {error.strerror}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except _EncryptedKey:
        raise ConfigError(f"the private key {key} is encrypted: the server needs one without a password") from None
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the certificate {certificate} cannot be used with the key {key}: {error}") from error


def _no_password() -> str:
    # OpenSSL would ask on the terminal.
    raise _EncryptedKey

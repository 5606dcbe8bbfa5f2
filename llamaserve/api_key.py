"""API keys: what is known of one, and the file they stand in. Any thread; knows no HTTP.

Of a key only its SHA-256 is kept, so nothing that shows an object of the server can show a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llamaserve.errors import ConfigError, shown
from llamaserve.request import Lane

MAX_KEY_LENGTH = 512  # characters
MAX_KEYS = 10_000
_KEY = re.compile(f"[!-~]{{1,{MAX_KEY_LENGTH}}}")
_OWNER = re.compile(r"[\w.@:\-]{1,64}", re.ASCII)
_COMMENT = "#"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that lets its bearer in."""

    digest: bytes = field(repr=False)
    """SHA-256 of the key."""
    owner: str
    """Whose requests are those that come with it: keys of one owner are one to the scheduler and to the cache."""
    most_urgent: Lane | None = None
    """Priorities up to this one are honoured of it, whatever others may ask for; None = as for everybody."""

    @classmethod
    def of(cls, secret: str, owner: str | None = None, most_urgent: Lane | None = None) -> ApiKey:
        """A key by its text; without an ``owner`` it is one of its own, named by a part of a hash of the key.

        Raises ConfigError, without the key in it, when a client could not send it, or the owner is no name.
        """
        if not _KEY.fullmatch(secret):
            raise ConfigError(
                f"an API key has {len(secret)} characters: it must have 1 to {MAX_KEY_LENGTH}, visible ASCII without "
                "spaces"
            )
        digest = _digest(secret.encode())
        if owner is None:
            owner = "key-" + _digest(digest).hex()[:16]
        elif not _OWNER.fullmatch(owner):
            raise ConfigError("the name of an API key must have 1 to 64 letters, digits or any of _.@:- in ASCII")
        return cls(digest, owner, most_urgent)


class ApiKeys:
    """The keys of a server; none lets everybody in. Any thread."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)
        self.n_owners = len({key.owner for key in self._keys})

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, secret: bytes) -> ApiKey | None:
        """The key with this text; takes as long for every text of its length."""
        digest = _digest(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def check_keys(keys: Sequence[ApiKey]) -> None:
    """Raise ConfigError when there are too many, or two owners have the same key."""
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"there are {len(keys)} API keys: at most {MAX_KEYS} are allowed")
    known: dict[bytes, ApiKey] = {}
    for key in keys:
        other = known.setdefault(key.digest, key)
        if other != key:
            raise ConfigError(f"one API key is given twice, for {other.owner!r} and {key.owner!r}")


def read_key_file(path: Path) -> list[ApiKey]:
    """The keys in a file, one a line: ``KEY``, ``NAME KEY`` or ``NAME KEY LANE``; empty lines and those that begin with
    ``#`` say nothing.

    Raises ConfigError, with the number of the line and without its text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the API keys in {path} cannot be read: {reason}") from error
    keys = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith(_COMMENT):
            continue
        try:
            keys.append(_key_of(words))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
    if not keys:
        raise ConfigError(f"{path} has no API key in it")  # a server that is open by mistake
    return keys


def _key_of(words: Sequence[str]) -> ApiKey:
    if len(words) == 1:
        return ApiKey.of(words[0])
    if len(words) == 2:
        return ApiKey.of(words[1], words[0])
    if len(words) == 3:
        return ApiKey.of(words[1], words[0], _lane(words[2]))
    raise ConfigError(f"it has {len(words)} words: it must have a key, or a name, a key and perhaps a lane")


def _lane(word: str) -> Lane:
    try:
        return Lane(word)
    except ValueError:
        names = ", ".join(lane.value for lane in Lane)
        raise ConfigError(f"the lane is {shown(word)}: it must be one of {names}") from None


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()

"""What the fake engine remembers: cells that several sequence ids may hold, and copies of them."""

from __future__ import annotations

from collections.abc import Collection

from llamaserve.engine.fake_text import BOS, EOS
from llamaserve.errors import EngineError

_AS_BYTE = {EOS: 0xFF, BOS: 0xFE}
"""In a copy, where they cannot be mistaken: UTF-8 never has these bytes."""
_AS_TOKEN = {byte: token for token, byte in _AS_BYTE.items()}


class _Cell:
    """A computed token and how many ids hold it."""

    __slots__ = ("n_holders", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.n_holders = 1


class FakeCells:
    """Cells by sequence id, one for each position. Knows no limits but that of ids: the engine asks before."""

    def __init__(self, n_ids: int) -> None:
        self._by_id: list[list[_Cell]] = [[] for _ in range(n_ids)]
        self._tokens: list[list[int]] = [[] for _ in range(n_ids)]
        """Those of the cells again: they are asked for at each token."""
        self.n_used = 0
        """Cells that somebody holds, each counted once."""

    def check_id(self, seq_id: int) -> None:
        """Raise EngineError for an id out of range."""
        if not 0 <= seq_id < len(self._by_id):
            raise EngineError(f"sequence {seq_id} is out of range (0..{len(self._by_id) - 1})")

    def tokens(self, seq_id: int, start: int = 0) -> tuple[int, ...]:
        """What an id holds from a position on."""
        return tuple(self._tokens[seq_id][start:] if start else self._tokens[seq_id])

    def length(self, seq_id: int) -> int:
        """Tokens an id holds."""
        return len(self._by_id[seq_id])

    def append(self, seq_id: int, tokens: Collection[int]) -> None:
        """Give an id cells of its own behind those it holds."""
        cells = [_Cell(token) for token in tokens]
        self._by_id[seq_id].extend(cells)
        self._tokens[seq_id].extend(tokens)
        self.n_used += len(cells)

    def share(self, seq_id: int, source: int, n_tokens: int) -> None:
        """Have an id go on with the cells of another, up to its first ``n_tokens``."""
        held = self._by_id[seq_id]
        for cell in self._by_id[source][len(held) : n_tokens]:
            cell.n_holders += 1
            held.append(cell)
            self._tokens[seq_id].append(cell.token)

    def trim(self, seq_id: int, n_tokens: int) -> None:
        """Have an id hold its first ``n_tokens`` only."""
        for cell in self._by_id[seq_id][n_tokens:]:
            cell.n_holders -= 1
            self.n_used -= cell.n_holders == 0
        del self._by_id[seq_id][n_tokens:]
        del self._tokens[seq_id][n_tokens:]


class FakeState:
    """A SavedState: the tokens of [start, end), ``bytes_per_cell`` bytes each, the first of them the token."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data = data
        self.start = start
        self.end = end
        self.is_checkpoint = False

    @classmethod
    def of(cls, tokens: tuple[int, ...], start: int, bytes_per_cell: int) -> FakeState:
        """Raises EngineError for the bytes 0xFE and 0xFF, which no UTF-8 text has."""
        codes = [_AS_BYTE.get(token, token) for token in tokens]
        for token in tokens:
            if token in _AS_TOKEN:
                raise EngineError(f"the fake engine cannot save the byte {token}: no UTF-8 text has it")
        padding = bytes(bytes_per_cell - 1)
        return cls(b"".join(bytes([code]) + padding for code in codes), start, start + len(tokens))

    @property
    def n_bytes(self) -> int:
        """``bytes_per_cell`` for each token."""
        return len(self._data)

    def view(self) -> memoryview:
        """Its bytes."""
        return memoryview(self._data)

    def tokens(self, bytes_per_cell: int) -> tuple[int, ...]:
        """What was saved. Raises EngineError if that is not what it says."""
        if len(self._data) != (self.end - self.start) * bytes_per_cell:
            raise EngineError(
                f"a state of {len(self._data)} bytes has not {self.end - self.start} cells of {bytes_per_cell} bytes"
            )
        return tuple(_AS_TOKEN.get(code, code) for code in self._data[::bytes_per_cell])

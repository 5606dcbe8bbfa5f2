"""Twin of ``llamaserve._hot.Utf8Stream``: the standard library's incremental decoder."""

import codecs


class Utf8Stream:
    """Bytes in any cut, whole characters out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

"""From the bytes of tokens to text."""

from llamaserve.text.token_text import TokenText

__all__ = ["TokenText"]

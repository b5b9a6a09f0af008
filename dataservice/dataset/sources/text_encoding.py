"""Text files of other encodings as UTF-8, which is all that Arrow's readers know.

Knows bytes and encodings, not what a text says. Invariant: a file gives the same bytes however
many are asked for at a time, and no more than are asked for.
"""

from __future__ import annotations

import codecs
from typing import Any, Final

from dataservice.errors import InvalidArgumentError

UTF_8: Final = "utf-8"


def check_encoding(encoding: Any) -> None:
    """InvalidArgumentError unless Python knows an encoding of text by that name."""
    try:
        if isinstance(encoding, str):
            "a".encode(encoding)
            return
    except (LookupError, UnicodeError):
        pass
    raise InvalidArgumentError(
        f"encoding must be the name of an encoding, such as 'utf-8', 'latin-1' or 'cp1252', got "
        f"{encoding!r}"
    )


def in_utf_8(handle: Any, encoding: str) -> Any:
    """What is read of `handle`, whose bytes are text in `encoding`, is UTF-8."""
    return handle if codecs.lookup(encoding).name == UTF_8 else _InUtf8(handle, encoding)


class _InUtf8:
    def __init__(self, handle: Any, encoding: str) -> None:
        self._handle = handle
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """At most `size` bytes, which may end within a character; none at the end."""
        while len(self._left) < size and not self._ended:
            block = bytes(self._handle.read(size))
            self._ended = not block
            self._left += self._decoder.decode(block, final=self._ended).encode(UTF_8)
        read, self._left = self._left[:size], self._left[size:]
        return read

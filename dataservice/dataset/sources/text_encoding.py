"""Text files of other encodings, read as UTF-8, the only encoding that Arrow's readers know.

Knows bytes and encodings, not the meaning of a text. Invariant: a file yields the same bytes
however many are asked for at a time, and never more than are asked for.
"""

from __future__ import annotations

import codecs
from typing import Any, Final

from dataservice.errors import InvalidArgumentError

UTF_8: Final = "utf-8"


def check_encoding(encoding: Any) -> None:
    """Raises InvalidArgumentError unless Python knows a text encoding of that name."""
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
    """Returns a file that yields as UTF-8 the text that `handle` holds in `encoding`."""
    return handle if codecs.lookup(encoding).name == UTF_8 else _InUtf8(handle, encoding)


class _InUtf8:
    def __init__(self, handle: Any, encoding: str) -> None:
        self._handle = handle
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._left = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes, which may end within a character; none at the end."""
        while len(self._left) < size and not self._ended:
            block = bytes(self._handle.read(size))
            self._ended = not block
            self._left += self._decoder.decode(block, final=self._ended).encode(UTF_8)
        read, self._left = self._left[:size], self._left[size:]
        return read

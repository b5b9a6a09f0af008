"""Columns in little memory: many texts in one byte string, a single value for a whole column.

Pure. Knows nothing of what the columns hold. Invariant: a folded column reads as the one that it
was made of, and texts come back as they were, also those that are no UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

LENGTH: Final = np.dtype("<i4")
# No step over all texts holds the interpreter for longer than it takes to join so many.
_JOIN: Final = 65_536


class PackedTexts:
    """Strings, one behind the other, in one byte string."""

    def __init__(self, blob: bytes, lengths: np.ndarray) -> None:
        self.blob = blob
        self.lengths = lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)

    @classmethod
    def of(cls, texts: Sequence[str]) -> PackedTexts:
        """The same texts, packed."""
        # Names of files may hold bytes that are no text, which Python keeps as surrogates.
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths = np.fromiter((len(text) for text in encoded), LENGTH, len(encoded))
        parts = (b"".join(encoded[at : at + _JOIN]) for at in range(0, len(encoded), _JOIN))
        return cls(b"".join(parts), lengths)

    def take(self, at: np.ndarray) -> list[str]:
        """The texts at these places."""
        ends = self._ends[at]
        pairs = zip((ends - self.lengths[at]).tolist(), ends.tolist(), strict=True)
        return [self.blob[first:end].decode("utf-8", "surrogatepass") for first, end in pairs]


def folded(column: np.ndarray) -> np.ndarray:
    """The column; one that holds a single value several times, in the memory of one."""
    if len(column) < 2 or is_folded(column) or (column != column[0]).any():
        return column
    return np.broadcast_to(column[0].copy(), column.shape)


def is_folded(column: np.ndarray) -> bool:
    """Whether a single value in memory stands for all of several."""
    return len(column) > 1 and column.strides == (0,)

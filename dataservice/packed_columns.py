"""Columns that take little memory: strings packed in one byte string, constant columns folded.

Pure. Knows nothing of what the columns mean. Invariant: a folded column has the same values as the
column that it was made from, and packed strings come back unchanged, even if they are not valid
UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

LENGTH: Final = np.dtype("<i4")
# Joins this many strings at once, so that no single call holds the interpreter lock for long.
_JOIN: Final = 65_536


class PackedTexts:
    """A sequence of strings, concatenated in one byte string."""

    def __init__(self, blob: bytes, lengths: np.ndarray) -> None:
        self.blob = blob
        self.lengths = lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)

    @classmethod
    def of(cls, texts: Sequence[str]) -> PackedTexts:
        """Packs strings."""
        # File names may hold bytes that are not valid text; Python represents them as surrogates.
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths = np.fromiter((len(text) for text in encoded), LENGTH, len(encoded))
        parts = (b"".join(encoded[at : at + _JOIN]) for at in range(0, len(encoded), _JOIN))
        return cls(b"".join(parts), lengths)

    def take(self, at: np.ndarray) -> list[str]:
        """Returns the strings at the given indices."""
        ends = self._ends[at]
        pairs = zip((ends - self.lengths[at]).tolist(), ends.tolist(), strict=True)
        return [self.blob[first:end].decode("utf-8", "surrogatepass") for first, end in pairs]


def folded(column: np.ndarray) -> np.ndarray:
    """Returns the column, with one stored value if all of its values are equal."""
    if len(column) < 2 or is_folded(column) or (column != column[0]).any():
        return column
    return np.broadcast_to(column[0].copy(), column.shape)


def is_folded(column: np.ndarray) -> bool:
    """True if the column has several values, all of them the same one in memory."""
    return len(column) > 1 and column.strides == (0,)

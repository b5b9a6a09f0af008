"""The LRU cache of functions at a trainer: which functions it holds, and which it must evict.

Pure: no connection. Invariant: a trainer holds at most the limits below and what one more message
adds to that; an evicted function is sent again when it is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FUNCTIONS_MAX: Final = 256
BYTES_MAX: Final = 128 << 20


class SentFunctions:
    """The functions sent on one stream of closures, in the order of last use. Not thread-safe."""

    def __init__(self, functions_max: int = FUNCTIONS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._functions_max, self._bytes_max = functions_max, bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def use(self, function_id: str) -> bool:
        """True if the trainer has the function, which then counts as used."""
        if function_id not in self._sizes:
            return False
        self._sizes.move_to_end(function_id)
        return True

    def add(self, function_id: str, size_bytes: int) -> None:
        """Adds a function that is being sent."""
        self._sizes[function_id] = size_bytes
        self._bytes += size_bytes

    def forget(self) -> list[str]:
        """Evicts the least recently used functions above the limits; returns their ids to send."""
        forgotten: list[str] = []
        while len(self._sizes) > self._functions_max or (
            self._bytes > self._bytes_max and len(self._sizes) > 1
        ):
            function_id, size_bytes = self._sizes.popitem(last=False)
            self._bytes -= size_bytes
            forgotten.append(function_id)
        return forgotten

"""The LRU cache of functions at a trainer: which it has, and which it is to forget.

Pure: no connection. Invariant: what is kept at the trainer is at most this much, and what one
message more adds to it; a function that was forgotten is sent again when it is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FUNCTIONS_MAX: Final = 256
BYTES_MAX: Final = 128 << 20


class SentFunctions:
    """Of one stream of closures, by the time of their last use. Not thread-safe."""

    def __init__(self, functions_max: int = FUNCTIONS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._functions_max, self._bytes_max = functions_max, bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def use(self, function_id: str) -> bool:
        """Whether the trainer has it."""
        if function_id not in self._sizes:
            return False
        self._sizes.move_to_end(function_id)
        return True

    def add(self, function_id: str, size_bytes: int) -> None:
        """It is sent now."""
        self._sizes[function_id] = size_bytes
        self._bytes += size_bytes

    def forget(self) -> list[str]:
        """Those used longest ago that are too many, of which the trainer is to be told now."""
        forgotten: list[str] = []
        while len(self._sizes) > self._functions_max or (
            self._bytes > self._bytes_max and len(self._sizes) > 1
        ):
            function_id, size_bytes = self._sizes.popitem(last=False)
            self._bytes -= size_bytes
            forgotten.append(function_id)
        return forgotten

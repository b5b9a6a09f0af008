"""A cache of pickled functions, so that a function that is scheduled often is pickled once.

Knows no trainer. Invariant: an entry is as new as what its function captures; the least recently
used functions are evicted, but live on while a closure needs them.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pstrain.serialization import pickling

_REMEMBERED: Final = 1_024
_MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PickledFunction:
    """A function as it travels to trainers; referenced as long as it may have to be sent."""

    id: str
    pickled: bytes = field(repr=False)
    name: str


PickledFunctions = weakref.WeakValueDictionary[str, PickledFunction]


class KnownFunctions:
    """The pickled functions of one coordinator. Thread-safe."""

    def __init__(self) -> None:
        # The functions in the cache, and those that closures which have not ended still need.
        self.pickled: PickledFunctions = weakref.WeakValueDictionary()
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._known_bytes = 0
        self._lock = threading.Lock()

    def find(self, fn: Callable[..., Any], dump: Callable[[Any], bytes]) -> PickledFunction:
        """Returns ``fn`` as it was pickled before, or pickles it by ``dump``."""
        generation = pickling.capture_generation()
        with self._lock:
            known = self._known.get(id(fn))
            if known is not None and known.fn is fn and known.generation == generation:
                self._known.move_to_end(id(fn))
                return known.function
        pickled = dump(fn)
        function_id = hashlib.sha256(pickled).hexdigest()[:16]
        with self._lock:
            function = self.pickled.get(function_id) or PickledFunction(
                function_id, pickled, getattr(fn, "__qualname__", type(fn).__name__)
            )
            self.pickled[function_id] = function
            self._remember(_Known(fn, generation, function))
        return function

    def _remember(self, known: _Known) -> None:
        """Adds an entry, and evicts the least recently used ones. Callers hold the lock."""
        replaced = self._known.pop(id(known.fn), None)
        self._known_bytes += len(known.function.pickled)
        self._known_bytes -= 0 if replaced is None else len(replaced.function.pickled)
        self._known[id(known.fn)] = known
        while len(self._known) > _REMEMBERED or (
            self._known_bytes > _MAX_BYTES and len(self._known) > 1
        ):
            _, forgotten = self._known.popitem(last=False)
            self._known_bytes -= len(forgotten.function.pickled)


class _Known(NamedTuple):
    """A function as it was pickled last."""

    fn: object
    generation: int
    function: PickledFunction

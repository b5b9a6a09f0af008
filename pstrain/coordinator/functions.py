"""A cache of pickled functions, so that a function that is scheduled often is pickled once.

Knows no trainer. Invariant: an entry is as new as what its function captures; the least recently
used functions are evicted, but live on while a closure needs them. What a function captures lives
as long as the function itself and the closures that need it, not as long as the cache.
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


class Pickled(NamedTuple):
    """A function or a dataset, pickled, and what it captures that must live as long as it.

    That is lifetimes of variables, and iterators.
    """

    data: bytes
    captured: tuple[object, ...] = ()


class FoundFunction(NamedTuple):
    """A function to be sent; what holds it holds what the function captured."""

    function: PickledFunction
    captured: tuple[object, ...]


class KnownFunctions:
    """The pickled functions of one coordinator. Thread-safe."""

    def __init__(self) -> None:
        # The functions in the cache, and those that closures which have not ended still need.
        self.pickled: PickledFunctions = weakref.WeakValueDictionary()
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._known_bytes = 0
        # By the id of a function that still exists. An entry ends with its function, at any moment
        # and in any thread, so single operations change it without the lock.
        self._captured: dict[int, tuple[object, ...]] = {}
        self._lock = threading.Lock()

    def find(self, fn: Callable[..., Any], dump: Callable[[Any], Pickled]) -> FoundFunction:
        """Returns ``fn`` as it was pickled before, or pickles it by ``dump``."""
        generation = pickling.capture_generation()
        with self._lock:
            known = self._known.get(id(fn))
            if known is not None and known.fn() is fn and known.generation == generation:
                self._known.move_to_end(id(fn))
                return FoundFunction(known.function, self._captured.get(id(fn), ()))
        pickled = dump(fn)
        function_id = hashlib.sha256(pickled.data).hexdigest()[:16]
        with self._lock:
            function = self.pickled.get(function_id) or PickledFunction(
                function_id, pickled.data, getattr(fn, "__qualname__", type(fn).__name__)
            )
            self.pickled[function_id] = function
            self._captured[id(fn)] = pickled.captured
            self._remember(id(fn), _Known(self._referred_to(fn), generation, function))
        return FoundFunction(function, pickled.captured)

    def _referred_to(self, fn: Callable[..., Any]) -> Callable[[], object]:
        """Returns a weak reference to ``fn``, or one that keeps ``fn``, if it has no weak ones."""
        forget, key = self._captured.pop, id(fn)
        try:
            return weakref.ref(fn, lambda _: forget(key, None))
        except TypeError:
            return lambda: fn

    def _remember(self, key: int, known: _Known) -> None:
        """Adds an entry, and evicts the least recently used ones. Callers hold the lock."""
        replaced = self._known.pop(key, None)
        self._known_bytes += len(known.function.pickled)
        self._known_bytes -= 0 if replaced is None else len(replaced.function.pickled)
        self._known[key] = known
        while len(self._known) > _REMEMBERED or (
            self._known_bytes > _MAX_BYTES and len(self._known) > 1
        ):
            evicted, forgotten = self._known.popitem(last=False)
            self._known_bytes -= len(forgotten.function.pickled)
            self._captured.pop(evicted, None)


class _Known(NamedTuple):
    """A function as it was pickled last."""

    fn: Callable[[], object]
    generation: int
    function: PickledFunction

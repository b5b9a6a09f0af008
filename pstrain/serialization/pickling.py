"""Pickles functions and models, in which handles travel as keys and are resolved on arrival.

Handles are objects bound to a process, such as parameters and a trainer's iterators: ``dumps`` asks
the sender for the key of an object, ``loads`` asks the receiver for the object of a key. Knows no
registry of handles: both sides pass their own. Invariant: pickled bytes are never written to a
file, and are used within one session only.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

from dataservice.runtime.pickling.shipping import Pickler, unpickling, users_code_by_value
from dataservice.runtime.pickling.unpicklable import find_unpicklable
from pstrain.errors import InvalidArgumentError

Key = tuple[Any, ...]

_changes = itertools.count(1)
_generation = 0


def capture_generation() -> int:
    """Returns a number that grows whenever objects that sent functions may have captured change."""
    return _generation


def invalidate_sent_functions() -> None:
    """Has functions that are scheduled later sent again, with the then current captured values."""
    global _generation
    _generation = next(_changes)


def dumps(value: Any, key_of: Callable[[Any], Key | None]) -> bytes:
    """Pickles ``value``; objects for which ``key_of`` returns a key travel as that key.

    InvalidArgumentError, which names the part that cannot be pickled, and the reason.
    """
    try:
        return _pickled(value, key_of)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        what = "the arguments" if isinstance(value, tuple) else _name_of(value)
        again = functools.partial(_pickled, key_of=key_of)
        reason = find_unpicklable(value, error, again, name="arguments")
        raise InvalidArgumentError(
            f"cannot send {what}: {reason}; what belongs to this process (locks, connections, "
            "servers, iterators over datasets) is made inside of the function"
        ) from error


def _pickled(value: Any, key_of: Callable[[Any], Key | None]) -> bytes:
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5)
    pickler.key_of = key_of
    pickler.dump(value)
    return stream.getvalue()


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__


def dumps_function(value: Any, key_of: Callable[[Any], Key | None]) -> bytes:
    """Pickles like :func:`dumps`, with the code of user modules, which trainers cannot import."""
    with users_code_by_value():
        return dumps(value, key_of)


def loads(data: bytes, resolve: Callable[[Key], Any]) -> Any:
    """Unpickles the bytes of :func:`dumps`.

    Runs code from ``data``: only trainers may call it, on bytes from their coordinator.
    """
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.resolve = resolve
    with unpickling:
        return unpickler.load()


class _Pickler(Pickler):
    key_of: Callable[[Any], Key | None]

    def persistent_id(self, value: Any) -> Key | None:
        return self.key_of(value)


class _Unpickler(pickle.Unpickler):
    resolve: Callable[[Key], Any]

    def persistent_load(self, key: Key) -> Any:
        return self.resolve(key)

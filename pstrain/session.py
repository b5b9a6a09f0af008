"""Pickling of functions and models whose handles come alive where they arrive.

Objects that stand for something in the process (parameters, iterators of a trainer) travel as
keys: ``dumps`` asks the sender for an object's key, ``loads`` asks the receiver for the object of
a key. No registry: both sides pass their own. Bytes live as long as a session, never in a file.
"""

from __future__ import annotations

import functools
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

from dataservice.runtime.shipping import Pickler, users_code_by_value
from dataservice.runtime.unpicklable import find_unpicklable
from pstrain.errors import InvalidArgumentError

Key = tuple[Any, ...]

_changes = itertools.count(1)
_generation = 0


def generation() -> int:
    """Grows whenever something changes that functions which were sent before may have captured."""
    return _generation


def captured_changed() -> None:
    """Functions scheduled from now on are sent anew, with what they capture as it is by then."""
    global _generation
    _generation = next(_changes)


def dumps(value: Any, persistent: Callable[[Any], Key | None]) -> bytes:
    """Pickles ``value``; objects for which ``persistent`` answers a key travel as that key.

    Raises InvalidArgumentError naming what in ``value`` cannot be pickled, and the reason.
    """
    try:
        return _pickled(value, persistent)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        what = "the arguments" if isinstance(value, tuple) else _name_of(value)
        again = functools.partial(_pickled, persistent=persistent)
        reason = find_unpicklable(value, error, again, name="arguments")
        raise InvalidArgumentError(
            f"cannot send {what}: {reason}; what belongs to this process (locks, connections, "
            "servers, iterators over datasets) is made inside of the function"
        ) from error


def _pickled(value: Any, persistent: Callable[[Any], Key | None]) -> bytes:
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5)
    pickler.key_of = persistent
    pickler.dump(value)
    return stream.getvalue()


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__


def dumps_function(value: Any, persistent: Callable[[Any], Key | None]) -> bytes:
    """As :func:`dumps`, with the code of the user's own modules, which trainers can't import."""
    with users_code_by_value():
        return dumps(value, persistent)


def loads(data: bytes, resolve: Callable[[Key], Any]) -> Any:
    """Inverse of :func:`dumps`; runs code from ``data``, so only in trainers, from their peer."""
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.resolve = resolve
    return unpickler.load()


class _Pickler(Pickler):
    key_of: Callable[[Any], Key | None]

    def persistent_id(self, value: Any) -> Key | None:
        return self.key_of(value)


class _Unpickler(pickle.Unpickler):
    resolve: Callable[[Key], Any]

    def persistent_load(self, key: Key) -> Any:
        return self.resolve(key)

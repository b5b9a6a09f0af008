"""Restoring before variables exist: values wait here until a variable of their name is made.

Knows a checkpoint's names and shards, not who makes variables or why. Invariant: a waiting value
is given out once, and waits no longer than the object lives that it was restored for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pstrain.base_variable import BaseVariable
from pstrain.creation import Maker, tell_of_creations
from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.saved import Saved, check_shape


class Deferred:
    """The values of one object that had no variables when its checkpoint was restored."""

    def __init__(self, path: str, saved: Saved, prefix: str) -> None:
        self._path = path
        # A ledger belongs to the moment of a restore; it must not come back later.
        self._saved = saved._replace(session=None, ledgers={})
        names = [s.name for s in saved.shards if s.name.startswith(f"{prefix}/")]
        self.waiting = dict.fromkeys(names)
        self.restored: set[str] = set()
        self._prefix = prefix

    def wanted(self, variable: BaseVariable) -> tuple[str, str] | None:
        """The checkpoint's path and the value's name there, where one waits for this variable."""
        name = self._name_of(variable.spec.name)
        return None if name is None else (self._path, name)

    def give(self, variable: BaseVariable) -> None:
        """Gives a variable that is wanted its value; KeyError for another."""
        name = self._name_of(variable.spec.name)
        if name is None:
            raise KeyError(variable.spec.name)
        shard = next(s for s in self._saved.shards if s.name == name)
        check_shape(name, variable.spec.shape, variable.spec.dtype, shard)
        variable.parameters.load(self._path, {name: variable.spec}, self._saved)
        del self.waiting[name]
        self.restored.add(name)

    def _name_of(self, name: str) -> str | None:
        """Variables of one name come in the order in which they were saved."""
        full = f"{self._prefix}/{name}"
        return next((w for w in self.waiting if w == full or w.startswith(f"{full}#")), None)


class RestoreStatus(str):
    """The path of what was restored, and questions about whether that was all there is.

    The assertions raise AssertionError and return this object, as does :meth:`expect_partial`.
    """

    _saved: Saved
    _restored: set[str]
    _deferred: list[Deferred]
    _named: Callable[[], Iterable[tuple[str, BaseVariable]]]

    def __new__(
        cls,
        path: str,
        saved: Saved,
        restored: set[str],
        deferred: list[Deferred],
        named: Callable[[], Iterable[tuple[str, BaseVariable]]],
    ) -> RestoreStatus:
        status = super().__new__(cls, path)
        status._saved = saved
        status._restored = restored
        status._deferred = deferred
        status._named = named
        return status

    @property
    def path(self) -> str:
        """The checkpoint's path."""
        return str(self)

    def assert_consumed(self) -> RestoreStatus:
        """Every variable in the checkpoint was restored, and every existing one got its value."""
        left = sorted({shard.name for shard in self._saved.shards} - self._done())
        if left:
            raise AssertionError(f"not restored from {self}: {', '.join(left[:10])}")
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Every variable that the objects have by now got its value from the checkpoint."""
        left = [name for name, _ in self._named() if name not in self._done()]
        if left:
            raise AssertionError(f"{self} gave no value to: {', '.join(left[:10])}")
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Some variable was restored."""
        if not self._done():
            raise AssertionError(f"nothing was restored from {self}")
        return self

    def expect_partial(self) -> RestoreStatus:
        """Says that not all of the checkpoint is wanted; nothing warns of it here anyway."""
        return self

    def _done(self) -> set[str]:
        return self._restored.union(*(one.restored for one in self._deferred))


_lock = threading.Lock()
_waiting: list[tuple[weakref.ref[Any], Deferred]] = []


def defer(path: str, saved: Saved, objects: Mapping[str, Any]) -> list[Deferred]:
    """Keeps the values of ``objects``, which have no variables yet, until they make them."""
    deferred = []
    for prefix, value in objects.items():
        one = Deferred(path, saved, prefix)
        if not one.waiting:
            continue
        try:
            reference = weakref.ref(value)
        except TypeError as error:
            raise InvalidArgumentError(
                f"{prefix}={type(value).__name__} has no variables yet and cannot be watched "
                "until it has (no weak references): restore after they are made"
            ) from error
        with _lock:
            # The newest restore of an object is the one that counts.
            _waiting[:] = [(r, d) for r, d in _waiting if r() is not None and r() is not value]
            _waiting.append((reference, one))
        deferred.append(one)
    return deferred


def _created(variable: BaseVariable, maker: Maker | None) -> None:
    if not _waiting:
        return
    with _lock:
        _waiting[:] = [(r, d) for r, d in _waiting if r() is not None and d.waiting]
        candidates = [(reference(), deferred) for reference, deferred in _waiting]
    wanting = [(value, each) for value, each in candidates if each.wanted(variable)]
    of_maker = [each for value, each in wanting if value is maker]
    found = of_maker or [each for value, each in wanting if not isinstance(value, Maker)]
    if len({each.wanted(variable) for each in found}) > 1:
        raise InvalidArgumentError(
            f"a variable {variable.name!r} was restored for several objects, of which any may have "
            "made this one: give their variables names of their own, or restore after they are made"
        )
    if found:
        # One value waits for several objects where a model was made anew and the old one is still
        # there: the newest is the one in use, and the others keep theirs.
        found[-1].give(variable)


tell_of_creations(_created)

"""Restoring before variables exist: values wait here until a variable of their name is made.

Knows a checkpoint's names and shards, not who makes variables or why. Invariant: a waiting value
comes to each object that waits for it once, and waits no longer than that object lives.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.saved import Saved, check_shape
from pstrain.variables.attributes import has_within
from pstrain.variables.base import BaseVariable
from pstrain.variables.creation import Maker, tell_of_creations
from pstrain.variables.names import Key, Named, key_of, variables_of


class Restored:
    """A checkpoint that was restored, and which variables have got each of its values.

    ``saved`` has values under all of their names, ``aliases`` says for each further name of a
    value under which it is stored.
    """

    def __init__(self, path: str, saved: Saved, aliases: Mapping[str, str]) -> None:
        self.path = path
        self.saved = saved
        self._aliases = aliases
        self._given: dict[str, set[Key]] = {}
        self._waiting: Counter[str] = Counter()

    def stored_as(self, name: str) -> str:
        """Under which name the checkpoint stores the values of this name."""
        return self._aliases.get(name, name)

    def give(self, variable: BaseVariable, name: str) -> None:
        """Says that the variable has the values of this name."""
        self._given.setdefault(self.stored_as(name), set()).add(key_of(variable))

    def given(self, name: str) -> set[Key]:
        """The variables that have the values of this name."""
        return self._given.get(self.stored_as(name), set())

    def wait(self, name: str) -> None:
        """One more object waits for the values of this name."""
        self._waiting[self.stored_as(name)] += 1

    def is_shared(self, name: str) -> bool:
        """Whether several objects waited for the values of this name, under any of its names."""
        return self._waiting[self.stored_as(name)] > 1

    def left(self) -> list[str]:
        """What the checkpoint stores and nobody has got."""
        return sorted({self.stored_as(s.name) for s in self.saved.shards} - self._given.keys())

    @property
    def is_trivial(self) -> bool:
        """Whether no variable has got anything."""
        return not self._given


class Deferred:
    """The values of variables that one object lacked when its checkpoint was restored.

    ``is_partial``: it had others, so that a variable is known to be its own by who makes it alone.
    """

    def __init__(self, restored: Restored, prefix: str, *, is_partial: bool) -> None:
        self.is_partial = is_partial
        self._restored = restored
        # A ledger belongs to the moment of a restore; it must not come back later.
        self._saved = restored.saved._replace(session=None, ledgers={})
        names = [s.name for s in self._saved.shards if s.name.startswith(f"{prefix}/")]
        self.waiting = {n: None for n in names if not (is_partial and restored.given(n))}
        self._prefix = prefix
        for name in self.waiting:
            restored.wait(name)

    def wanted(self, variable: BaseVariable) -> tuple[str, str] | None:
        """The checkpoint's path and the value's name there, where one waits for this variable."""
        name = self._name_of(variable.spec.name)
        return None if name is None else (self._restored.path, self._restored.stored_as(name))

    @property
    def path(self) -> str:
        """The checkpoint's path."""
        return self._restored.path

    def give(self, variable: BaseVariable) -> None:
        """Gives a variable that is wanted its value; KeyError for another."""
        name = self._name_of(variable.spec.name)
        if name is None:
            raise KeyError(variable.spec.name)
        shard = next(s for s in self._saved.shards if s.name == name)
        check_shape(name, variable.spec.shape, variable.spec.dtype, shard)
        variable.parameters.load(self._restored.path, {name: variable.spec}, self._saved)
        if not self._restored.is_shared(name):
            del self.waiting[name]
        # Else it may be another object that waits that has made it: see forget_reached.
        self._restored.give(variable, name)

    def forget_reached(self, value: Any) -> None:
        """Waits no longer for what ``value``, the object, has by now, under whichever name."""
        if any(self._restored.given(name) for name in self.waiting):
            there = {key_of(variable) for variable in value.variables}
            self.waiting = {n: None for n in self.waiting if not there & self._restored.given(n)}

    def _name_of(self, name: str) -> str | None:
        """Variables of one name come in the order in which they were saved.

        What fewer have got goes before: what several objects wait for may be one's alone.
        """
        full = f"{self._prefix}/{name}"
        fitting = (w for w in self.waiting if w == full or w.startswith(f"{full}#"))
        return min(fitting, key=lambda w: len(self._restored.given(w)), default=None)


class RestoreStatus(str):
    """The path of what was restored, and questions about whether that was all there is.

    The assertions raise AssertionError and return this object, as does :meth:`expect_partial`.
    """

    _checkpoint: Restored
    _named: Callable[[], Iterable[Named]]

    def __new__(cls, restored: Restored, named: Callable[[], Iterable[Named]]) -> RestoreStatus:
        status = super().__new__(cls, restored.path)
        status._checkpoint = restored
        status._named = named
        return status

    @property
    def path(self) -> str:
        """The checkpoint's path."""
        return str(self)

    def assert_consumed(self) -> RestoreStatus:
        """Every variable in the checkpoint was restored, and every existing one got its value."""
        left = self._checkpoint.left()
        if left:
            raise AssertionError(f"not restored from {self}: {', '.join(left[:10])}")
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Every variable that the objects have by now got its value from the checkpoint."""
        given = self._checkpoint.given
        left = [each.names[0] for each in self._named() if not any(map(given, each.names))]
        if left:
            raise AssertionError(f"{self} gave no value to: {', '.join(left[:10])}")
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Some variable was restored."""
        if self._checkpoint.is_trivial:
            raise AssertionError(f"nothing was restored from {self}")
        return self

    def expect_partial(self) -> RestoreStatus:
        """Says that not all of the checkpoint is wanted; nothing warns of it here anyway."""
        return self


_lock = threading.Lock()
_waiting: list[tuple[weakref.ref[Any], Deferred]] = []


def defer(restored: Restored, objects: Mapping[str, Any]) -> None:
    """Keeps the values of variables that ``objects`` have not made yet, until they make them."""
    for prefix, value in objects.items():
        one = Deferred(restored, prefix, is_partial=bool(variables_of(value)))
        if not one.waiting:
            continue
        try:
            reference = weakref.ref(value)
        except TypeError as error:
            if one.is_partial:
                continue  # what is left may be what it never has
            raise InvalidArgumentError(
                f"{prefix}={type(value).__name__} has no variables yet and cannot be watched "
                "until it has (no weak references): restore after they are made"
            ) from error
        with _lock:
            # The newest restore of an object is the one that counts.
            _waiting[:] = [(r, d) for r, d in _waiting if r() is not None and r() is not value]
            _waiting.append((reference, one))
        if isinstance(value, Maker):
            value.make_variables()


def awaited(objects: Mapping[str, Any]) -> dict[str, str]:
    """Names of objects that have made none of their variables yet, and whose values wait for them
    in which checkpoint."""
    with _lock:
        waiting = [(r(), d.path) for r, d in _waiting if d.waiting and not d.is_partial]
    return {
        name: path
        for name, value in objects.items()
        for other, path in waiting
        if other is value and not variables_of(value)
    }


def _created(variable: BaseVariable, maker: Maker | None) -> None:
    if not _waiting:
        return
    with _lock:
        _waiting[:] = [(r, d) for r, d in _waiting if r() is not None and d.waiting]
        watched = [(reference(), deferred) for reference, deferred in _waiting]
    candidates = [(value, each) for value, each in watched if value is not None]
    for value, each in candidates:
        each.forget_reached(value)
    wanting = [(value, each) for value, each in candidates if each.wanted(variable)]
    of_maker = [each for value, each in wanting if value is maker]
    if maker is not None and not of_maker:
        of_maker = [each for value, each in wanting if has_within(value, maker)]
    found = of_maker or [
        each for value, each in wanting if not (each.is_partial or isinstance(value, Maker))
    ]
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

"""Deferred restores: keeps values of a checkpoint until a variable of their name is created.

Knows the names and shards of a checkpoint, not who creates variables or why. Invariant: each object
that waits for a value gets it once, and the value is kept no longer than that object lives.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pstrain.errors import InvalidArgumentError, NotFoundError
from pstrain.paramserver.saved import Saved, check_shape
from pstrain.variables.attributes import has_within
from pstrain.variables.base import BaseVariable
from pstrain.variables.creation import Maker, on_creation
from pstrain.variables.names import Key, Named, key_of, variables_of


class RestoredCheckpoint:
    """A checkpoint that was restored, and the variables that have received each of its values.

    ``saved`` lists each value under all of its names; ``aliases`` maps each further name of a value
    to the name under which it is stored.
    """

    def __init__(self, path: str, saved: Saved, aliases: Mapping[str, str]) -> None:
        self.path = path
        self.saved = saved
        self._aliases = aliases
        self._receivers: dict[str, set[Key]] = {}
        self._waiting: Counter[str] = Counter()

    def stored_as(self, name: str) -> str:
        """Returns the name under which the checkpoint stores the value called ``name``."""
        return self._aliases.get(name, name)

    def record(self, variable: BaseVariable, name: str) -> None:
        """Records that ``variable`` has received the value called ``name``."""
        self._receivers.setdefault(self.stored_as(name), set()).add(key_of(variable))

    def receivers(self, name: str) -> set[Key]:
        """Returns the variables that have received the value called ``name``."""
        return self._receivers.get(self.stored_as(name), set())

    def add_waiting(self, name: str) -> None:
        """Counts one more object that waits for the value called ``name``."""
        self._waiting[self.stored_as(name)] += 1

    def is_shared(self, name: str) -> bool:
        """True if several objects have waited for the value called ``name`` or an alias of it."""
        return self._waiting[self.stored_as(name)] > 1

    def unused(self) -> list[str]:
        """Returns the stored names of values that no variable has received, in sorted order."""
        return sorted({self.stored_as(s.name) for s in self.saved.shards} - self._receivers.keys())

    @property
    def is_trivial(self) -> bool:
        """Whether no variable has received a value."""
        return not self._receivers


class Deferred:
    """The values that wait for variables which one object lacked when its checkpoint was restored.

    ``is_partial`` means that the object already had some variables. A new variable then counts as
    the object's own only if its :class:`Maker` is the object or is within it.
    """

    def __init__(self, restored: RestoredCheckpoint, prefix: str, *, is_partial: bool) -> None:
        self.is_partial = is_partial
        self._restored = restored
        # A ledger is valid at the moment of the restore only; a later load must not bring it back.
        self._saved = restored.saved._replace(session=None, ledgers={})
        names = [s.name for s in self._saved.shards if s.name.startswith(f"{prefix}/")]
        self.waiting = {n: None for n in names if not (is_partial and restored.receivers(n))}
        self._prefix = prefix
        for name in self.waiting:
            restored.add_waiting(name)

    def wanted(self, variable: BaseVariable) -> tuple[str, str] | None:
        """Returns the checkpoint's path and the stored name of the value for ``variable``.

        None if no value waits for it.
        """
        name = self._name_of(variable.spec.name)
        return None if name is None else (self._restored.path, self._restored.stored_as(name))

    @property
    def path(self) -> str:
        """The checkpoint's path."""
        return self._restored.path

    def lacks(self, variable: BaseVariable) -> NotFoundError:
        """Returns the error of a variable of the waiting object for which no value waits."""
        name = variable.spec.name
        return NotFoundError(
            f"checkpoint {self.path} holds no variable {f'{self._prefix}/{name}'!r}, for which a "
            f"restored object waited; it holds {', '.join(sorted(self.waiting))}: give the object, "
            "or the layer in it, the name under which it was saved"
        )

    def load_into(self, variable: BaseVariable) -> None:
        """Loads the waiting value into ``variable``; raises KeyError if no value waits for it."""
        name = self._name_of(variable.spec.name)
        if name is None:
            raise KeyError(variable.spec.name)
        shard = next(s for s in self._saved.shards if s.name == name)
        check_shape(name, variable.spec.shape, variable.spec.dtype, shard)
        variable.parameters.load(self._restored.path, {name: variable.spec}, self._saved)
        if not self._restored.is_shared(name):
            del self.waiting[name]
        # A shared value stays: another waiting object may have made this variable. See
        # forget_reached.
        self._restored.record(variable, name)

    def forget_reached(self, value: Any) -> None:
        """Drops the values that variables of ``value``, the waiting object, have received."""
        if any(self._restored.receivers(name) for name in self.waiting):
            there = {key_of(variable) for variable in value.variables}
            self.waiting = {
                n: None for n in self.waiting if not there & self._restored.receivers(n)
            }

    def _name_of(self, name: str) -> str | None:
        """Returns the checkpoint's name of the value for a new variable ``name``, or None.

        Variables of one name get their values in the order in which they were saved. Values that
        fewer variables have received come first, since a value for which several objects wait may
        belong to one object alone.
        """
        full = f"{self._prefix}/{name}"
        fitting = (w for w in self.waiting if w == full or w.startswith(f"{full}#"))
        return min(fitting, key=lambda w: len(self._restored.receivers(w)), default=None)


class RestoreStatus(str):
    """The path of the restored checkpoint, with assertions on how much of it was restored.

    The assertions raise AssertionError, or return this object, as :meth:`expect_partial` does.
    """

    _checkpoint: RestoredCheckpoint
    _named: Callable[[], Iterable[Named]]

    def __new__(
        cls, restored: RestoredCheckpoint, named: Callable[[], Iterable[Named]]
    ) -> RestoreStatus:
        status = super().__new__(cls, restored.path)
        status._checkpoint = restored
        status._named = named
        return status

    @property
    def path(self) -> str:
        """The checkpoint's path."""
        return str(self)

    def assert_consumed(self) -> RestoreStatus:
        """Asserts that each value in the checkpoint was used and each existing variable got one."""
        left = self._checkpoint.unused()
        if left:
            raise AssertionError(f"not restored from {self}: {', '.join(left[:10])}")
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Asserts that each variable that the objects have by now got its value."""
        receivers = self._checkpoint.receivers
        left = [each.names[0] for each in self._named() if not any(map(receivers, each.names))]
        if left:
            raise AssertionError(f"{self} gave no value to: {', '.join(left[:10])}")
        return self

    def assert_nontrivial_match(self) -> RestoreStatus:
        """Asserts that at least one variable was restored."""
        if self._checkpoint.is_trivial:
            raise AssertionError(f"nothing was restored from {self}")
        return self

    def expect_partial(self) -> RestoreStatus:
        """Does nothing: no warning is given for values of the checkpoint that nobody uses."""
        return self


_lock = threading.Lock()
_waiting: list[tuple[weakref.ref[Any], Deferred]] = []


def defer(restored: RestoredCheckpoint, objects: Mapping[str, Any]) -> None:
    """Keeps values for the variables that ``objects`` have not made yet, until they make them.

    Raises InvalidArgumentError for an object without variables that allows no weak references.
    """
    for prefix, value in objects.items():
        one = Deferred(restored, prefix, is_partial=bool(variables_of(value)))
        if not one.waiting:
            continue
        try:
            reference = weakref.ref(value)
        except TypeError as error:
            if one.is_partial:
                continue  # the object may never make variables for the remaining values
            raise InvalidArgumentError(
                f"{prefix}={type(value).__name__} has no variables yet and cannot be watched "
                "until it has (no weak references): restore after they are made"
            ) from error
        with _lock:
            # Of several restores of an object the newest counts.
            _waiting[:] = [(r, d) for r, d in _waiting if r() is not None and r() is not value]
            _waiting.append((reference, one))
        if isinstance(value, Maker):
            value.make_variables()


def awaited(objects: Mapping[str, Any]) -> dict[str, str]:
    """Maps the names of objects whose values all still wait to the paths of their checkpoints.

    These are the objects that have made none of their variables yet.
    """
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
    of_maker = _of_maker(wanting, maker)
    found = of_maker or [
        each for value, each in wanting if not (each.is_partial or isinstance(value, Maker))
    ]
    if len({each.wanted(variable) for each in found}) > 1:
        raise InvalidArgumentError(
            f"a variable {variable.name!r} was restored for several objects, of which any may have "
            "made this one: give their variables names of their own, or restore after they are made"
        )
    if found:
        # Several objects wait for one value if a model was made anew while the old one still
        # exists. The newest object is the one in use; the others go on waiting.
        found[-1].load_into(variable)
    else:
        for lacking in _of_maker(candidates, maker):
            if not lacking.is_partial:
                raise lacking.lacks(variable)


def _of_maker(waiting: list[tuple[Any, Deferred]], maker: Maker | None) -> list[Deferred]:
    """Returns the values that wait for the object ``maker``, or else for objects that hold it."""
    if maker is None:
        return []
    own = [each for value, each in waiting if value is maker]
    return own or [each for value, each in waiting if has_within(value, maker)]


on_creation(_created)

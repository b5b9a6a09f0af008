"""Checkpoints of models, optimizers, metrics, variables and data positions, committed together.

Each server writes its own rows, in parallel; this module names the objects and writes the manifest.
Must not know how values travel. Invariant: variables are matched by name, never by order or id, so
any number of servers and shards restores what any other number saved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dataservice.runtime.arguments import check_callable, check_true_or_false, limit_s
from dataservice.runtime.identity import new_id
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from pstrain.checkpoints import joined, manifest, saving
from pstrain.checkpoints.manifest import Path, checkpoints, latest_checkpoint
from pstrain.checkpoints.objects import (
    Attached,
    HasRate,
    check_held,
    check_objects,
    describe,
    is_stateful,
)
from pstrain.checkpoints.saving import SavedCheckpoint
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.paramserver.increments import Base, size_beyond
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.serialization.pickling import invalidate_sent_functions
from pstrain.variables import names as variable_names
from pstrain.variables.creation import Maker
from pstrain.variables.deferred import RestoredCheckpoint, RestoreStatus, awaited, defer
from pstrain.variables.names import Group, Key, Named, grouped, has_variables, key_of
from pstrain.variables.parameters import ParametersSnapshot

__all__ = ["Checkpoint", "checkpoints", "latest_checkpoint"]

logger = logging.getLogger(__name__)


_NOT_MADE = (
    "%r has not made its variables yet, so a checkpoint saved now lacks their "
    "values, which are in %s: use %r once after a restore, then save"
)


class Checkpoint(Hinting):
    """Saves and restores objects, each under the name it is given here.

    ``Checkpoint(model=model, optimizer=optimizer, data=iterator)``: an object has ``variables``,
    is a variable, or has ``state_dict``/``load_state_dict`` (JSON-able); None is left out.
    A variable that several objects reach, as in ``Checkpoint(net=net, encoder=net.encoder)``, is
    saved once and restored by any of its names; state is saved with each object.
    ``checkpoint.model`` is the object of that name. Optimizer slots are saved with their rows, and
    a learning rate that the program has set is saved with its optimizer. Everything is saved as it
    is at one moment at which no closure is in flight. ``restore`` may come before an object has
    made its variables: each gets its value when it is made. If the object has some variables
    already, this holds only for new variables of layers in its attributes, lists or dicts.
    """

    _remedies = foreign_names.CHECKPOINT_OBJECT

    def __init__(self, *unnamed: Any, **objects: Any) -> None:
        if unnamed:
            raise InvalidTypeError(
                f"each object is saved under a name, got {unnamed[0]!r} without one; give it as in "
                "Checkpoint(model=m)"
            )
        self._objects = {name: value for name, value in objects.items() if value is not None}
        if not self._objects:
            raise InvalidArgumentError("nothing to save: give objects, as in Checkpoint(model=m)")
        check_objects(self._objects)
        self._last: SavedCheckpoint | None = None
        self._under_way: SavedCheckpoint | None = None
        self._newest = _Newest(None, {})
        self.followers: list[Follower] = []
        self._attached: dict[str, Attached] = {}
        self._restored: dict[str, Any] = {}
        # Taken by threads that save, and by those that restore lost servers.
        self._lock = threading.RLock()

    if not TYPE_CHECKING:  # as in `Hinting`

        def __getattr__(self, name: str) -> Any:
            objects = vars(self).get("_objects", {})
            return objects[name] if name in objects else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in vars(self) and name != "followers":
            raise InvalidTypeError(
                "an object is saved only if it was given when the Checkpoint was made: "
                f"Checkpoint(..., {name}={name})"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<Checkpoint of {', '.join(self._objects)}>"

    @refuse_arguments("save", foreign_arguments.SAVE_OF_CHECKPOINT)
    def save(
        self,
        directory: Path,
        *,
        name: str = "ckpt",
        number: int | None = None,
        asynchronous: bool = False,
        incremental: bool = False,
        written: Callable[[str], None] | None = None,
    ) -> SavedCheckpoint:
        """Writes ``<directory>/<name>-<number>``; returns its path, with figures about the save.

        Closures in flight end first, and no other begins until a snapshot is taken, which takes
        milliseconds; training goes on while files are written. Blocks until the checkpoint is on
        disk, unless ``asynchronous``: then ``wait()`` of the result, or else the next save, raises
        the error of a failed save. ``written`` is called with the path, perhaps by another thread,
        once the checkpoint is visible.
        ``incremental`` saves write, of a large table, only the rows that changed since the last
        such save of this object, beside hard links to the files of that save. They write the whole
        table if the changes add up to half of it, or if more than eight objects save it in turns,
        since a table knows the changes since its last eight saves. Older checkpoints may still be
        removed; damage to a file that several checkpoints share damages all of them.
        ``number`` None means one above the highest in ``directory``. Parameter servers write into
        the directory too, so it must be the same place on their hosts.
        """
        check_true_or_false(asynchronous=asynchronous, incremental=incremental)
        check_callable("written", written, optional=True)
        self.wait()
        self._make_variables()
        partial = manifest.PartialCheckpoint(directory, name, number)
        held = contextlib.ExitStack()
        try:
            saved, moment = self._begin(partial, held, is_incremental=incremental)
        except BaseException:
            held.close()
            partial.end()
            raise
        base = moment.base
        newest = _Newest(None, {key: part.moment for key, part in moment.parts.items()})

        def write(folder: str) -> saving.Written:
            nonlocal newest
            values = _write_values(folder, list(moment.parts.values()), base)
            for group in grouped(self._named()):
                group.parameters.check_current()
            newest = newest._replace(base=Base(partial.path, values.shards))
            size_bytes = None if base is None else size_beyond(folder, values.shards, base)
            return saving.Written({**moment.contents, "saved": values.to_json()}, size_bytes)

        def tell(path: str) -> None:
            if incremental:
                self._newest = newest
            for follower, mark in moment.marks:
                follower.committed(mark, path)

        saving.save(
            saved,
            partial,
            write,
            held.close,
            asynchronous=asynchronous,
            written=[tell, *([] if written is None else [written])],
        )
        self._last = saved
        return saved

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Enters a scope in which no other thread saves, after a save in flight has ended."""
        with self._lock:
            if self._under_way is not None:
                self._under_way.wait_ended()
            yield

    def attach(self, name: str, value: Attached) -> Any:
        """Saves and restores ``value`` too; a checkpoint without it gives it the state None.

        Returns its state, once, in the checkpoint that this object restored last, or None.
        """
        if name in self._objects or name in self._attached:
            raise InvalidArgumentError(f"the checkpoint already holds an object named {name!r}")
        self._attached[name] = value
        return self._restored.pop(name, {}).get("state")

    def detach(self, name: str) -> None:
        """Reverses :meth:`attach`."""
        del self._attached[name]

    def follow(self, follower: Follower) -> None:
        """Notifies ``follower`` of each save and restore from now on."""
        self.followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        """Reverses :meth:`follow`."""
        self.followers.remove(follower)

    @refuse_timeout_s("wait")
    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the last save has ended; raises its error, unless it was raised before.

        Raises DeadlineExceededError after ``timeout`` seconds.
        """
        left_s = limit_s(timeout)
        last = self._last
        if last is None:
            return
        try:
            if not last.was_error_raised:
                last.wait(left_s)
        finally:
            # A save that goes on must be waited for again: its error may still have to be raised.
            if last.has_ended and self._last is last:
                self._last = None

    def _make_variables(self) -> None:
        """Makes what can be made before first use, and warns of objects that still lack all."""
        for value in self._objects.values():
            if isinstance(value, Maker):
                value.make_variables()
        for waiting, path in awaited(self._objects).items():
            logger.warning(_NOT_MADE, waiting, path, waiting)

    def _begin(
        self,
        partial: manifest.PartialCheckpoint,
        held: contextlib.ExitStack,
        *,
        is_incremental: bool,
    ) -> tuple[SavedCheckpoint, _Held]:
        """Begins a save; returns it, with the snapshot that is held for it."""
        with self._lock:
            moment = self._hold(held, self._newest if is_incremental else None)
            saved = self._under_way = SavedCheckpoint(
                partial.path,
                pause_s=moment.pause_s,
                drain_s=moment.drain_s,
                size_bytes=sum(part.size_bytes for part in moment.parts.values()),
            )
        return saved, moment

    def _hold(self, held: contextlib.ExitStack, last: _Newest | None) -> _Held:
        """Takes a snapshot of everything at one moment; closing ``held`` releases it."""
        named = self._named()
        groups = grouped(named)
        asked_s = time.monotonic()
        with contextlib.ExitStack() as barriers:
            for group in groups:
                barriers.enter_context(group.parameters.barrier())
            reached_s = time.monotonic()
            saved = {**self._objects, **self._attached}
            objects = {name: describe(value) for name, value in saved.items()}
            contents = {"objects": objects, "aliases": variable_names.aliases(named)}
            contents["joined"] = joined.to_json(variable_names.joined(self._objects))
            manifest.check_json(contents)
            marks = [(follower, follower.mark_moment()) for follower in self.followers]
            parts = {}
            for group in groups:
                key = id(group.parameters)
                tracking = None if last is None else Tracking(last.moments.get(key))
                part = parts[key] = group.parameters.snapshot(group.specs, tracking)
                held.callback(part.close)
        pause_s = time.monotonic() - reached_s
        contents["consistency"] = _consistency(groups)
        base = None if last is None else last.base
        return _Held(contents, parts, marks, base, reached_s - asked_s, pause_s)

    @refuse_arguments("restore", foreign_arguments.RESTORE_OF_CHECKPOINT)
    def restore(
        self, path: Path | None, *, with_attached: bool = False, keeps_rates: bool = False
    ) -> RestoreStatus:
        """Restores all objects from a checkpoint, or from the newest in a directory.

        An object without variables gets its values when it makes its variables. The returned path
        has ``assert_consumed`` and similar methods that check how much was restored. No variable
        changes unless all variables fit, no file is damaged and every object accepts its state,
        which it gets before variables change. Raises NotFoundError for a missing checkpoint, object
        or variable, InvalidArgumentError for a variable of another shape or dtype, and
        DataLossError for damaged files. ``path`` None, the newest checkpoint of a directory without
        any, restores nothing. ``with_attached`` restores attached objects too. With
        ``keeps_rates``, optimizers keep the learning rates that the running program has set.
        """
        if path is None:
            return RestoreStatus(RestoredCheckpoint("", Saved(()), {}), self._named)
        found = manifest.find(path)
        contents = manifest.read(found)
        parts = variable_names.joined(self._objects)
        saved = joined.recut(Saved.from_json(contents["saved"]), contents.get("joined", {}), parts)
        saved = saved.also_called(contents["aliases"])
        stored = {shard.name: shard for shard in saved.shards}
        named = self._named()
        check_held(found, self._objects, contents, named, stored)
        _load_values(
            found, saved, grouped(named, stored), lambda: self._load_states(contents["objects"])
        )
        if not keeps_rates:
            self._restore_rates(contents["objects"])
        for name, attached in self._attached.items() if with_attached else ():
            attached.load_state_dict(contents["objects"].get(name, {}).get("state"))
        self._restored = dict(contents["objects"])
        invalidate_sent_functions()
        for follower in self.followers:
            follower.restored(found)
        logger.info("restored checkpoint %s", found)
        restored = RestoredCheckpoint(found, saved, contents["aliases"])
        for each in named:
            restored.record(each.variable, each.found_as(stored))
        defer(restored, {n: value for n, value in self._objects.items() if has_variables(value)})
        return RestoreStatus(restored, self._named)

    def _load_states(self, saved: Mapping[str, Any]) -> None:
        for name, value in self._objects.items():
            if name in saved and is_stateful(value):
                value.load_state_dict(saved[name]["state"])

    def _restore_rates(self, saved: Mapping[str, Any]) -> None:
        for name, value in self._objects.items():
            if isinstance(value, HasRate):
                value.restore_rate(saved.get(name, {}).get("rate", {}))

    def holds(self) -> set[Key]:
        """Returns the variables that a save at this moment would write."""
        return {key_of(each.variable) for each in self._named()}

    def _named(self) -> list[Named]:
        return variable_names.named(self._objects)


class Follower(Protocol):
    """An observer of saves and restores, which has to know the moments that can be restored."""

    def mark_moment(self) -> Any:
        """Called at the moment of a snapshot; returns a mark that names the moment."""

    def committed(self, mark: Any, path: str) -> None:
        """Called, by any thread, when the checkpoint of the moment ``mark`` is complete."""

    def restored(self, path: str) -> None:
        """Called when everything has been restored from the checkpoint at ``path``."""


class _Held(NamedTuple):
    """The snapshot of one moment: the manifest's contents, and values by ``id`` of parameters.

    ``marks`` are the followers' marks of the moment, ``base`` is the checkpoint to build on;
    ``drain_s`` and ``pause_s`` are those of :class:`SavedCheckpoint`.
    """

    contents: dict[str, Any]
    parts: dict[int, ParametersSnapshot]
    marks: list[tuple[Follower, Any]]
    base: Base | None
    drain_s: float
    pause_s: float


class _Newest(NamedTuple):
    """The checkpoint on which the next one may build, and its moments by ``id`` of parameters."""

    base: Base | None
    moments: dict[int, str]


def _consistency(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Returns the consistency rule of the values; None if all values are of this process."""
    rules = (getattr(group.parameters, "consistency", None) for group in groups)
    return next((rule.to_json() for rule in rules if rule is not None), None)


def _load_values(
    path: str, saved: Saved, groups: Sequence[Group], agree: Callable[[], None]
) -> None:
    """Loads all groups; no value changes before every group is checked and ``agree`` returned."""
    if not groups:
        agree()
        return
    (parameters, specs), rest = groups[0], groups[1:]
    parameters.load(path, specs, saved, lambda: _load_values(path, saved, rest, agree))


def _write_values(folder: str, parts: Sequence[ParametersSnapshot], base: Base | None) -> Saved:
    shards, session, ledgers = [], None, {}
    for part in parts:
        # A unique name, so that a checkpoint that is replaced keeps its files until it is.
        place = new_id("values")
        saved = part.write(os.path.join(folder, place), base)
        shards += [shard.inside(place) for shard in saved.shards]
        if saved.session is not None:
            session, ledgers = saved.session, saved.ledgers
    return Saved(tuple(shards), session, ledgers)

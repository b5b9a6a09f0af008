"""Checkpoints of models, optimizers, metrics, variables and data positions, committed together.

Servers write their own rows, side by side; this module names things and writes the manifest.
Must not know how values travel. Invariant: variables are matched by name, never by order or id,
so any number of servers and shards restores what any other number saved.
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
from pstrain import foreign_names
from pstrain.checkpoints import manifest, saving
from pstrain.checkpoints.manifest import Path, checkpoints, latest_checkpoint
from pstrain.checkpoints.saving import Pauses, SavedCheckpoint
from pstrain.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from pstrain.foreign_names import Telling, instead_of
from pstrain.paramserver.increments import Base, size_beyond
from pstrain.paramserver.saved import Saved, SavedShard, Tracking, check_shape
from pstrain.session import captured_changed
from pstrain.variables import names as variable_names
from pstrain.variables.base import BaseVariable
from pstrain.variables.deferred import Restored, RestoreStatus, defer
from pstrain.variables.names import Key, Named, grouped, has_variables, key_of
from pstrain.variables.parameters import ParametersSnapshot

__all__ = ["Checkpoint", "checkpoints", "latest_checkpoint", "read_config"]

logger = logging.getLogger(__name__)


class Checkpoint(Telling):
    """Saves and restores objects, each under the name it is given here.

    ``Checkpoint(model=model, optimizer=optimizer, data=iterator)``: an object has ``variables``,
    is a variable, or has ``state_dict``/``load_state_dict`` (JSON-able); None stands for nothing.
    What several of them reach, as in ``Checkpoint(net=net, encoder=net.encoder)``, is saved once
    and restored by any of its names; state is saved with each.
    ``checkpoint.model`` is the object of that name. Optimizer slots are saved with the rows they
    belong to. Everything is saved as it is at one
    moment, at which no closure is under way. ``restore`` may come before an object has made its
    variables: they then get their values as they are made, where it has some already those of
    layers that it has in attributes, lists or dicts.
    """

    _foreign = foreign_names.CHECKPOINT_OBJECT

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
        self._newest = _Moment(None, {})
        self.followers: list[Follower] = []
        self._attached: dict[str, Attached] = {}
        self._restored: dict[str, Any] = {}
        # Threads that save, and those that bring lost servers back.
        self._lock = threading.RLock()

    if not TYPE_CHECKING:  # as `Telling` has it

        def __getattr__(self, name: str) -> Any:
            objects = vars(self).get("_objects", {})
            return objects[name] if name in objects else super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in vars(self) and name != "followers":
            raise InvalidTypeError(
                f"an object is saved that was given when the Checkpoint was made, not later: "
                f"Checkpoint(..., {name}={name})"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<Checkpoint of {', '.join(self._objects)}>"

    @instead_of("save", foreign_names.SAVE_OF_CHECKPOINT)
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
        """Writes ``<directory>/<name>-<number>``; its path, and what the save took.

        Closures that are under way end first, and no other begins until the values are held, which
        takes milliseconds; they go on while files are written. Blocks until it is on disk, unless
        ``asynchronous``: the next save, or ``wait()`` of what is returned, then raises what went
        wrong. ``written`` is called, perhaps by another thread, when the checkpoint can be seen.
        ``incremental``: large tables write the rows that changed since the last such save of this
        object, beside hard links to the files of that one, and all of their rows where the changes
        since then add up to half a table, or more than eight objects save it in turns: it knows
        what changed since its last eight saves. Others may be removed all the same; damage to a
        file that several share is damage to all of them.
        ``number`` None: one above the highest there. Parameter servers write into the directory
        too, so it must be the same place on their hosts.
        """
        check_true_or_false(asynchronous=asynchronous, incremental=incremental)
        check_callable("written", written, optional=True)
        self.wait()
        partial = manifest.PartialCheckpoint(directory, name, number)
        pauses, held = Pauses(), contextlib.ExitStack()
        try:
            with self._lock:
                last = self._newest if incremental else None
                contents, parts, marks = self._hold(pauses, held, last)
                consistency = self._consistency()
                size_bytes = sum(part.size_bytes for part in parts.values())
                saved = self._under_way = SavedCheckpoint(partial.path, pauses, size_bytes)
        except BaseException:
            held.close()
            partial.end()
            raise

        base = None if last is None else last.base
        newest = _Moment(None, {key: part.moment for key, part in parts.items()})

        def write(folder: str) -> saving.Written:
            nonlocal newest
            values = _write_values(folder, list(parts.values()), base)
            for group in grouped(self._named()):
                group.parameters.check_current()
            newest = newest._replace(base=Base(partial.path, values.shards))
            size_bytes = None if base is None else size_beyond(folder, values.shards, base)
            described = {"consistency": consistency, "saved": values.to_json()}
            return saving.Written({**contents, **described}, size_bytes)

        def tell(_path: str) -> None:
            if incremental:
                self._newest = newest
            for follower, mark in marks:
                follower.committed(mark)

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
        """Scope in which no other thread saves: what one was writing is there, or not, by then."""
        with self._lock:
            if self._under_way is not None:
                self._under_way.wait_ended()
            yield

    def attach(self, name: str, value: Attached) -> Any:
        """Has ``value`` saved and restored too; a checkpoint that lacks it gives it None.

        Returns its state in the checkpoint that this object restored last, once, or None.
        """
        if name in self._objects or name in self._attached:
            raise InvalidArgumentError(f"the checkpoint already holds an object named {name!r}")
        self._attached[name] = value
        return self._restored.pop(name, {}).get("state")

    def detach(self, name: str) -> None:
        """Inverse of :meth:`attach`."""
        del self._attached[name]

    def follow(self, follower: Follower) -> None:
        """Has somebody told of each save and restore."""
        self.followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        """Inverse of :meth:`follow`."""
        self.followers.remove(follower)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the last save has ended; raises what it failed with, once."""
        left_s = limit_s(timeout)
        last = self._last
        if last is None:
            return
        try:
            last.wait(left_s)
        finally:
            # One that goes on is waited for again, and its error is yet to be told.
            if last.has_ended and self._last is last:
                self._last = None

    def _hold(
        self, pauses: Pauses, held: contextlib.ExitStack, last: _Moment | None
    ) -> tuple[dict[str, Any], dict[int, ParametersSnapshot], list[tuple[Follower, Any]]]:
        """Everything as it is at one moment; ``held`` lets it go."""
        named = self._named()
        groups = grouped(named)
        asked_s = time.monotonic()
        with contextlib.ExitStack() as barriers:
            for group in groups:
                barriers.enter_context(group.parameters.barrier())
            reached_s = time.monotonic()
            saved = {**self._objects, **self._attached}
            objects = {name: _describe(value) for name, value in saved.items()}
            contents = {"objects": objects, "aliases": variable_names.aliases(named)}
            manifest.check_json(contents)
            marks = [(follower, follower.held()) for follower in self.followers]
            parts = {}
            for group in groups:
                key = id(group.parameters)
                tracking = None if last is None else Tracking(last.moments.get(key))
                part = parts[key] = group.parameters.snapshot(group.specs, tracking)
                held.callback(part.close)
        pauses.drain_s = reached_s - asked_s
        pauses.pause_s = time.monotonic() - reached_s
        return contents, parts, marks

    @instead_of("restore", foreign_names.RESTORE_OF_CHECKPOINT)
    def restore(self, path: Path | None, *, with_attached: bool = False) -> RestoreStatus:
        """Restores all objects from a checkpoint, or from the newest in a directory; its path.

        An object that has no variables yet gets its values as it makes them; the returned path
        has ``assert_consumed`` and the like, to ask whether all went well. No variable changes
        unless all fit and no file is damaged. Raises NotFoundError for a checkpoint, object or
        variable that is not there, InvalidArgumentError for a variable of another shape or dtype,
        DataLossError for damaged files. None, which is what a directory without checkpoints has as
        its newest, restores nothing. ``with_attached``: what is attached goes back too.
        """
        if path is None:
            return RestoreStatus(Restored("", Saved(()), {}), self._named)
        found = manifest.find(path)
        contents = manifest.read(found)
        saved = Saved.from_json(contents["saved"]).also_called(contents["aliases"])
        stored = {shard.name: shard for shard in saved.shards}
        named = self._named()
        self._check(found, contents, named, stored)
        for group in grouped(named, stored):
            group.parameters.load(found, group.specs, saved)
        for name, value in self._objects.items():
            if name in contents["objects"] and _is_stateful(value):
                value.load_state_dict(contents["objects"][name]["state"])
        for name, attached in self._attached.items() if with_attached else ():
            attached.load_state_dict(contents["objects"].get(name, {}).get("state"))
        self._restored = dict(contents["objects"])
        captured_changed()
        for follower in self.followers:
            follower.restored()
        logger.info("restored checkpoint %s", found)
        restored = Restored(found, saved, contents["aliases"])
        for each in named:
            restored.give(each.variable, each.found_as(stored))
        defer(restored, {n: value for n, value in self._objects.items() if has_variables(value)})
        return RestoreStatus(restored, self._named)

    def holds(self) -> set[Key]:
        """The variables that a save now would write."""
        return {key_of(each.variable) for each in self._named()}

    def _consistency(self) -> dict[str, Any] | None:
        """By which rule the values came about; None for values of this process alone."""
        groups = grouped(self._named())
        rules = (getattr(group.parameters, "consistency", None) for group in groups)
        return next((rule.to_json() for rule in rules if rule is not None), None)

    def _check(
        self,
        path: str,
        contents: Mapping[str, Any],
        named: Sequence[Named],
        stored: Mapping[str, SavedShard],
    ) -> None:
        for name in sorted(self._objects.keys() - contents["objects"].keys()):
            if not self._is_found(name, contents["objects"], named, stored):
                raise NotFoundError(
                    f"checkpoint {path} holds no object {name!r}; it holds "
                    f"{', '.join(sorted(contents['objects']))}"
                )
        for group in grouped(named, stored):
            for name, spec in group.specs.items():
                if name not in stored:
                    raise NotFoundError(
                        f"checkpoint {path} holds no variable {name!r}; it holds "
                        f"{', '.join(sorted(stored))}"
                    )
                check_shape(name, spec.shape, spec.dtype, stored[name])

    def _is_found(
        self,
        name: str,
        saved: Mapping[str, Any],
        named: Sequence[Named],
        stored: Mapping[str, SavedShard],
    ) -> bool:
        """Whether all there is of an object that was not saved is there under other names."""
        value = self._objects[name]
        if any(value is other and n in saved for n, other in self._objects.items()):
            return True
        reached = {key_of(each.variable) for each in variable_names.named({name: value})}
        mine = [each for each in named if key_of(each.variable) in reached]
        is_stored = bool(mine) and all(each.found_as(stored) in stored for each in mine)
        return is_stored and not _is_stateful(value)

    def _named(self) -> list[Named]:
        return variable_names.named(self._objects)


def check_objects(objects: Mapping[str, Any]) -> None:
    """InvalidTypeError for what has nothing that a checkpoint could save."""
    for name, value in objects.items():
        if isinstance(value, list | tuple | dict):
            raise InvalidTypeError(
                f"{name} is a {type(value).__name__}: give what is in it under names of their own, "
                f"as in Checkpoint(**{{f'{name}_{{i}}': each for i, each in enumerate({name})}})"
            )
        if not (_is_stateful(value) or isinstance(value, BaseVariable) or has_variables(value)):
            raise InvalidTypeError(
                f"{name}={type(value).__name__} has neither variables nor state_dict(), so there "
                "is nothing of it to save"
            )


class Attached(Protocol):
    """What is saved besides, for as long as somebody wants it."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """None where the checkpoint does not hold it."""


class Follower(Protocol):
    """Somebody who has to know which moments can be gone back to."""

    def held(self) -> Any:
        """All is held as it is now; what this returns stands for the moment."""

    def committed(self, mark: Any) -> None:
        """The checkpoint of that moment is whole. Called by any thread."""

    def restored(self) -> None:
        """Everything is as in a checkpoint."""


class _Moment(NamedTuple):
    """A checkpoint that the next one may build on, and what each of the parameters calls it."""

    base: Base | None
    moments: dict[int, str]


def read_config(path: Path, name: str = "model") -> dict[str, Any]:
    """What ``get_config`` of an object gave when it was saved, to make the object anew.

    Raises NotFoundError when the checkpoint holds no such object or it had no ``get_config``.
    """
    found = manifest.find(path)
    config = manifest.read(found)["objects"].get(name, {}).get("config")
    if config is None:
        raise NotFoundError(f"checkpoint {found} holds no configuration of {name!r}")
    return dict(config)


def _write_values(folder: str, parts: Sequence[ParametersSnapshot], base: Base | None) -> Saved:
    shards, session, ledgers = [], None, {}
    for part in parts:
        # A name of its own, so that a checkpoint which is replaced keeps its files until then.
        place = new_id("values")
        saved = part.write(os.path.join(folder, place), base)
        shards += [shard.inside(place) for shard in saved.shards]
        if saved.session is not None:
            session, ledgers = saved.session, saved.ledgers
    return Saved(tuple(shards), session, ledgers)


def _describe(value: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"class": type(value).__qualname__}
    if hasattr(value, "get_config"):
        described["config"] = value.get_config()
    if _is_stateful(value):
        described["state"] = value.state_dict()
    return described


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")

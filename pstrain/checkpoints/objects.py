"""The objects of a checkpoint: which are allowed, their description, and checks before a restore.

Knows neither how values travel nor when a save is made. Invariant: an object is anything that has
variables or a state; its description consists of values that JSON has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pstrain.checkpoints import manifest
from pstrain.checkpoints.manifest import Path
from pstrain.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from pstrain.paramserver.saved import SavedShard, check_shape
from pstrain.variables import names as variable_names
from pstrain.variables.base import BaseVariable
from pstrain.variables.names import Named, grouped, has_variables, key_of
from pstrain.vocabulary import VariableSpec


def check_objects(objects: Mapping[str, Any]) -> None:
    """Raises InvalidTypeError for an object that has nothing for a checkpoint to save."""
    for name, value in objects.items():
        if isinstance(value, list | tuple | dict):
            raise InvalidTypeError(
                f"{name} is a {type(value).__name__}: give what is in it under names of their own, "
                f"as in Checkpoint(**{{f'{name}_{{i}}': each for i, each in enumerate({name})}})"
            )
        if isinstance(value, type):
            raise InvalidTypeError(
                f"{name} is the class {value.__name__}, which holds no values: give an object of it"
            )
        if not (is_stateful(value) or isinstance(value, BaseVariable) or has_variables(value)):
            raise InvalidTypeError(
                f"{name}={type(value).__name__} has neither variables nor state_dict(), so there "
                "is nothing of it to save"
            )


def check_held(
    path: str,
    objects: Mapping[str, Any],
    contents: Mapping[str, Any],
    named: Sequence[Named],
    stored: Mapping[str, SavedShard],
) -> None:
    """Raises NotFoundError or InvalidArgumentError unless a checkpoint has all that objects need.

    ``named`` are the variables of ``objects``; ``stored`` are the shards in the checkpoint by the
    names of their variables.
    """
    for name in sorted(objects.keys() - contents["objects"].keys()):
        if not _is_found(name, objects, contents["objects"], named, stored):
            held = ", ".join(sorted(contents["objects"]))
            raise NotFoundError(
                f"checkpoint {path} holds no object {name!r}; it holds {held}: leave {name!r} out "
                "of this Checkpoint, or give it the name under which it was saved"
            )
    for name in sorted(objects.keys() & contents["objects"].keys()):
        saved = contents["objects"][name]
        if "state" not in saved and is_stateful(objects[name]):
            raise NotFoundError(
                f"checkpoint {path} holds no state of {name!r}, which is a "
                f"{type(objects[name]).__qualname__} here and was a {saved['class']} when it was "
                "saved: leave it out, or give it another name"
            )
        if isinstance(objects[name], ChecksSaved) and "config" in saved:
            objects[name].check_saved(saved["config"])
    wholes = variable_names.wholes(objects)
    for group in grouped(named, stored):
        for name, spec in group.specs.items():
            whole = wholes.get((id(group.parameters), spec.id))
            if whole is not None and (name not in stored or stored[name].shape != spec.shape):
                kind = InvalidArgumentError if name in stored else NotFoundError
                raise kind(_other_parts(path, name, spec, whole))
            if name not in stored:
                raise NotFoundError(
                    f"checkpoint {path} holds no variable {name!r}; it holds "
                    f"{', '.join(sorted(stored))}"
                )
            check_shape(name, spec.shape, spec.dtype, stored[name])


def _other_parts(path: str, name: str, spec: VariableSpec, whole: BaseVariable) -> str:
    rows = ", ".join(str(shard.row_stop - shard.row_start) for shard in whole.spec.shards)
    return (
        f"variable {whole.name!r} was joined of parts with {rows} rows, which are saved each for "
        f"itself, and checkpoint {path} holds no part {name!r} of shape {spec.shape}: join parts "
        "that together have the rows which were saved, of checkpoints of earlier versions parts of "
        "the same names and shapes; a Variable made under a strategy with a "
        "variable_partitioner is restored into any number of shards"
    )


def _is_found(
    name: str,
    objects: Mapping[str, Any],
    saved: Mapping[str, Any],
    named: Sequence[Named],
    stored: Mapping[str, SavedShard],
) -> bool:
    """True if everything of an object that was not saved by its name is stored by other names."""
    value = objects[name]
    if any(value is other and n in saved for n, other in objects.items()):
        return True
    reached = {key_of(each.variable) for each in variable_names.named({name: value})}
    mine = [each for each in named if key_of(each.variable) in reached]
    is_stored = bool(mine) and all(each.found_as(stored) in stored for each in mine)
    return is_stored and not is_stateful(value)


class Attached(Protocol):
    """An object that is saved in addition to the named ones, for as long as it is attached."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restores the state; ``state`` is None if the checkpoint does not hold the object."""


@runtime_checkable
class ChecksSaved(Protocol):
    """An object, such as a model, whose values mean what its configuration says."""

    def check_saved(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidArgumentError if values saved with ``config`` mean something else here."""


@runtime_checkable
class HasRate(Protocol):
    """An optimizer, whose learning rate a program may set."""

    def saved_rate(self) -> dict[str, Any]: ...

    def restore_rate(self, saved: Mapping[str, Any]) -> None:
        """Restores the rate; ``saved`` is empty if the checkpoint does not have it."""


def read_config(path: Path, name: str = "model") -> dict[str, Any]:
    """Returns the saved result of an object's ``get_config``, to make the object anew.

    Raises NotFoundError if the checkpoint holds no such object, or if it had no ``get_config``.
    """
    found = manifest.find(path)
    config = manifest.read(found)["objects"].get(name, {}).get("config")
    if config is None:
        raise NotFoundError(f"checkpoint {found} holds no configuration of {name!r}")
    return dict(config)


def describe(value: Any) -> dict[str, Any]:
    """Returns the manifest's description of an object: class, configuration, rate and state."""
    described: dict[str, Any] = {"class": type(value).__qualname__}
    if hasattr(value, "get_config"):
        described["config"] = value.get_config()
    if isinstance(value, HasRate):
        described["rate"] = value.saved_rate()
    if is_stateful(value):
        described["state"] = value.state_dict()
    return described


def is_stateful(value: Any) -> bool:
    """True if an object has a state besides its variables."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")

"""Checks PyTorch modules, and calls them by their skeletons once their parameters are variables.

A skeleton is a module whose parameters have shapes but no values. It is pickled, and each thread
computes with its own copy, since a call fills in values. Knows nothing of tapes or layers.
Invariant: skeletons and copies never hold weights, and a copy that has changed its state is not
used again.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from pstrain.errors import InvalidArgumentError


class _Thread(threading.local):
    """What one thread keeps: its copies of each owner's skeleton, by mode and device."""

    def __init__(self) -> None:
        self.copies: WeakKeyDictionary[Any, dict[tuple[bool, Any], Any]] = WeakKeyDictionary()


_thread = _Thread()


def check(module: Any, name: str) -> None:
    """Raises InvalidArgumentError if ``module`` cannot be trained on parameter servers."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(
            f"layer {name!r} needs a torch.nn.Module, got {type(module).__name__}"
        )
    for path, part in module.named_modules():
        if part.training and getattr(part, "track_running_stats", False):
            raise InvalidArgumentError(
                f"layer {name!r}: {path or 'the module'} ({type(part).__name__}) keeps running "
                "statistics, which would be different in each trainer: use LayerNorm or GroupNorm "
                "or, for statistics of the batch alone, track_running_stats=False; or freeze it, "
                "by eval()"
            )
    values = [*module.named_parameters(), *module.named_buffers()]
    for path, value in values:
        if value.device.type != "cpu":
            raise InvalidArgumentError(
                f"layer {name!r}: {path} is on {value.device}, and a module is given on the "
                "processor: give module.cpu(), and device='cuda' to the layer if trainers shall "
                "compute on GPUs"
            )
    for path, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise InvalidArgumentError(
                f"layer {name!r}: parameter {path} is {parameter.dtype}; only float32 can be "
                "trained: give module.float()"
            )


def initial_values(module: Any, name: str) -> dict[str, tuple[NDArray[np.float32], bool]]:
    """Returns each parameter's value by name, and whether it is trained; shared ones once."""
    found = {}
    for path, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise InvalidArgumentError(
                f"layer {name!r}: parameter {path} has no shape yet: call the module once with a "
                "batch"
            )
        found[path] = (parameter.detach().numpy(), parameter.requires_grad)
    return found


def skeleton(module: Any, name: str) -> Any:
    """Returns a copy of ``module`` without its parameters' values; buffers keep theirs."""
    empty = {
        id(parameter): torch.nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
        for parameter in module.parameters()
    }
    try:
        return copy.deepcopy(module, empty)
    except Exception as error:
        raise InvalidArgumentError(
            f"layer {name!r}: {type(module).__name__} cannot be copied, which each trainer has to: "
            f"{error}"
        ) from error


def with_values(bare: Any, values: Mapping[str, NDArray[Any]]) -> Any:
    """Returns a copy of the skeleton ``bare`` whose parameters share the memory of ``values``."""
    filled = {
        id(parameter): torch.nn.Parameter(
            torch.from_numpy(values[path]), requires_grad=parameter.requires_grad
        )
        for path, parameter in bare.named_parameters()
    }
    return copy.deepcopy(bare, filled)


def as_tensor(array: NDArray[Any], device: Any) -> Any:
    """Returns ``array`` as a tensor on ``device``.

    On the processor it shares the memory of ``array``, unless that is read-only or has negative
    strides: torch supports neither.
    """
    writeable = array.flags.writeable and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if writeable else array.copy()).to(device)


def as_array(tensor: Any) -> NDArray[Any]:
    """Returns the values of a tensor on any device; shares its memory on the processor."""
    values: NDArray[Any] = tensor.detach().contiguous().cpu().numpy()
    return values


def call(
    owner: Any,
    bare: Any,
    parameters: Mapping[str, Any],
    inputs: Sequence[Any],
    *,
    training: bool,
    device: Any,
) -> Any:
    """Returns the module's output for ``inputs`` and ``parameters``, by this thread's copy of it.

    All of these are on ``device``, and so are the copy's buffers. The copies are kept as long as
    ``owner`` lives. ``training`` False: the copy is in eval mode; True: in the modes that the
    module was given in. InvalidArgumentError if the module changes a persistent buffer, which no
    other trainer would see, or a parameter or input, which others may share.
    """
    copies = _thread.copies.setdefault(owner, {})
    if (training, device) not in copies:
        made = _copy_on(device, bare)
        copies[training, device] = made if training else made.eval()
    module = copies[training, device]
    handed = [*parameters.items(), *((f"input {k}", value) for k, value in enumerate(inputs))]
    buffers = [(path, value) for path, value in module.named_buffers() if _persists(module, path)]
    before = [(path, value, value._version) for path, value in [*handed, *buffers]]
    output = functional_call(module, dict(parameters), tuple(inputs))
    changed = [path for path, value, version in before if value._version != version]
    changed += [path for path, value in buffers if module.get_buffer(path) is not value]
    if changed:
        del copies[training, device]
        raise InvalidArgumentError(
            f"layer {owner.name!r}: {type(module).__name__} changes {changed[0]} when it is "
            "called, and each trainer would do so by itself: keep no state in buffers "
            "(register_buffer(..., persistent=False) for a mere cache), and change no input in "
            "place"
        )
    return output


def _copy_on(device: Any, bare: Any) -> Any:
    """Returns a copy of the skeleton ``bare`` whose buffers are on ``device``."""
    if device.type == "cpu":
        return copy.deepcopy(bare)
    moved = {id(buffer): buffer.to(device) for buffer in bare.buffers()}
    return copy.deepcopy(bare, moved)


def _persists(module: Any, path: str) -> bool:
    """True if a buffer belongs to the state of its module, as torch saves it."""
    home, _, name = path.rpartition(".")
    return name not in module.get_submodule(home)._non_persistent_buffers_set


def in_eval_mode(module: Any, compute: Callable[[], Any]) -> Any:
    """Returns ``compute()``, called with ``module`` in eval mode and without gradients."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return compute()
    finally:
        for part, training in modes:
            part.training = training

"""The device on which a module computes: checks its name, and finds the device where it runs.

Knows nothing of layers or values. Invariant: checking a name touches no device, so the program that
makes a layer needs none.
"""

from __future__ import annotations

from typing import Any

import torch

from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.trainer.context import current_position, get_current_worker_index

_PROCESSOR = "cpu"


def checked(device: Any, layer: str) -> str:
    """Returns the name of ``device`` (None: the processor); raises if torch knows no such device.

    Whether the device exists is checked by :func:`found`, where the module runs.
    """
    if device is None:
        return _PROCESSOR
    if not isinstance(device, str | torch.device):
        raise InvalidTypeError(
            f"layer {layer!r}: device is a string as torch takes it, such as 'cuda' or 'cuda:1', "
            f"got {device!r}"
        )
    try:
        name = str(torch.device(device))
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"layer {layer!r}: torch knows no device {device!r}: {_reason(error)}; give 'cuda', "
            "'cuda:1', 'mps' or 'cpu'"
        ) from error
    if torch.device(name).type == "meta":
        raise InvalidArgumentError(
            f"layer {layer!r}: nothing can be computed on device {device!r}, whose tensors have no "
            "values; give 'cuda', 'cuda:1', 'mps' or 'cpu'"
        )
    return name


def found(name: str, layer: str) -> Any:
    """Returns the ``torch.device`` called ``name`` that this trainer, or this process, is to use.

    A name without an index means the device that :func:`share_of` gives this trainer or, outside a
    trainer, torch's current device. Raises FailedPreconditionError if the device cannot be used.
    """
    device = torch.device(name)
    if device.type == _PROCESSOR:
        return torch.device(_PROCESSOR)
    position = current_position()
    if device.index is None and position is not None:
        device = torch.device(device.type, share_of(position, _count(device.type)))
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ImportError) as error:
        place = "this process" if position is None else f"trainer {get_current_worker_index()}"
        raise FailedPreconditionError(
            f"layer {layer!r}: {place} cannot use device {str(device)!r} ({_reason(error)}): run "
            "it where torch sees that device, which CUDA_VISIBLE_DEVICES can hide, or make the "
            "layer with another device=; None is the processor"
        ) from error


def share_of(position: int, count: int) -> int:
    """Returns the index of the device, out of ``count``, for the trainer at ``position``.

    Consecutive trainers take the devices in turn, so none has two trainers more than another. The
    index is 0 if there are no devices.
    """
    return position % count if count else 0


def _count(kind: str) -> int:
    """Returns the number of devices of a kind; 1 for kinds that torch does not count."""
    count = getattr(getattr(torch, kind, None), "device_count", None)
    return 1 if count is None else int(count())


def _reason(error: Exception) -> str:
    """Returns the first sentence of a torch error, whose others are advice on debugging torch."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")

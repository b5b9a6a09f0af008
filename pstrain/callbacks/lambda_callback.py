"""A callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dataservice.runtime.arguments import check_callable, nearest
from pstrain.callbacks.base import Callback
from pstrain.errors import InvalidTypeError

_HOOKS = tuple(name for name in dir(Callback) if name.startswith("on_"))


class LambdaCallback(Callback):
    """Calls a function in the place of each method that is named.

    As in ``LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))``. A
    function takes what the method of ``Callback`` takes, and may take ``logs`` besides.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        for name, function in hooks.items():
            if name not in _HOOKS:
                raise InvalidTypeError(
                    f"LambdaCallback takes {', '.join(_HOOKS)}, got {name!r}{nearest(name, _HOOKS)}"
                )
            if function is not None:
                check_callable(name, function)
                setattr(self, name, function)

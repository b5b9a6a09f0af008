"""The argument ``training=`` of layers and models, as programs for Keras pass it.

Invariant: it changes nothing, since the tape alone says whether a call trains.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from pstrain.errors import InvalidArgumentError
from pstrain.gradients.recording import recording

Called = TypeVar("Called", bound=Callable[..., Any])


def takes_training(function: Called) -> Called:
    """Decorator: the callable also takes ``training=``, None or what it is here.

    InvalidArgumentError for True without an active tape, and for False under one.
    """

    @functools.wraps(function)
    def call(*args: Any, training: bool | None = None, **arguments: Any) -> Any:
        if training is not None and bool(training) is not recording():
            raise InvalidArgumentError(
                f"training={training}, but a call trains under a GradientTape, and predicts "
                f"elsewhere: here is {'one' if recording() else 'none'}. Leave it out, or call "
                f"{'outside of' if recording() else 'under'} the tape"
            )
        return function(*args, **arguments)

    return cast("Called", call)

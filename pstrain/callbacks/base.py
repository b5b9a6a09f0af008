"""The moments at which ``fit``, ``evaluate`` and ``predict`` call, and the list that passes on.

Knows nothing of what callbacks do. Invariant: all run in the training program, one at a time, in
the order in which they were given.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dataservice.errors import DataServiceWarning
from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidTypeError

Logs = dict[str, float]

Hook = TypeVar("Hook", bound=Callable[..., None])

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_READS_LOGS = "_reads_logs"


def reads_logs_where(is_due: Callable[[Any, int], bool]) -> Callable[[Hook], Hook]:
    """Of an ``on_train_batch_end`` that reads its ``logs`` only where ``is_due(self, batch)``.

    Elsewhere they are empty: the value of a metric takes longer than a small step. An override of
    such a method without this has them always.
    """

    def marked(hook: Hook) -> Hook:
        setattr(hook, _READS_LOGS, is_due)
        return hook

    return marked


class Callback:
    """Override what you need. All run in the training program, between reports of the trainers.

    ``model`` is the model; ``params`` has ``epochs``, ``steps`` (None: whole epochs) and
    ``verbose``, and ``validation_freq`` where it is not 1. Set ``stop_training``, here or on the
    model, to end after this epoch, or, while batches are told, after those that are under way.
    ``logs`` may be added to at the end of an epoch. A method that takes ``logs`` where a moment
    here has none, as Keras' do, is given an empty dict, ``on_train_end`` those of the last epoch.

    ``batch`` counts steps of all trainers together. Trainers report several steps at a time
    (``steps_per_execution``), as they end, whichever were scheduled first: a trainer that is slow
    holds up no callback. ``on_train_batch_begin`` has the steps of this epoch that had been
    reported before, ``on_train_batch_end`` those that have by now, with ``logs`` over the epoch so
    far. Both are called when the report is there, so nothing waits for a callback but the program
    itself.
    """

    model: Any = None
    params: Mapping[str, Any] = {}
    stop_training: bool = False

    def __repr__(self) -> str:
        of = "" if self.model is None else f" of {self.model!r}"
        return f"<{type(self).__name__}{of}{', stops training' if self.stop_training else ''}>"

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def state_dict(self) -> dict[str, Any]:
        """What of it has to go back where training goes back to a checkpoint; JSON-able."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; may be empty."""

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_train_error(self, error: BaseException) -> None:
        """Training ends by ``error``, and not by :meth:`on_train_end`: what is held is let go."""

    def on_epoch_begin(self, epoch: int) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...

    def on_train_batch_begin(self, batch: int) -> None: ...

    @reads_logs_where(lambda _self, _batch: False)
    def on_train_batch_end(self, batch: int, logs: Logs) -> None: ...

    def on_test_begin(self) -> None: ...

    def on_test_end(self, logs: Logs) -> None:
        """``logs``: what :func:`evaluate` returns."""

    def on_test_batch_begin(self, batch: int) -> None: ...

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """``logs``: ``examples`` so far."""

    def on_predict_begin(self) -> None: ...

    def on_predict_end(self, logs: Logs) -> None: ...

    def on_predict_batch_begin(self, batch: int) -> None: ...

    def on_predict_batch_end(self, batch: int, logs: Logs) -> None: ...


def listed(callbacks: Any) -> list[Callback]:
    """One callback or several, or None, as a list; InvalidTypeError for anything else."""
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    for each in several:
        if isinstance(each, type):
            raise InvalidTypeError(
                f"callbacks are objects, got the class {each.__name__}: write {each.__name__}(...)"
            )
        if each is not None and not callable(getattr(each, "set_model", None)):
            raise InvalidTypeError(
                f"callbacks are objects of pstrain.callbacks, or of subclasses of Callback, got "
                f"{each!r}"
            )
    return [each for each in several if each is not None]


def _warn_of_hooks_without_calls(callback: Callback) -> None:
    """Names that look like a moment's and are none: nobody would notice that they stay silent."""
    hooks = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in hooks:
            warnings.warn(
                f"{type(callback).__name__}.{name} is never called; the methods that are called "
                f"are {', '.join(hooks)}{nearest(name, hooks)}",
                DataServiceWarning,
                stacklevel=3,
            )


def _reads_logs(callback: Callback, batch: int) -> bool:
    is_due = getattr(callback.on_train_batch_end, _READS_LOGS, None)
    return is_due is None or is_due(callback, batch)


def _call(hook: Callable[..., None], *arguments: Any, logs: Logs | None = None) -> None:
    """With ``logs`` where it takes one more argument: every moment has them in Keras."""
    takes = [each.kind in _PLACED for each in inspect.signature(hook).parameters.values()]
    hook(*arguments, *([dict(logs or {})] if sum(takes) > len(arguments) else ()))


class CallbackList:
    """Calls each callback in turn."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        model: Any,
        *,
        epochs: int = 1,
        steps: int | None = None,
        verbose: int = 0,
        validation_freq: Any = 1,
    ) -> None:
        self._callbacks = listed(callbacks)
        self._model = model
        self._last_logs: Logs = {}
        rare = {} if validation_freq == 1 else {"validation_freq": validation_freq}
        for callback in self._callbacks:
            _warn_of_hooks_without_calls(callback)
            callback.set_model(model)
            callback.set_params({"epochs": epochs, "steps": steps, "verbose": verbose, **rare})

    @property
    def stop_training(self) -> bool:
        asked = any(callback.stop_training for callback in self._callbacks)
        return asked or getattr(self._model, "stop_training", False)

    def state_dict(self) -> list[list[Any]]:
        """States of all callbacks, with the names of their classes."""
        return [[type(each).__name__, each.state_dict()] for each in self._callbacks]

    def go_on(self, states: Sequence[Sequence[Any]]) -> None:
        """Training goes on from where callbacks had these states: it has not been stopped."""
        waiting = list(states)
        self._model.stop_training = False
        for callback in self._callbacks:
            callback.stop_training = False
            name = type(callback).__name__
            found = next((each for each in waiting if each[0] == name), None)
            if found is not None:
                waiting.remove(found)
                callback.load_state_dict(found[1])

    @contextmanager
    def training(self) -> Iterator[None]:
        """Scope that is a training: one that an error ends is told so."""
        try:
            self.train_begin()
            yield
            self.train_end()
        except BaseException as error:
            self.train_error(error)
            raise

    def train_begin(self) -> None:
        self._model.stop_training = False
        for callback in self._callbacks:
            callback.stop_training = False
            _call(callback.on_train_begin)

    def train_end(self) -> None:
        for callback in self._callbacks:
            _call(callback.on_train_end, logs=self._last_logs)

    def train_error(self, error: BaseException) -> None:
        for callback in self._callbacks:
            callback.on_train_error(error)

    def epoch_begin(self, epoch: int) -> None:
        for callback in self._callbacks:
            _call(callback.on_epoch_begin, epoch)

    def epoch_end(self, epoch: int, logs: Logs) -> None:
        self._last_logs = logs
        for callback in self._callbacks:
            callback.on_epoch_end(epoch, logs)

    def batch_begin(self, batch: int) -> None:
        for callback in self._callbacks:
            _call(callback.on_train_batch_begin, batch)

    def batch_end(self, batch: int, logs: Callable[[], Logs]) -> None:
        """``logs``: makes them, and is called once, if anybody reads them."""
        made: Logs | None = None
        for callback in self._callbacks:
            if made is None and _reads_logs(callback, batch):
                made = logs()
            callback.on_train_batch_end(batch, {} if made is None else made)

    def test_begin(self) -> None:
        for callback in self._callbacks:
            _call(callback.on_test_begin)

    def test_end(self, logs: Logs) -> None:
        for callback in self._callbacks:
            callback.on_test_end(logs)

    def test_batch(self, before: int, after: int, logs: Logs) -> None:
        for callback in self._callbacks:
            _call(callback.on_test_batch_begin, before)
            callback.on_test_batch_end(after, logs)

    def predict_begin(self) -> None:
        for callback in self._callbacks:
            _call(callback.on_predict_begin)

    def predict_end(self, logs: Logs) -> None:
        for callback in self._callbacks:
            callback.on_predict_end(logs)

    def predict_batch(self, before: int, after: int, logs: Logs) -> None:
        for callback in self._callbacks:
            _call(callback.on_predict_batch_begin, before)
            callback.on_predict_batch_end(after, logs)

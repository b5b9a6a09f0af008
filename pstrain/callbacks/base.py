"""The base of callbacks, and the list by which ``fit``, ``evaluate`` and ``predict`` call them.

Knows nothing of what callbacks do. Invariant: all callbacks run in the training program, one at a
time, in the order in which they were given; at the end of an epoch, those that save the others'
states come last, the first of them last of all, since a fit goes back to what that one has saved.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dataservice.errors import DataServiceWarning
from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError, InvalidTypeError

Logs = dict[str, float]

Hook = TypeVar("Hook", bound=Callable[..., None])

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""The kinds of parameters to which an argument can be given by its place."""
_READS_LOGS = "_reads_logs"
_ONLY_RECORDS = "_only_records"
_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def only_records(hook: Hook) -> Hook:
    """Decorates a batch method that has no effect on training, so its calls may come later."""
    setattr(hook, _ONLY_RECORDS, True)
    return hook


def reads_logs_where(is_due: Callable[[Any, int], bool]) -> Callable[[Hook], Hook]:
    """Decorates an ``on_train_batch_end`` that reads ``logs`` only if ``is_due(self, batch)``.

    At other times its ``logs`` are empty, because computing the value of a metric may take longer
    than a small step. A method without this decorator always gets ``logs``, also if it overrides a
    decorated one.
    """

    def marked(hook: Hook) -> Hook:
        setattr(hook, _READS_LOGS, is_due)
        return hook

    return marked


class Callback:
    """The base class of callbacks; override the methods that you need.

    All methods run in the training program, between reports of the trainers. ``model`` is the
    model; ``params`` has ``epochs``, ``steps`` (None: whole epochs) and ``verbose``,
    ``validation_freq`` if that is not 1 and, of a SidecarEvaluator, ``step``, the steps after which
    the checkpoint was saved, if it knows them. Set ``stop_training``, on the callback or the model,
    to end training after this epoch or, in a batch method, after the steps in progress.
    ``on_epoch_end`` may add to its ``logs``. If an overriding method takes ``logs`` where the
    method here does not, as methods of Keras do, it gets an empty dict; ``on_train_end`` gets the
    logs of the last epoch.

    ``batch`` counts the steps of all trainers together. Trainers report several steps at a time
    (``steps_per_execution``), in the order in which these end, not that in which they were
    scheduled, so a slow trainer delays no callback. ``on_train_batch_begin`` gets the number of
    steps of this epoch that were reported before, ``on_train_batch_end`` the number with this
    report, and ``logs`` over the epoch so far. Both are called when the report has arrived, so a
    callback delays only the program itself. Until then four more reports of each trainer may be
    under way, so fewer steps in each make the calls more prompt.
    """

    model: Any = None
    params: Mapping[str, Any] = {}
    stop_training: bool = False
    _saves_states: bool = False

    def __repr__(self) -> str:
        of = "" if self.model is None else f" of {self.model!r}"
        return f"<{type(self).__name__}{of}{', stops training' if self.stop_training else ''}>"

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        self.params = params

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, as JSON values, that a checkpoint has to save and restore."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of :meth:`state_dict`, or an empty dict."""

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_train_error(self, error: BaseException) -> None:
        """Called instead of :meth:`on_train_end` if ``error`` ends training, to free resources."""

    def on_epoch_begin(self, epoch: int) -> None: ...

    def on_epoch_end(self, epoch: int, logs: Logs) -> None: ...

    def on_train_batch_begin(self, batch: int) -> None:
        if _overrides(self, "on_batch_begin"):
            _call(self.on_batch_begin, batch)

    @reads_logs_where(lambda self, _batch: _overrides(self, "on_batch_end"))
    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self.on_batch_end(batch, logs)

    def on_batch_begin(self, batch: int) -> None:
        """Called by :meth:`on_train_batch_begin`, of which it is Keras' older name."""

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Called by :meth:`on_train_batch_end`, of which it is Keras' older name."""

    def on_test_begin(self) -> None: ...

    def on_test_end(self, logs: Logs) -> None:
        """Called at the end of an evaluation; ``logs``: the result of :func:`evaluate`."""

    def on_test_batch_begin(self, batch: int) -> None: ...

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """Called after each report of an evaluation; ``logs``: number of ``examples`` so far."""

    def on_predict_begin(self) -> None: ...

    def on_predict_end(self, logs: Logs) -> None: ...

    def on_predict_batch_begin(self, batch: int) -> None: ...

    def on_predict_batch_end(self, batch: int, logs: Logs) -> None: ...


def as_list(callbacks: Any) -> list[Callback]:
    """Returns one callback, several or None as a list; InvalidTypeError for anything else."""
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


def check_verbose(verbose: int | str) -> int:
    """Returns 0, 1 or 2; "auto" is 1."""
    if verbose == "auto":
        return 1
    if verbose not in (0, 1, 2):
        raise InvalidArgumentError(f'verbose is 0, 1, 2 or "auto", got {verbose!r}')
    return int(verbose)


def _warn_of_hooks_without_calls(callback: Callback) -> None:
    """Warns of methods named ``on_...`` that are never called, such as misspelt ones."""
    hooks = [name for name in dir(Callback) if name.startswith("on_")]
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in hooks:
            warnings.warn(
                f"{type(callback).__name__}.{name} is never called; the methods that are called "
                f"are {', '.join(hooks)}{nearest(name, hooks)}",
                DataServiceWarning,
                stacklevel=3,
            )


def _overrides(callback: Callback, hook: str) -> bool:
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


def _acts(callback: Callback, hook: str) -> bool:
    only_records = getattr(getattr(callback, hook), _ONLY_RECORDS, False)
    return _overrides(callback, hook) and not only_records


def _reads_logs(callback: Callback, batch: int) -> bool:
    is_due = getattr(callback.on_train_batch_end, _READS_LOGS, None)
    return is_due is None or is_due(callback, batch)


def _call(hook: Callable[..., None], *arguments: Any, logs: Logs | None = None) -> None:
    """Calls ``hook``; adds ``logs`` if it takes one more argument, as all hooks of Keras do."""
    takes = [each.kind in POSITIONAL for each in inspect.signature(hook).parameters.values()]
    hook(*arguments, *([dict(logs or {})] if sum(takes) > len(arguments) else ()))


class CallbackList:
    """A list of callbacks; each method calls the corresponding method of all, in order."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        model: Any,
        *,
        epochs: int = 1,
        steps: int | None = None,
        verbose: int = 0,
        validation_freq: Any = 1,
        step: int | None = None,
    ) -> None:
        self._callbacks = as_list(callbacks)
        self._model = model
        self._last_logs: Logs = {}
        rare = {} if validation_freq == 1 else {"validation_freq": validation_freq}
        rare |= {} if step is None else {"step": step}
        for callback in self._callbacks:
            _warn_of_hooks_without_calls(callback)
            callback.set_model(model)
            callback.set_params({"epochs": epochs, "steps": steps, "verbose": verbose, **rare})

    @property
    def stop_training(self) -> bool:
        asked = any(callback.stop_training for callback in self._callbacks)
        return asked or getattr(self._model, "stop_training", False)

    @property
    def act_on_batches(self) -> bool:
        """True if what a callback does in batch methods may have an effect on training."""
        return any(_acts(each, hook) for each in self._callbacks for hook in _BATCH_HOOKS)

    def state_dict(self) -> list[list[Any]]:
        """Returns the states of all callbacks, each with the name of its class."""
        return [[type(each).__name__, each.state_dict()] for each in self._callbacks]

    def resume(self, states: Sequence[Sequence[Any]]) -> None:
        """Restores states of callbacks, by class name and order, when training continues.

        Also clears ``stop_training``.
        """
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
        """Spans a training; calls the hooks of its begin, and of its end or of its error."""
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
        # Saved earlier, states would lack this epoch, and a decision to stop after it.
        saving = [callback for callback in self._callbacks if callback._saves_states]
        others = [callback for callback in self._callbacks if not callback._saves_states]
        for callback in (*others, *reversed(saving)):
            callback.on_epoch_end(epoch, logs)

    def batch_begin(self, batch: int) -> None:
        for callback in self._callbacks:
            _call(callback.on_train_batch_begin, batch)

    def batch_end(self, batch: int, logs: Callable[[], Logs]) -> None:
        """``logs``: a function that makes the logs; called once if a callback reads them."""
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

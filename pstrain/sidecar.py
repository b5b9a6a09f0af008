"""SidecarEvaluator: evaluates the checkpoints that a training program writes, as they appear.

Knows nothing of the cluster, only a directory. Invariant: every line that it writes is the result
of one complete checkpoint; no values of two checkpoints are mixed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dataservice.runtime.arguments import (
    check_callable,
    check_optional,
    check_true_or_false,
    limit_s,
    non_negative,
    path_of,
)
from dataservice.runtime.refused_timeouts import refuse_timeout_s
from pstrain.callbacks.base import Callback, CallbackList, as_list
from pstrain.callbacks.monitor import Monitor
from pstrain.checkpoints import manifest
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.checkpoints.watch import checkpoints_iterator
from pstrain.errors import DataLossError, InvalidArgumentError, InvalidTypeError, NotFoundError
from pstrain.evaluation import evaluate
from pstrain.evaluation_results import EvaluationResults
from pstrain.execution.data import as_source
from pstrain.features.weighting import with_weights
from pstrain.variables.variable import Variable

logger = logging.getLogger(__name__)

_POLL_S = 30.0


class SidecarEvaluator:
    """An evaluator of ``model`` on ``data`` for each new checkpoint in ``checkpoint_dir``.

    The checkpoints contain the model (``Checkpoint(model=..., optimizer=...)``). ``model`` has the
    same structure, is made outside any strategy, and is compiled with the metrics. The evaluator
    takes the newest checkpoint and skips those that appeared in between; with ``every=True`` it
    takes each one, in order. :meth:`start` follows the directory until one of these cases occurs:

    - ``max_evaluations`` checkpoints have been evaluated, each counted once, by this evaluator and
      by earlier ones that wrote to the same ``results_dir``: one that is started again ends where
      it would have ended, after at least one evaluation. Skipped checkpoints do not count
      (TensorFlow's ends at the checkpoint of that number): to end with a training that saves n,
      give n with ``every=True``, or ``last_step``;
    - training has made ``last_step`` steps, by the checkpoint's ``optimizer``, whatever ``model``
      was compiled with (InvalidArgumentError if the checkpoint has no optimizer);
    - no checkpoint has appeared for ``timeout`` seconds (30 if only ``timeout_fn`` is given), and
      ``timeout_fn``, if given, returns a true value;
    - :meth:`stop` was called.

    ``steps``: batches of each evaluation (None: all of ``data``). Results go to ``results_dir``, by
    default ``<checkpoint_dir>/evaluation``: ``metrics.jsonl`` has a line per evaluation,
    ``best.json`` the best evaluation by ``monitor`` (``mode`` as in EarlyStopping); an evaluator
    that is started again continues from both. ``callbacks`` are called and ``sample_weight``
    weighs the loss as in ``evaluate``.
    """

    @refuse_timeout_s("SidecarEvaluator")
    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Callback] | None = None,
        *,
        every: bool = False,
        last_step: int | None = None,
        timeout: float | None = None,
        timeout_fn: Callable[[], bool] | None = None,
        min_interval_secs: float = 0.0,
        monitor: str = "loss",
        mode: str = "auto",
        results_dir: str | os.PathLike[str] | None = None,
        batch_size: int = 4096,
        verbose: int = 1,
        sample_weight: Any = None,
    ) -> None:
        check_optional(1, max_evaluations=max_evaluations, steps=steps, batch_size=batch_size)
        check_optional(0, last_step=last_step)
        non_negative(min_interval_secs, "min_interval_secs")
        timeout = limit_s(timeout)
        check_callable("timeout_fn", timeout_fn, optional=True)
        check_true_or_false(every=every)
        if not hasattr(model, "variables"):
            raise InvalidTypeError(
                f"SidecarEvaluator takes a model, then the data, got {model!r} first"
            )
        self.model = model
        self.checkpoint_dir = path_of(checkpoint_dir, "checkpoint_dir")
        beside = os.path.join(self.checkpoint_dir, "evaluation")
        self.results_dir = path_of(beside if results_dir is None else results_dir, "results_dir")
        self.results: list[dict[str, Any]] = []
        self._steps, self._max_evaluations, self._every = steps, max_evaluations, every
        self._callbacks = as_list(callbacks)
        self._last_step = last_step
        self._timeout, self._timeout_fn = timeout, timeout_fn
        self._min_interval_s = min_interval_secs
        self._monitor = Monitor(monitor, mode=mode)
        self._batch_size, self._verbose = batch_size, verbose
        self._stop = threading.Event()
        self._step_count: _StepCount | None = None
        weighted, self._weight_column = with_weights(data, sample_weight)
        self.data = as_source(weighted, batch_size)
        self._evaluated: set[str] = set()

    def __repr__(self) -> str:
        return (
            f"<SidecarEvaluator of {self.checkpoint_dir!r}, {len(self.results)} evaluations of "
            f"{self.model!r}>"
        )

    def start(self) -> list[dict[str, Any]]:
        """Evaluates until one of the conditions to stop holds; returns one dict per evaluation.

        Each dict has ``checkpoint``, ``step`` and ``metrics``. Raises errors that concern every
        checkpoint, such as a model of another structure; skips a checkpoint that is removed while
        it is read.
        """
        self._monitor.follow(self.model)
        files = EvaluationResults(self.results_dir, self._monitor)
        self._evaluated = files.resume()
        self._tell_of_earlier(files.path)
        for path in checkpoints_iterator(
            self.checkpoint_dir,
            self._min_interval_s,
            self._timeout if self._timeout is not None else _POLL_S,
            self._has_ended,
            every=self._every,
            stop=self._stop,
        ):
            result = self._evaluate(path, files)
            if result is not None and self._is_last(result):
                break
        return self.results

    def stop(self) -> None:
        """Ends :meth:`start` after the evaluation in progress; may be called from any thread."""
        self._stop.set()

    def _tell_of_earlier(self, path: str) -> None:
        if self._verbose and self._max_evaluations is not None and self._evaluated:
            print(
                f"max_evaluations={self._max_evaluations} counts {len(self._evaluated)} made "
                f"before, by {path}; another results_dir counts anew",
                flush=True,
            )

    def _has_ended(self) -> bool:
        if self._timeout is None:
            logger.info("waiting for a new checkpoint in %s", self.checkpoint_dir)
            return self._timeout_fn is not None and self._timeout_fn()
        return self._timeout_fn is None or self._timeout_fn()

    def _is_last(self, result: dict[str, Any]) -> bool:
        if self._max_evaluations is not None and len(self._evaluated) >= self._max_evaluations:
            return True
        step = result["step"]
        return self._last_step is not None and step is not None and step >= self._last_step

    def _evaluate(self, path: str, files: EvaluationResults) -> dict[str, Any] | None:
        """Evaluates one checkpoint; None if the checkpoint was removed before it could be read."""
        try:
            step = self._restore(path)
        except (NotFoundError, DataLossError, FileNotFoundError):
            if os.path.exists(path):
                raise
            logger.info("checkpoint %s was removed before it could be evaluated", path)
            return None
        logs = evaluate(
            self.model,
            self.data,
            steps=self._steps,
            batch_size=self._batch_size,
            verbose=0,
            callbacks=CallbackList(self._callbacks, self.model, steps=self._steps, step=step),
            sample_weight=self._weight_column,
        )
        result = {"checkpoint": path, "step": step, "metrics": logs}
        self.results.append(result)
        self._evaluated.add(path)
        files.write(result)
        if self._verbose:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
            when = "" if step is None else f" at step {step}"
            print(f"{os.path.basename(path)}{when}: {shown}", flush=True)
        return result

    def _restore(self, path: str) -> int | None:
        held = manifest.read(path)["objects"]
        optimizer = self._optimizer_of(held["optimizer"]) if "optimizer" in held else None
        if optimizer is None and self._last_step is not None:
            raise InvalidArgumentError(
                f"last_step={self._last_step}, but checkpoint {path} holds no 'optimizer', whose "
                "steps these are: save Checkpoint(model=..., optimizer=...), or give "
                "max_evaluations or timeout"
            )
        Checkpoint(model=self.model, optimizer=optimizer).restore(path)
        return None if optimizer is None else int(optimizer.iterations)

    def _optimizer_of(self, saved: dict[str, Any]) -> Any:
        """Returns the model's optimizer if the saved one has its rule, or else a step count."""
        name, own = saved["config"]["name"], self.model.optimizer
        if own is not None and own.get_config()["name"] == name:
            return own
        if self._step_count is None:
            self._step_count = _StepCount(name)
        return self._step_count


class _StepCount:
    """The step count of a checkpoint's optimizer of this name, without its update rule."""

    def __init__(self, name: str) -> None:
        self.iterations = Variable(0, name=f"{name}/iterations", trainable=False)
        self.variables = [self.iterations]

"""Decides whether a monitored value improves, and which epochs are validated. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from dataservice.runtime.arguments import (
    check_choice,
    check_number,
    check_text,
    integer_at_least,
)
from pstrain.errors import InvalidArgumentError

# Ends of names of measures to be maximised; all others, such as losses, are to be minimised.
_SCORES = ("auc", "acc", "accuracy", "precision", "recall", "ndcg", "hit_rate", "r2_score")


class Monitor:
    """A monitor of ``name`` in logs; ``mode``: "min", "max" or "auto".

    "auto": as the metric of that name says, in the model given to :meth:`follow`; without such a
    metric, or where it does not say, by the name.
    """

    def __init__(
        self,
        name: str,
        *,
        mode: str = "auto",
        min_delta: float = 0.0,
        baseline: float | None = None,
    ) -> None:
        check_text("monitor", name)
        check_choice("mode", mode, ("min", "max", "auto"))
        self._is_auto = mode == "auto"
        self.name, self.mode = name, _mode_by_name(name) if self._is_auto else mode
        check_number("min_delta", min_delta)
        if baseline is not None:
            check_number("baseline", baseline)
        self._min_delta = abs(min_delta)
        self._baseline = baseline
        self.best: float | None = None

    def follow(self, model: Any) -> None:
        """Takes what is better from the metrics of ``model``, if ``mode`` is "auto"."""
        if not self._is_auto:
            return
        names = (self.name, self.name.removeprefix("val_"))
        metrics = getattr(model, "metrics", ())
        known = (each.more_is_better for each in metrics if each.name in names)
        more_is_better = next(known, None)
        if more_is_better is None:
            self.mode = _mode_by_name(self.name)
        else:
            self.mode = "max" if more_is_better else "min"

    def reset(self) -> None:
        """Forgets the best value."""
        self.best = None

    def value(self, logs: Mapping[str, float], whose: str) -> float:
        """Returns the value in ``logs``; ValueError, naming the callback ``whose``, if missing."""
        if self.name not in logs:
            what = f"{whose} watches {self.name!r}; the logs have {sorted(logs)}"
            if self.name.startswith("val_") and not any(log.startswith("val_") for log in logs):
                what += "; 'val_' names are those of fit(..., validation_data=...)"
            raise InvalidArgumentError(what)
        return float(logs[self.name])

    def is_due(self, epoch: int, params: Mapping[str, Any]) -> bool:
        """True if the logs of this epoch have the value: "val_" names need a validation."""
        return not self.name.startswith("val_") or is_validated(
            epoch, params.get("validation_freq", 1)
        )

    def improves(self, value: float) -> bool:
        """True if ``value`` is better than the best value so far; then makes it the best."""
        if not self._is_beyond(self.best, value):
            return False
        self.best = value
        return True

    def beats_baseline(self, value: float) -> bool:
        """True if ``value`` is better than the baseline, or there is none."""
        return self._is_beyond(self._baseline, value)

    def _is_beyond(self, known: float | None, value: float) -> bool:
        if known is None or math.isnan(value):
            return not math.isnan(value)
        return (known - value if self.mode == "min" else value - known) > self._min_delta


def _mode_by_name(name: str) -> str:
    # Further metrics of the same kind have numbered names, such as "auc_2".
    plain = name.lower().rstrip("0123456789_").removesuffix("_at")
    return "max" if plain.endswith(_SCORES) else "min"


def is_validated(epoch: int, validation_freq: int | Collection[int]) -> bool:
    """True if ``fit`` evaluates its ``validation_data`` after this epoch; epochs count from 0."""
    if isinstance(validation_freq, Collection):
        return epoch + 1 in validation_freq
    return (epoch + 1) % validation_freq == 0


def checked_frequency(validation_freq: Any) -> int | list[int]:
    """Returns a positive integer, or those of a collection; InvalidArgumentError for others."""
    if isinstance(validation_freq, Collection) and not isinstance(validation_freq, str):
        return [integer_at_least(each, 1, "validation_freq") for each in validation_freq]
    return integer_at_least(validation_freq, 1, "validation_freq")


def measured_names(model: Any) -> list[str]:
    """Returns the names of what a validation measures of a model."""
    return ["loss", *(metric.name for metric in model.metrics)]

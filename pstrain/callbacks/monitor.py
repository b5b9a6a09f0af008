"""Which of two values of a measure is better, and which epochs have one. Pure."""

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

# Measures of which more is better; of all others, such as losses, less is.
_SCORES = ("auc", "acc", "accuracy", "precision", "recall")


class Monitor:
    """Watches ``name`` in logs: ``mode`` "min", "max", or "auto" (by the name)."""

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
        if mode == "auto":
            # Of several metrics of a kind the others have numbers: "auc_2".
            plain = name.lower().rstrip("0123456789_")
            mode = "max" if plain.endswith(_SCORES) else "min"
        self.name, self.mode = name, mode
        check_number("min_delta", min_delta)
        if baseline is not None:
            check_number("baseline", baseline)
        self._min_delta = abs(min_delta)
        self._baseline = baseline
        self.best: float | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets the best value."""
        self.best = self._baseline

    def value(self, logs: Mapping[str, float], whose: str) -> float:
        """The value in ``logs``; ValueError, naming who watches, where there is none."""
        if self.name not in logs:
            raise InvalidArgumentError(
                f"{whose} watches {self.name!r}; the logs have {sorted(logs)}"
            )
        return float(logs[self.name])

    def is_due(self, epoch: int, params: Mapping[str, Any]) -> bool:
        """Whether the logs of an epoch shall have it: without a validation they lack its values."""
        return not self.name.startswith("val_") or is_validated(
            epoch, params.get("validation_freq", 1)
        )

    def improves(self, value: float) -> bool:
        """Whether ``value`` is better than the best so far, which it then becomes."""
        if math.isnan(value):
            return False
        if self.best is not None:
            gained = self.best - value if self.mode == "min" else value - self.best
            if not gained > self._min_delta:
                return False
        self.best = value
        return True


def is_validated(epoch: int, validation_freq: int | Collection[int]) -> bool:
    """Whether ``fit`` evaluates its ``validation_data`` after this epoch; the first is 0."""
    if isinstance(validation_freq, Collection):
        return epoch + 1 in validation_freq
    return (epoch + 1) % validation_freq == 0


def check_frequency(validation_freq: Any) -> None:
    """InvalidArgumentError for what is neither a positive number nor several."""
    is_list = isinstance(validation_freq, Collection) and not isinstance(validation_freq, str)
    for each in validation_freq if is_list else [validation_freq]:
        integer_at_least(each, 1, "validation_freq")

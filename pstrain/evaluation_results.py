"""The results of an evaluator in its folder: a line per evaluation, and the best evaluation.

Knows no model, and checkpoints by their paths only. Invariant: what an earlier evaluator has left
in the folder counts as far as it can be read; a damaged part is named in the log and left out.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any

from pstrain.callbacks.monitor import Monitor
from pstrain.checkpoints import manifest
from pstrain.output.result_files import append

logger = logging.getLogger(__name__)

_RESULTS = "metrics.jsonl"
_BEST = "best.json"


class EvaluationResults:
    """The results in ``folder``, of which ``monitor`` tells the best."""

    def __init__(self, folder: str, monitor: Monitor) -> None:
        self.folder = folder
        self._monitor = monitor

    @property
    def path(self) -> str:
        """The file with a line per evaluation."""
        return os.path.join(self.folder, _RESULTS)

    def resume(self) -> set[str]:
        """Goes on from the best evaluation so far; returns the checkpoints evaluated before."""
        self._monitor.best = self._known_best()
        return self._known_checkpoints()

    def write(self, result: dict[str, Any]) -> None:
        """Adds a result, and notes it as the best one if it is."""
        os.makedirs(self.folder, exist_ok=True)
        append(self.path, json.dumps(_plain(result)) + "\n")
        value = self._monitor.value(result["metrics"], "SidecarEvaluator")
        if self._monitor.improves(value):
            best = {"monitor": self._monitor.name, **_plain(result)}
            manifest.write_file(self.folder, _BEST, json.dumps(best, indent=1))

    def _known_checkpoints(self) -> set[str]:
        """Returns the checkpoints whose results are in the folder."""
        found: set[str] = set()
        if not os.path.exists(self.path):
            return found
        with open(self.path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    found.add(str(json.loads(line)["checkpoint"]))
                except (ValueError, KeyError, TypeError) as error:
                    logger.warning("cannot use a line of %s: %s", self.path, error)
        return found

    def _known_best(self) -> float | None:
        """Returns the best value that an earlier evaluator saved, or None."""
        try:
            with open(os.path.join(self.folder, _BEST), encoding="utf-8") as stream:
                best = json.load(stream)
            return float(best["metrics"][self._monitor.name])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("cannot use %s in %s: %s", _BEST, self.folder, error)
            return None


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    """Replaces metrics that are not finite by None: JSON has no NaN."""
    metrics: dict[str, float] = result["metrics"]
    kept = {name: v if math.isfinite(v) else None for name, v in metrics.items()}
    return {**result, "metrics": kept}

"""Groups of rows for metrics that look at rows together: from columns of the data.

Knows nothing of loops, or of what metrics make of groups. Invariant: a row's group depends on the
row alone, so it is the same on every trainer and each time that the row is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.features.side_columns import group_keys, side_column
from pstrain.metrics.base import Metric


class Grouping:
    """The columns by which ``metrics`` group rows."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._columns = {each.group: each.name for each in metrics if each.group is not None}

    def of(self, batch: Any) -> dict[str, NDArray[np.int64]]:
        """Returns the keys of a batch's rows by column; DataError if it lacks one."""
        return {
            column: group_keys(
                f"groups of column {column!r}",
                side_column(batch, column, "groups", f"group= of metric {metric!r}"),
            )
            for column, metric in self._columns.items()
        }

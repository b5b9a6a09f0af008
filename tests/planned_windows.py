"""The windows of a plan, as the dispatcher cuts them."""

from __future__ import annotations

from collections.abc import Sequence

from dataservice.dataset.division.linear import Linear
from dataservice.dataset.division.splits import window_sizes
from dataservice.sharding import Split
from dataservice.split_table import SplitTable
from dataservice.windowing import Windows, make_windows


def plan_windows(linear: Linear, splits: Sequence[Split], epoch: int) -> Windows:
    """Returns the windows of one epoch."""
    table = SplitTable.of(splits)
    return make_windows(
        table,
        epoch=epoch if linear.reshuffles else 0,
        shuffle_seed=linear.shuffle_seed,
        **window_sizes(linear, table)._asdict(),
    )

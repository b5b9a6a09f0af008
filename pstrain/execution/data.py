"""Turns what users pass as data into a source that an executor can run over.

Knows nothing of models or steps. Invariant: a source can be read again for the next epoch, and is
known to end if it must.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pyarrow as pa

import dataservice
from dataservice.errors import DataServiceWarning
from dataservice.runtime.arguments import check_number, integer_at_least
from pstrain.coordinator.per_worker import PerWorkerDataset
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features.batches import as_table, is_data_frame


def as_source(data: Any, batch_size: int) -> Any:
    """Returns a Dataset or dataset function, also from a table, a DataFrame or a dict of arrays.

    Rows without batches are batched by ``batch_size``, except those of a dataset function.
    """
    integer_at_least(batch_size, 1, "batch_size")
    if isinstance(data, dataservice.Dataset):
        return data if data.is_batched else data.batch(batch_size)
    if isinstance(data, PerWorkerDataset) or callable(data):
        return data
    data = as_table(data)
    if isinstance(data, pa.Table):
        return dataservice.Dataset.from_table(data).batch(batch_size)
    if isinstance(data, dict):
        return dataservice.Dataset.from_numpy(data).batch(batch_size)
    raise InvalidArgumentError(
        "data is a Dataset, a function that makes one, an Arrow table, a pandas DataFrame or a "
        f"dict of NumPy arrays, got {type(data).__name__}{_remedy(data)}"
    )


def split_rows(data: Any, share: float) -> tuple[pa.Table, pa.Table]:
    """Splits a table, a DataFrame or a dict of arrays into (the rest, its last ``share``)."""
    check_number("validation_split", share)
    if not 0 < share < 1:
        raise InvalidArgumentError(
            f"validation_split is a share of the rows between 0 and 1, got {share!r}"
        )
    if isinstance(data, dict):
        data = dataservice.Dataset.from_numpy(data).to_table()
    data = as_table(data)
    if not isinstance(data, pa.Table):
        raise InvalidArgumentError(
            "validation_split divides a table, a DataFrame or a dict of arrays, got "
            f"{type(data).__name__}: train on dataset.skip(n), and give "
            "validation_data=dataset.take(n)"
        )
    # Rounded first: a tenth of ten rows is one row, despite errors of floats.
    first = len(data) - math.ceil(round(len(data) * share, 6))
    if first in (0, len(data)):
        raise InvalidArgumentError(
            f"validation_split={share:g} of {len(data)} rows leaves {first} to train on and "
            f"{len(data) - first} to validate on: give another share, or more rows"
        )
    return data.slice(0, first), data.slice(first)


def rows_of(data: Any) -> int | None:
    """Returns the number of rows; None if it is not known without reading the data."""
    if isinstance(data, pa.Table | pa.RecordBatch) or is_data_frame(data):
        return len(data)
    return len(next(iter(data.values()))) if isinstance(data, dict) and data else None


def _remedy(data: Any) -> str:
    if type(data).__name__ == "DataFrame":
        return "; write pyarrow.table(frame)"
    if isinstance(data, tuple):
        return "; labels are a column of it, which the model's schema names"
    return ""


def check_end(source: Any, steps: int | None, argument: str) -> None:
    """Raises InvalidArgumentError for data without an end if ``steps`` does not limit it."""
    if steps is None and isinstance(source, dataservice.Dataset) and source.is_endless:
        raise InvalidArgumentError(
            f"the data has no end (cardinality INFINITE): give {argument}, or leave out repeat()"
        )


def warn_of_end(what: str, done: int, wanted: str, rule: str) -> None:
    """Warns that the data had fewer steps than were asked for."""
    warnings.warn(
        f"the data ended after {done} steps of {what}, with {wanted}: {rule}; repeat() the "
        "dataset, or ask for fewer steps",
        DataServiceWarning,
        stacklevel=2,
    )


def no_rows(what: str, source: Any) -> DataError:
    """Returns the error of ``what``, such as "epoch 1 had no rows to train on", with the reason."""
    is_known = isinstance(source, dataservice.Dataset)  # a function may read a job too
    if is_known and (source.has_private_job or not source.is_distributed):
        return DataError(f"{what}: the dataset is empty; look at its paths and filters")
    return DataError(
        f"{what}: other programs that share its job_name have read all of them, or the dataset is "
        "empty; give each program a job_name of its own, and look at the paths and filters"
    )


def can_be_dealt(data: Any) -> bool:
    """True if each trainer can read ``data`` by itself and finds the same rows as the others."""
    return isinstance(data, dataservice.Dataset) and not data.is_distributed and data.is_repeatable


def is_dealt(data: Any) -> bool:
    """True if training deals ``data`` to trainers by ranges: exact despite losses and late joins.

    Data without an end is not dealt, because a trainer that joins late may have to read from the
    start to its first range, which may be far. Nor is data with a cache: the cache is complete only
    after a read to the end, and only the trainer that is dealt the last range reads that far.
    """
    return can_be_dealt(data) and not data.is_endless and not data.has_cache

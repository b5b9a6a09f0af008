"""What users hand over as data, as a source that an executor can run over.

Invariant: what passes here can be read once more for the next epoch, and is known to end where it
has to.
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
from pstrain.errors import InvalidArgumentError
from pstrain.features.batches import is_data_frame


def as_source(data: Any, batch_size: int) -> Any:
    """A Dataset or dataset function from what users have: also a table, a DataFrame, arrays.

    Rows that are in no batches yet come in batches of ``batch_size``, except a function's.
    """
    integer_at_least(batch_size, 1, "batch_size")
    if isinstance(data, dataservice.Dataset):
        return data if data.is_batched else data.batch(batch_size)
    if isinstance(data, PerWorkerDataset) or callable(data):
        return data
    if is_data_frame(data):
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table | pa.RecordBatch):
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        return dataservice.Dataset.from_table(table).batch(batch_size)
    if isinstance(data, dict):
        return dataservice.Dataset.from_numpy(data).batch(batch_size)
    raise InvalidArgumentError(
        "data is a Dataset, a function that makes one, an Arrow table, a pandas DataFrame or a "
        f"dict of NumPy arrays, got {type(data).__name__}{_remedy(data)}"
    )


def split_rows(data: Any, share: float) -> tuple[pa.Table, pa.Table]:
    """The rows of a table, a DataFrame or a dict of arrays without their last ``share``, and it."""
    check_number("validation_split", share)
    if not 0 < share < 1:
        raise InvalidArgumentError(
            f"validation_split is a share of the rows between 0 and 1, got {share!r}"
        )
    if isinstance(data, dict):
        data = dataservice.Dataset.from_numpy(data).to_table()
    elif is_data_frame(data):
        data = pa.Table.from_pandas(data, preserve_index=False)
    elif isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table):
        raise InvalidArgumentError(
            "validation_split divides a table, a DataFrame or a dict of arrays, got "
            f"{type(data).__name__}: train on dataset.skip(n), and give "
            "validation_data=dataset.take(n)"
        )
    # Nine tenths of ten rows are nine, whatever floats make of it.
    first = len(data) - math.ceil(round(len(data) * share, 6))
    if first in (0, len(data)):
        raise InvalidArgumentError(
            f"validation_split={share:g} of {len(data)} rows leaves {first} to train on and "
            f"{len(data) - first} to validate on: give another share, or more rows"
        )
    return data.slice(0, first), data.slice(first)


def rows_of(data: Any) -> int | None:
    """Rows of a table, a DataFrame or arrays; None where that is not known without reading."""
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
    """InvalidArgumentError for data without an end, where no number of steps gives it one."""
    if steps is None and isinstance(source, dataservice.Dataset) and source.is_endless:
        raise InvalidArgumentError(
            f"the data has no end (cardinality INFINITE): give {argument}, or leave out repeat()"
        )


def warn_of_end(what: str, done: int, wanted: str, rule: str) -> None:
    """The data had fewer steps than were asked for."""
    warnings.warn(
        f"the data ended after {done} steps of {what}, with {wanted}: {rule}; repeat() the "
        "dataset, or ask for fewer steps",
        DataServiceWarning,
        stacklevel=2,
    )


def can_be_dealt(data: Any) -> bool:
    """Whether each trainer can read ``data`` by itself and finds the same rows as the others."""
    return isinstance(data, dataservice.Dataset) and not data.is_distributed and data.is_repeatable


def is_dealt(data: Any) -> bool:
    """Whether training deals ``data`` a range at a time: exactly, whoever is lost or comes late.

    Who comes late may have to read from the start to its first range, where positions are large, so
    data without an end are no such data; and nobody but who is dealt the last range reads to the
    end, which a cache waits for.
    """
    return can_be_dealt(data) and not data.is_endless and not data.has_cache

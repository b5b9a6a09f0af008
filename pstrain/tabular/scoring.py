"""Scores and predictions on files, by a model that ``pstrain train`` has left in a folder.

Decides nothing about columns: the folder says what each is. Invariant: nothing in the folder
changes, and rows to predict need no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import pstrain as ps
from dataservice.runtime.number_arrays import from_numbers
from pstrain.checkpoints.checkpoint import latest_checkpoint
from pstrain.errors import DataError, InvalidArgumentError, NotFoundError
from pstrain.models.loading import restored
from pstrain.tabular.files import check_columns, open_typed, plain_errors
from pstrain.tabular.measures import NUMBER_METRICS
from pstrain.tabular.preparation import Preparation
from pstrain.tabular.table_model import TableModel


def load(folder: Path) -> TableModel:
    """Restores the model that ``train`` left in a folder."""
    prepared = Preparation.load(folder)
    path = latest_checkpoint(folder)
    if path is None:
        raise NotFoundError(f"no checkpoint in {str(folder)!r}: train again with --overwrite")
    return TableModel(restored(path), prepared)


def evaluate(
    folder: Path,
    data: str,
    batch_size: int,
    types: Mapping[str, str],
    delimiter: str | None = None,
    group: str | None = None,
) -> dict[str, float]:
    """Returns the scores of the model in ``folder`` over all rows of ``data``, by name.

    They are auc, loss and accuracy or, of a model of numbers, r2_score, rmse and mae; and examples.
    ``types``: Arrow types of columns of text files, besides those that the model knows.
    ``delimiter``: the separator of columns in CSV files. ``group``: a column by whose values rows
    are also ranked: gauc, ndcg_at_10.
    """
    loaded = load(folder)
    model, prepared = loaded.model, loaded.preparation
    rows = open_typed(data, {**prepared.types, **types}, types, delimiter)
    grouped = () if group is None else (group,)
    check_columns(rows, (*prepared.columns, prepared.label, *grouped), data)
    model.compile(metrics=_metrics(prepared, group))
    prepare = prepared if group is None else partial(_with_groups, prepared, group)
    with plain_errors():
        scores = model.evaluate(rows.map(prepare, format="arrow").batch(batch_size), verbose=0)
    return dict(scores)


def _metrics(prepared: Preparation, group: str | None) -> list[Any]:
    """Returns the metrics that suit the labels; ranks of rows are of labels of two values."""
    if not prepared.predicts_numbers:
        column = None if group is None else _group_column(group)
        ranks = [ps.metrics.GAUC(group=column), ps.metrics.NDCG(10, group=column)] if column else []
        return ["auc", "accuracy", *ranks]
    if group is not None:
        raise InvalidArgumentError(
            f"--group {group} ranks rows by labels of two values, and this model predicts numbers: "
            "leave it out"
        )
    return list(NUMBER_METRICS)


def _with_groups(prepared: Preparation, group: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the features, and the column of groups as it is in the file."""
    return prepared(batch).append_column(_group_column(group), batch.column(group))


def _group_column(group: str) -> str:
    """Returns a name that no feature has: a column may be a feature too, in another form."""
    return f"--group {group}"


def predictions(
    folder: Path,
    data: str,
    column: str,
    types: Mapping[str, str],
    delimiter: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``data`` in batches, with what is predicted in ``column``.

    ``types`` and ``delimiter`` are as for ``evaluate``. Raises DataError if there is no row.
    """
    model = load(folder)
    prepared = model.preparation
    # The label column is not read here, so it may have any type, such as marks for "not known".
    known = {name: prepared.types[name] for name in prepared.columns if name in prepared.types}
    rows = open_typed(data, {**known, **types}, types, delimiter)
    check_columns(rows, prepared.columns, data)
    if column in rows.schema.names:
        raise InvalidArgumentError(
            f"the data has a column {column!r} already; name another one with --column"
        )
    is_empty = True
    for batch in rows:
        is_empty = False
        yield batch.append_column(column, from_numbers(model.predict_on_batch(batch)))
    if is_empty:
        raise DataError(f"{data!r} holds no rows to predict")

"""A model of ``pstrain train`` for rows as they are in files: prepares them, then asks the model.

Knows nothing of files of rows. Invariant: rows are prepared by the rules of the model's folder, and
rows to predict need no label.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from dataservice import Dataset
from pstrain.errors import InvalidArgumentError
from pstrain.execution.data import as_source
from pstrain.features.batches import as_batch
from pstrain.models.base import Model
from pstrain.models.options import EvaluateOptions, PredictOptions
from pstrain.tabular.files import plain_errors
from pstrain.tabular.preparation import Preparation

_BATCH_ROWS = 4_096


class TableModel:
    """A trained model and the preparation of its rows, as :func:`pstrain.models.load_model` reads.

    ``model``: the model itself, which takes prepared rows. ``preparation``: what prepares them,
    also for ``dataset.map(preparation, format="arrow")``. Thread-safe as models are.
    """

    def __init__(self, model: Model, preparation: Preparation) -> None:
        self.model = model
        self.preparation = preparation

    def predict_on_batch(self, rows: Any) -> NDArray[np.float32]:
        """Returns what the model predicts of each row, float32 [n].

        These are probabilities of the label's larger value or, of a model of numbers, labels.
        ``rows``: a record batch, a table, a DataFrame or a mapping of arrays, such as
        ``{"age": [41.0], "city": ["Bern"]}``. InvalidArgumentError if it lacks a feature.
        """
        batch = as_batch(rows, self.preparation.columns)
        return self.model.predict_on_batch(self.preparation.features(batch))

    def predict(self, data: Any, **options: Unpack[PredictOptions]) -> NDArray[np.float32]:
        """Returns the predictions for all rows of a Dataset, table, DataFrame or dict of arrays.

        ``options``: as of :func:`pstrain.evaluation.predict`.
        """
        rows = self._source(data, options.get("batch_size", _BATCH_ROWS))
        with plain_errors():
            features = rows.map(self.preparation.features, format="arrow")
            return self.model.predict(features, **options)

    def evaluate(self, data: Any, **options: Unpack[EvaluateOptions]) -> dict[str, float]:
        """Returns loss and compiled metrics over rows with labels, given as for ``predict``.

        ``options``: as of :func:`pstrain.evaluation.evaluate`. ``model.compile(metrics=[...])``
        sets the metrics; without it there is only the loss.
        """
        rows = self._source(data, options.get("batch_size", _BATCH_ROWS))
        with plain_errors():
            return self.model.evaluate(rows.map(self.preparation, format="arrow"), **options)

    def _source(self, data: Any, batch_size: int) -> Dataset:
        """Returns the data in batches; InvalidArgumentError if they lack a feature."""
        source = as_source(data, batch_size)
        if not isinstance(source, Dataset):
            raise InvalidArgumentError(
                "a model of `pstrain train` takes a Dataset, an Arrow table, a pandas DataFrame or "
                f"a dict of NumPy arrays, got {type(data).__name__}: give the dataset itself"
            )
        self.preparation.check_columns(source.schema.names)
        return source

    def __repr__(self) -> str:
        return f"<TableModel {self.model!r}, label {self.preparation.label!r}>"

"""Errors in the data that training is given: each says what is wrong and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.execution.data import no_rows
from pstrain.trainer.resources import open_dataset

COLUMNS = {"d": np.zeros(4, np.float32), "c": np.zeros(4, np.int64), "y": np.zeros(4, np.float32)}
DATA = ds.Dataset.from_numpy(COLUMNS).batch(2)
MISSING_LABEL = r"no label column 'label'; it has d, c, y: name .* FeatureSchema\(label=\.\.\.\)"


def model(**schema: Any) -> Any:
    given = {"dense": ("d",), "categorical": {"c": ps.Category(8)}, **schema}
    made = ps.models.LogisticRegression(ps.FeatureSchema(**given))
    made.compile("sgd")
    return made


def test_missing_label_column_is_refused_naming_schema_argument() -> None:
    for use in (
        lambda: model().fit(COLUMNS, verbose=0),
        lambda: model().evaluate(COLUMNS, verbose=0),
        lambda: model().loss(COLUMNS),
    ):
        with pytest.raises(DataError, match=MISSING_LABEL):
            use()


def test_missing_feature_column_is_refused_naming_it() -> None:
    with pytest.raises(InvalidArgumentError, match=r"lacks price; it has .*leave it out of the"):
        model(dense=("d", "price"), label="y").fit(COLUMNS, verbose=0)


def test_empty_training_dataset_is_refused() -> None:
    empty = {name: column[:0] for name, column in COLUMNS.items()}
    with pytest.raises(DataError, match="the dataset is empty; look at its paths and filters"):
        model(label="y").fit(empty, verbose=0)


@pytest.mark.parametrize(
    ("is_distributed", "is_private"), [(True, False), (True, True), (False, True)]
)
def test_rows_that_other_programs_may_have_read_are_named_as_a_reason(
    monkeypatch: pytest.MonkeyPatch, is_distributed: bool, is_private: bool
) -> None:
    monkeypatch.setattr(ds.Dataset, "is_distributed", is_distributed)
    monkeypatch.setattr(ds.Dataset, "has_private_job", is_private)
    others = "other programs that share its job_name" in str(no_rows("no rows", DATA))
    assert others == (is_distributed and not is_private)
    assert "other programs" in str(no_rows("no rows", lambda _context: DATA)), "it may read a job"


def test_dataset_function_without_return_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got NoneType: end it with `return dataset`"):
        open_dataset(lambda _context: None, 0, None)  # type: ignore[arg-type]

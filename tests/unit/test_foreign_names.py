"""Names of tf.data and Keras: the same here, or an error that says what to write."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from dataservice.dataset import foreign_names


@pytest.mark.parametrize("name", foreign_names._REMEDIES)
def test_a_name_that_is_another_here_is_told(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"a Dataset has no attribute '{name}': \w+"):
        getattr(ds.Dataset.range(3), name)
    assert not hasattr(ds.Dataset, name)


def test_any_other_name_is_a_plain_attribute_error() -> None:
    data = ds.Dataset.range(3)
    with pytest.raises(AttributeError, match=r"no attribute 'shufle'$") as raised:
        data.shufle(3)  # type: ignore[attr-defined]
    assert (raised.value.name, raised.value.obj) == ("shufle", data)
    for same in (copy.copy(data), pickle.loads(pickle.dumps(data))):
        assert same.to_table().num_rows == 3


def test_arguments_that_only_tf_data_needs_are_taken() -> None:
    data = ds.Dataset.from_tensor_slices({"x": [1, 2, 3], "label": [0, 1, 0]})
    mapped = data.map(lambda c: {"y": c["x"] * 2}, num_parallel_calls=ds.AUTOTUNE)
    batches = [batch["y"].tolist() for batch in mapped.batch(2, num_parallel_calls=4).numpy()]
    assert batches == [[2, 4], [6]]
    with pytest.raises(ValueError, match="num_parallel_calls"):
        data.map(dict, num_parallel_calls=0)
    with pytest.raises(TypeError, match=r"a dict of arrays.*from_numpy"):
        ds.Dataset.from_tensor_slices([1, 2])  # type: ignore[arg-type]


def test_layers_tell_what_stands_for_what_keras_does() -> None:
    with pytest.raises(ValueError, match=r"got 'sigmoid'; for probabilities.*losses.sigmoid"):
        ps.layers.Dense(1, activation="sigmoid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got \(1, 3\); for the mean.*combiner="):
        ps.layers.Embedding(9, 2)(np.array([[1, 2, 3]]))
    metric = ps.metrics.Accuracy()
    metric.update_state([1, 0], [1, 1])
    metric.reset_states()
    assert np.isnan(metric.result())

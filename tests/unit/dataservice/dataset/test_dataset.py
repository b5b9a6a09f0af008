"""Dataset and its iterators: epochs, saved positions, forms of reading, errors."""

from __future__ import annotations

import gc
import json
import pathlib
import traceback
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import col
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
    UserFunctionError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import chunked, numbers, values


def shuffled() -> Dataset:
    """Returns a dataset as each start of a program builds it anew: with a seed of its own."""
    return numbers(30).shuffle(10).batch(4)


def rest(iterator: Any) -> list[list[int]]:
    return [batch.column(0).to_pylist() for batch in iterator]


def test_each_pass_is_shuffled_as_new_epoch() -> None:
    dataset = numbers(30).shuffle(30, seed=1)
    first, second = values(list(dataset)), values(list(dataset))
    assert first != second
    again = numbers(30).shuffle(30, seed=1)
    assert [values(list(again)), values(list(again))] == [first, second]


def test_position_is_restored_in_restarted_program_with_other_drawn_seed() -> None:
    dataset = shuffled()
    list(dataset)
    with iter(dataset) as iterator:
        next(iterator)
        next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
        wanted = rest(iterator)
    restarted = iter(shuffled())
    restarted.load_state_dict(state)
    next_state = restarted.state_dict()
    assert rest(restarted) == wanted
    third = iter(shuffled())
    next(third)
    third.load_state_dict(next_state)
    assert rest(third) == wanted


def test_position_at_beginning_and_end_is_restored() -> None:
    iterator = iter(shuffled())
    begin = iterator.state_dict()
    everything = rest(iterator)
    end = iterator.state_dict()
    iterator.load_state_dict(end)
    assert rest(iterator) == []
    iterator.load_state_dict(begin)
    assert rest(iterator) == everything


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": "another"}, "saved by another dataset"),
        ({"version": 2}, "not an iterator state of version 1"),
        ({"seeds": []}, "needs 1 drawn seeds"),
        ({"seeds": ["x"]}, "needs 1 drawn seeds"),
        ({"stream": {}}, "malformed"),
        ({"stream": None}, "malformed"),
        ({"epoch": None}, "malformed"),
    ],
)
def test_state_that_does_not_fit_iterator_is_refused(change: dict[str, Any], message: str) -> None:
    iterator = iter(shuffled())
    state = {**iterator.state_dict(), **change}
    with pytest.raises(InvalidArgumentError, match=message):
        iterator.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="saved by another"):
        iter(numbers(3)).load_state_dict(iter(shuffled()).state_dict())


def test_closed_or_failed_iterator_yields_nothing_more() -> None:
    def fail(columns: dict[str, Any]) -> Any:
        assert columns["x"][0] != 3
        return columns

    iterator = iter(numbers(20).map(fail))
    next(iterator)
    with pytest.raises(UserFunctionError):
        next(iterator)
    with pytest.raises(UserFunctionError):
        next(iterator)
    with pytest.raises(FailedPreconditionError, match="closed"):
        iterator.state_dict()
    iterator.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        next(iterator)


def test_abandoned_iterator_is_garbage_collected() -> None:
    iterator = iter(numbers(20).batch(2))
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None


def test_dataset_is_read_as_rows_arrays_and_table() -> None:
    dataset = Dataset.from_numpy(
        {"a": np.arange(3), "v": np.ones((3, 2), np.float32), "s": np.array(["x", "y", "z"])}
    )
    assert list(dataset.rows())[1] == {"a": 1, "v": [1.0, 1.0], "s": "y"}
    (arrays,) = list(dataset.numpy())
    assert arrays["v"].shape == (3, 2)
    assert dataset.to_table().num_rows == 3
    assert dataset.schema.names == ["a", "v", "s"]
    assert dataset.stats().rows == 9
    assert dataset.stats().iterators == 3
    assert dataset.stats().wait_s > 0
    empty = dataset.filter(col("a") < 0).to_table()
    assert empty.num_rows == 0
    assert empty.schema == dataset.schema


def test_numpy_iterator_can_be_saved_and_restored() -> None:
    dataset = numbers(20).shuffle(9, seed=1).batch(3)
    with dataset.numpy() as iterator:
        next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
        wanted = [batch["x"].tolist() for batch in iterator]
        assert iterator.stats()["rows"] == 20
    with pytest.raises(FailedPreconditionError, match="closed"):
        next(iterator)
    assert "closed" in repr(iterator)
    again = dataset.numpy()
    again.load_state_dict(state)
    assert [batch["x"].tolist() for batch in again] == wanted


def test_numpy_reading_shares_memory_with_the_table() -> None:
    table = pa.table({"x": np.arange(100)})
    address = table.column("x").chunk(0).buffers()[1].address
    batches = list(Dataset.from_table(table).batch(50).numpy())
    found = [batch["x"].__array_interface__["data"][0] for batch in batches]
    assert found == [address, address + 400]


def test_range_dataset_has_values_of_python_range() -> None:
    for arguments in ((5,), (2, 9), (9, 2, -3), (0, 10, 4), (3, 3)):
        dataset = Dataset.range(*arguments)
        assert values(list(dataset), "id") == list(range(*arguments))
    assert Dataset.range(5).schema == pa.schema([("id", pa.int64())])


def test_range_dataset_has_up_to_63_bits_of_rows() -> None:
    dataset = Dataset.range(-1, 2**63 - 2)
    assert dataset.cardinality() == 2**63 - 1
    assert values(list(dataset.take(2)), "id") == [-1, 0]
    ends = Dataset.range(-(2**63), 2**63 - 1, 2**63 - 1)
    assert values(list(ends), "id") == [-(2**63), -1, 2**63 - 2]
    with pytest.raises(InvalidArgumentError, match=r"fewer than 2\*\*63 rows"):
        Dataset.range(-(2**63), 2**63 - 1)


def test_from_table_takes_dictionaries_and_record_batches() -> None:
    encoded = pa.table({"d": pa.array(["x", "y", "x"]).dictionary_encode()})
    dataset = Dataset.from_table(chunked(encoded, [1]))
    assert dataset.schema == pa.schema([("d", pa.string())])
    assert values(list(dataset), "d") == ["x", "y", "x"]
    assert Dataset.from_table(pa.record_batch({"x": [1]})).cardinality() == 1  # type: ignore


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Dataset.range(1, 2, 0), InvalidArgumentError, "step must not be zero"),
        (lambda: Dataset.range(1.5), InvalidArgumentError, "stop must be an integer, got 1.5"),  # type: ignore
        (lambda: Dataset.range(2**70), InvalidArgumentError, "64 bits"),
        (lambda: Dataset.from_table([1]), InvalidArgumentError, "pyarrow.Table, got list"),
        (lambda: Dataset.from_table(pa.table({})), InvalidArgumentError, "without columns"),
        (lambda: Dataset.from_numpy([1]), InvalidArgumentError, "dict of arrays"),  # type: ignore
        (lambda: Dataset.from_numpy({}), InvalidArgumentError, "dict of arrays"),
        (
            lambda: Dataset.from_numpy({"a": np.zeros(2), "b": np.zeros(3)}),
            SchemaError,
            "given to from_numpy have unequal lengths: 'a' has 2, 'b' has 3",
        ),
        (lambda: Dataset.from_parquet([]), InvalidArgumentError, "empty list of paths"),
        (lambda: Dataset.from_parquet(3), InvalidArgumentError, "from_parquet takes a path"),  # type: ignore
        (lambda: Dataset.from_parquet("p", columns=[1]), InvalidArgumentError, "list of column"),
        (lambda: Dataset.from_parquet("p", columns=[]), InvalidArgumentError, "at least one"),
        (lambda: Dataset.from_ipc("p", columns=["a", "a"]), InvalidArgumentError, "once, got"),
        (lambda: Dataset.from_parquet("p", filter=len), InvalidArgumentError, "expression"),  # type: ignore
        (lambda: Dataset.from_csv([""]), InvalidArgumentError, "from_csv got ''"),
        (lambda: Dataset.from_csv("c", schema=3), InvalidArgumentError, "pyarrow.Schema"),  # type: ignore
        (lambda: Dataset.from_csv("c", delimiter=""), InvalidArgumentError, "one character"),
        (lambda: numbers(3).apply(lambda _dataset: 7), InvalidArgumentError, "returned 7"),  # type: ignore
        (lambda: numbers(3).repeat().to_table(), InvalidArgumentError, "endless"),
    ],
)
def test_invalid_dataset_arguments_are_refused(
    build: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


def test_apply_returns_result_of_function_and_repr_names_operators() -> None:
    assert numbers(9).apply(lambda d: d.batch(4)).cardinality() == 3
    assert repr(numbers(9).batch(4)) == "Dataset(table > batch)"


def test_counts_of_operators_may_be_given_by_keyword() -> None:
    assert Dataset.range(stop=4).skip(n=1).take(n=2).to_table()["id"].to_pylist() == [1, 2]
    batches = Dataset.range(5).batch(n=2, drop_remainder=True).prefetch(n=1)
    assert [batch.num_rows for batch in batches] == [2, 2]
    assert Dataset.range(1).rename(mapping={"id": "x"}).schema.names == ["x"]
    with pytest.raises(TypeError, match="n"):
        Dataset.range(5).take(1, n=2)


def test_missing_file_raises_file_not_found_error(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "none.parquet", tmp_path / "none*.parquet"):
        dataset = Dataset.from_parquet(str(path))
        with pytest.raises(FileNotFoundError, match="none"):
            dataset.to_table()
        with pytest.raises(NotFoundError):
            dataset.to_table()


def test_len_is_known_cardinality_and_refused_otherwise() -> None:
    assert len(Dataset.range(10).batch(4)) == 3
    assert Dataset.range(0)
    assert list(Dataset.range(3).filter(lambda c: c["id"] > 5)) == []
    with pytest.raises(TypeError, match="endless"):
        len(Dataset.range(3).repeat())
    with pytest.raises(TypeError, match="not known before it is read"):
        len(Dataset.range(3).filter(lambda c: c["id"] > 1))


def test_none_selects_default_where_it_does_in_tensorflow() -> None:
    rows = Dataset.range(3)
    for given, usual in [
        (rows.map(_same, deterministic=None), rows.map(_same)),
        (rows.flat_map(_same, deterministic=None), rows.flat_map(_same)),
        (rows.filter(_same, deterministic=None), rows.filter(_same)),
        (rows.shuffle(2, 1, None), rows.shuffle(2, 1)),
        (rows.interleave(_same, None, None, deterministic=None), rows.interleave(_same)),
        (
            Dataset.sample_from_datasets([rows], seed=1, rerandomize_each_iteration=None),
            Dataset.sample_from_datasets([rows], seed=1),
        ),
    ]:
        assert given.identity() == usual.identity()
        assert given.is_repeatable


def _same(rows: Any) -> Any:
    return rows


def test_is_endless_is_true_of_infinite_datasets_only() -> None:
    assert Dataset.range(3).repeat().batch(2).is_endless
    assert not Dataset.range(3).repeat().take(2).is_endless
    assert not Dataset.from_parquet("there-is-no-such-file").is_endless
    assert Dataset.from_parquet("there-is-no-such-file").repeat().is_endless


def test_failed_iterator_raises_same_error_without_growing_traceback() -> None:
    def fail(columns: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"no {sorted(columns)}")

    iterator = iter(numbers(4).map(fail, schema=numbers(4).schema))
    told = []
    for _ in range(3):
        with pytest.raises(UserFunctionError, match="no") as caught:
            next(iterator)
        told.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert told[2] == told[1] <= told[0] + 3

"""padded_batch, bucket_by_sequence_length and group_by_window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.expressions import col
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
    UserFunctionError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, chunked, numbers, run


def texts(lengths: list[int], sizes: list[int] | None = None) -> Dataset:
    table = pa.table(
        {
            "n": pa.array(range(len(lengths)), pa.int64()),
            "tokens": pa.array([list(range(n)) for n in lengths], pa.list_(pa.int32())),
            "words": pa.array([["w"] * n for n in lengths], pa.list_(pa.string())),
        }
    )
    return Dataset.from_table(chunked(table, sizes or []))


def one_in_pairs(columns: dict[str, np.ndarray]) -> np.ndarray:
    return np.ones((len(columns["n"]), 2))


class TestPaddedBatch:
    def test_lists_are_padded_to_longest_of_batch(self) -> None:
        dataset = texts([1, 3, 0, 2, 2]).padded_batch(3)
        first, second = run(dataset)
        assert first.column("tokens").to_pylist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0]]
        assert first.column("words").to_pylist() == [["w", "", ""], ["w"] * 3, [""] * 3]
        assert second.column("tokens").to_pylist() == [[0, 1], [0, 1]]
        assert first.schema == second.schema == dataset.schema
        arrays = [batch["tokens"] for batch in dataset.numpy()]
        assert [array.shape for array in arrays] == [(3, 3), (2, 2)]
        assert arrays[0].dtype == np.int32
        assert dataset.cardinality() == 2
        check_positions(dataset)

    def test_lists_are_padded_to_given_lengths_with_given_values(self) -> None:
        dataset = texts([1, 2]).padded_batch(
            2, {"tokens": 4, "words": None}, {"tokens": -1, "words": "?"}, drop_remainder=True
        )
        (batch,) = run(decode_plan(encode_plan(dataset.node)))
        assert batch.column("tokens").to_pylist() == [[0, -1, -1, -1], [0, 1, -1, -1]]
        assert batch.column("words").to_pylist() == [["w", "?"], ["w", "w"]]

    def test_null_and_empty_lists_are_padded(self) -> None:
        table = pa.table({"v": pa.array([None, [1.5, None], []], pa.list_(pa.float32()))})
        (batch,) = run(Dataset.from_table(table).padded_batch(3, padding_values={"v": 9}))
        assert batch.column("v").to_pylist() == [[9, 9], [1.5, None], [9, 9]]
        empty = Dataset.from_table(table.slice(2)).padded_batch(1)
        assert run(empty)[0].column("v").to_pylist() == [[]]
        assert next(iter(empty.numpy()))["v"].shape == (1, 0)

    @pytest.mark.parametrize("kind", [pa.int8(), pa.float32(), pa.uint64(), pa.float64()])
    @pytest.mark.parametrize("listed", [pa.list_, pa.large_list])
    def test_number_lists_are_padded_alike_with_and_without_nulls(
        self, kind: pa.DataType, listed: Any
    ) -> None:
        plain = [[9], [1, 2, 3], None, [], [4, 5]]
        nulled = [[9], [1, 2, 3, None], None, [], [4, 5]]
        for lists, width in ((plain, 3), (nulled, 4)):
            table = pa.table({"v": pa.array(lists, listed(kind))}).slice(1)
            (batch,) = run(Dataset.from_table(table).padded_batch(4, {"v": 5}, {"v": 7}))
            expected = [[*(v or []), *[7] * (5 - len(v or []))] for v in lists[1:]]
            assert batch.column("v").to_pylist() == expected
            assert batch.column("v").type == listed(kind)
            (batch,) = run(Dataset.from_table(table).padded_batch(4))
            assert {len(v) for v in batch.column("v").to_pylist()} == {width}

    def test_padded_length_may_be_given_as_shape(self) -> None:
        short = texts([1]).padded_batch(1, {"tokens": [3]})
        assert next(iter(short.numpy()))["tokens"].shape == (1, 3)

    def test_columns_without_lists_to_pad_may_be_named_with_their_shapes(self) -> None:
        table = pa.table(
            {
                "v": [[1], [2, 3]],
                "label": [7, 8],
                "fixed": pa.array([[1, 2]] * 2, pa.list_(pa.int8(), 2)),
            }
        )
        shapes = {"v": [None], "label": [], "fixed": [2]}
        dataset = Dataset.from_table(table).padded_batch(2, shapes, {"v": 9, "label": 0})
        (batch,) = run(decode_plan(encode_plan(dataset.node)))
        expected = {"v": [[1, 9], [2, 3]], "label": [7, 8], "fixed": [[1, 2]] * 2}
        assert batch.to_pydict() == expected

    @pytest.mark.parametrize("value", [-1, np.int64(-1)])
    def test_one_padding_value_is_for_all_lists(self, value: Any) -> None:
        lists = Dataset.from_table(pa.table({"a": [[1], [2, 3]], "b": [[0.5], []], "n": [1, 2]}))
        expected = {"a": [[1, -1], [2, 3]], "b": [[0.5], [-1.0]], "n": [1, 2]}
        by_length = lists.bucket_by_sequence_length("n", [9], [2, 2], padding_values=value)
        for dataset in (lists.padded_batch(2, padding_values=value), by_length):
            (batch,) = run(decode_plan(encode_plan(dataset.node)))
            assert batch.to_pydict() == expected
        with pytest.raises(SchemaError, match=r"-1 is not a value to pad column 'words'"):
            run(texts([1, 2]).padded_batch(2, padding_values=value))

    def test_padded_batch_is_linearised_as_batch_and_pad(self) -> None:
        linear = linearise(texts([1, 2]).shuffle(2, 1).padded_batch(2).node)
        assert linear.batch_size == 2
        assert [operator.kind for operator in linear.batch_operators] == ["pad"]

    @pytest.mark.parametrize(
        ("build", "error", "message"),
        [
            (lambda d: d.padded_batch(0), InvalidArgumentError, "batch size must be"),
            (lambda d: d.padded_batch(2, 3), InvalidArgumentError, "padded_shapes must be a dict"),
            (lambda d: d.padded_batch(2, {"tokens": 0}), InvalidArgumentError, "got 0"),
            (lambda d: d.padded_batch(2, None, {"n": [1]}), InvalidArgumentError, "number or a"),
            (lambda d: run(d.padded_batch(2, {"z": 1})), SchemaError, "no column 'z'"),
            (lambda d: run(d.padded_batch(2, {"n": 1})), SchemaError, "'n' is of type int64"),
            (lambda d: run(d.padded_batch(2, {"n": [None]})), SchemaError, r"or write \[\]"),
            (lambda d: run(d.padded_batch(2, {"tokens": []})), SchemaError, r"not \[\]"),
            (lambda d: run(d.padded_batch(2, {"tokens": 2})), SchemaError, "list of 3 values"),
            (
                lambda d: run(d.with_column("f", one_in_pairs).padded_batch(2, {"f": 3})),
                SchemaError,
                "column 'f' has lists of 2 values, which are not padded to 3",
            ),
            (lambda d: d.padded_batch(2, None, [1]), InvalidArgumentError, r"a dict.*got \[1\]"),
            (
                lambda d: run(d.padded_batch(2, None, {"tokens": "a"})),
                SchemaError,
                "not a value to pad column 'tokens'",
            ),
        ],
    )
    def test_invalid_arguments_are_refused(
        self, build: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            build(texts([1, 3]))


class TestBucketBySequenceLength:
    @given(
        st.lists(st.integers(0, 9), max_size=40),
        st.lists(st.integers(1, 9), max_size=4),
        st.booleans(),
    )
    def test_batches_hold_rows_of_one_bucket(
        self, lengths: list[int], sizes: list[int], drop: bool
    ) -> None:
        source = texts(lengths, sizes if sum(sizes) < len(lengths) else [])
        dataset = source.bucket_by_sequence_length("tokens", [3, 6], [4, 3, 2], drop_remainder=drop)
        found = []
        for batch in run(dataset):
            rows = batch.column("n").to_pylist()
            buckets = {int(np.searchsorted([3, 6], lengths[n], side="right")) for n in rows}
            assert len(buckets) == 1
            size = [4, 3, 2][buckets.pop()]
            assert len(rows) <= size
            assert not drop or len(rows) == size
            width = max(lengths[n] for n in rows)
            assert {len(tokens) for tokens in batch.column("tokens").to_pylist()} == {width}
            assert rows == sorted(rows)
            found += rows
        if not drop:
            assert sorted(found) == list(range(len(lengths)))
        check_positions(dataset)

    def test_batches_leave_in_order_in_which_buckets_fill(self) -> None:
        dataset = texts([5, 1, 1, 5, 9, 1]).bucket_by_sequence_length("tokens", [3, 8], [2, 2, 2])
        assert [batch.column("n").to_pylist() for batch in run(dataset)] == [
            [1, 2],
            [0, 3],
            [5],
            [4],
        ]

    def test_element_length_may_be_function_expression_or_column(self) -> None:
        for length in (
            lambda c: np.array([len(t) for t in c["tokens"]]),
            col("n") % 5,
            "n",
        ):
            dataset = texts([0, 1, 2, 3, 4]).bucket_by_sequence_length(length, [3], [9, 9])
            assert [b.column("n").to_pylist() for b in run(dataset)] == [[0, 1, 2], [3, 4]]
            check_positions(decode_plan(encode_plan(dataset.node)))

    def test_buckets_are_padded_to_boundary_or_not_at_all(self) -> None:
        dataset = texts([1, 2, 4]).bucket_by_sequence_length(
            "tokens", [4, 6], [2, 2, 2], pad_to_bucket_boundary=True
        )
        assert [len(b.column("tokens")[0]) for b in run(dataset)] == [3, 5]
        with pytest.raises(InvalidArgumentError, match=r"length of at least 6.*below the last"):
            run(
                texts([7]).bucket_by_sequence_length(
                    "tokens", [4, 6], [1, 1, 1], pad_to_bucket_boundary=True
                )
            )
        plain = texts([1, 2]).bucket_by_sequence_length("tokens", [4], [2, 2], no_padding=True)
        assert run(plain)[0].column("tokens").to_pylist() == [[0], [0, 1]]

    def test_position_replays_only_from_oldest_waiting_row(self) -> None:
        dataset = texts([1] * 30, [5] * 5).bucket_by_sequence_length("tokens", [3], [5, 5])
        with dataset.node.open(RunContext()) as stream:
            for _ in range(4):
                next(stream)
            assert stream.state() == {"input": {"split": 0, "row": 15}, "drop": [], "skip": 1}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("tokens", [], [1]), "increasing, and at least one"),
            (("tokens", [3, 3], [1, 1, 1]), r"increasing.*\[3, 3\]"),
            (("tokens", [3], [1]), r"one entry more than bucket_boundaries, 2, got \[1\]"),
            (("tokens", [3], [1, 0]), "bucket_batch_sizes must be a positive integer, got 0"),
            (("tokens", 3, [1, 0]), "bucket_boundaries must be a list of integers, got 3"),
            ((3, [3], [1, 1]), "takes a function"),
        ],
    )
    def test_invalid_arguments_are_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            texts([1]).bucket_by_sequence_length(*arguments)
        with pytest.raises(InvalidArgumentError, match=r"takes rows"):
            texts([1]).batch(2).bucket_by_sequence_length("tokens", [3], [1, 1])

    def test_numpy_padding_value_fits_into_a_plan(self) -> None:
        lists = Dataset.from_table(pa.table({"n": [[1], [2, 3]]}))
        padding = {"n": np.int64(-1)}
        dataset = lists.bucket_by_sequence_length("n", [9], [2, 2], padding_values=padding)
        (batch,) = Dataset(decode_plan(encode_plan(dataset.node)))
        assert batch["n"].to_pylist() == [[1, -1], [2, 3]]
        with pytest.raises(InvalidArgumentError, match=r"padding_values must be .* got \[-1\]"):
            lists.bucket_by_sequence_length("n", [9], [2, 2], padding_values=[-1])  # type: ignore[arg-type]

    def test_bucketed_dataset_has_unknown_cardinality_and_can_be_divided(self) -> None:
        dataset = texts([1, 2]).bucket_by_sequence_length("tokens", [3], [2, 2])
        assert dataset.cardinality() == UNKNOWN_CARDINALITY
        endless = texts([1, 2]).repeat().bucket_by_sequence_length("tokens", [3], [2, 2])
        assert endless.cardinality() == INFINITE_CARDINALITY
        check_positions(endless, limit=6)
        assert linearise(dataset.node).forms_elements


class TestGroupByWindow:
    @given(
        st.lists(st.integers(0, 3), max_size=30),
        st.lists(st.integers(1, 9), max_size=3),
        st.integers(1, 5),
    )
    def test_windows_hold_rows_of_one_key(
        self, keys: list[int], sizes: list[int], size: int
    ) -> None:
        table = pa.table({"k": pa.array(keys, pa.int64()), "i": pa.array(range(len(keys)))})
        source = Dataset.from_table(chunked(table, sizes if sum(sizes) < len(keys) else []))
        dataset = source.group_by_window("k", window_size=size)
        counts = Counter(keys)
        for batch in run(dataset):
            assert len(set(batch.column("k").to_pylist())) == 1
            assert batch.num_rows <= size
            counts[batch.column("k")[0].as_py()] -= batch.num_rows
        assert not any(counts.values())
        check_positions(dataset)

    def test_reduce_function_makes_dataset_of_each_window(self) -> None:
        def reduce(key: int, window: Dataset) -> Dataset:
            return window.with_column("k", lambda c: c["x"] * 0 + key).shuffle(9).batch(2)

        dataset = numbers(20).group_by_window(col("x") % 3, reduce, 5)
        rows = sorted(row["x"] for batch in run(dataset) for row in batch.to_pylist())
        assert rows == list(range(20))
        assert all(row["x"] % 3 == row["k"] for batch in run(dataset) for row in batch.to_pylist())
        assert max(batch.num_rows for batch in run(dataset)) == 2
        assert dataset.schema.names == ["x", "k"]
        check_positions(dataset)
        check_positions(dataset.unbatch().batch(4), epoch=2)
        check_positions(decode_plan(encode_plan(freeze_schemas(dataset.node))))

    def test_window_size_func_sets_size_by_key(self) -> None:
        dataset = numbers(20).group_by_window(
            lambda c: c["x"] % 2, window_size_func=lambda key: key + 2
        )
        assert [b.column("x").to_pylist() for b in run(dataset)][:4] == [
            [0, 2],
            [1, 3, 5],
            [4, 6],
            [8, 10],
        ]
        check_positions(dataset)

    def test_bucketed_batches_are_grouped_for_coordinated_reads(self) -> None:
        lengths = [1, 5, 1, 5, 1, 5, 1, 5]
        dataset = (
            texts(lengths, [3])
            .bucket_by_sequence_length("tokens", [3], [1, 1], drop_remainder=True)
            .group_by_window(lambda c: c["tokens"].shape[1] // 3, lambda _k, w: w, window_size=2)
        )
        widths = [len(batch.column("tokens")[0]) for batch in run(dataset)]
        assert widths == [1, 1, 5, 5, 1, 1, 5, 5]
        check_positions(dataset)
        assert dataset.schema.names == ["n", "tokens", "words"]

    @pytest.mark.parametrize(
        ("build", "error", "message"),
        [
            (lambda d: d.group_by_window("x"), InvalidArgumentError, "either window_size or"),
            (lambda d: d.group_by_window("x", window_size=0), InvalidArgumentError, "got 0"),
            (lambda d: d.group_by_window(3, window_size=1), InvalidArgumentError, "got 3"),
            (
                lambda d: run(d.group_by_window("x", lambda _k, w: w, 2)),
                InvalidArgumentError,
                r"must return a dataset of batches.*\.batch\(n\)",
            ),
            (
                lambda d: run(d.group_by_window("x", lambda _k, _w: 3, 2)),
                InvalidTypeError,
                "must return a Dataset, it returned 3",
            ),
            (
                lambda d: run(d.group_by_window("x", lambda _k, _w: 1 / 0, 2)),
                UserFunctionError,
                "ZeroDivisionError",
            ),
            (
                lambda d: run(d.group_by_window(lambda c: c["x"] * 0.5, window_size=2)),
                SchemaError,
                "an integer for each element, it returned float64",
            ),
            (
                lambda d: run(d.group_by_window(lambda _c: 1, window_size=2)),
                SchemaError,
                r"one integer for each of 20 rows, it returned shape \(\)",
            ),
            (
                lambda d: run(d.batch(5).group_by_window("x", window_size=2)),
                SchemaError,
                "its rows have several keys",
            ),
            (lambda d: run(d.group_by_window("z", window_size=2)), SchemaError, "column 'z'"),
            (
                lambda d: d.group_by_window("x", col("x"), 2),
                InvalidArgumentError,
                r"reduce_func takes a function, not the expression col\('x'\)",
            ),
            (
                lambda d: d.group_by_window("x", window_size_func=3),
                InvalidArgumentError,
                "window_size_func takes a function, or its 'module:function' name, got 3",
            ),
        ],
    )
    def test_invalid_arguments_are_refused(
        self, build: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            build(numbers(20, []))

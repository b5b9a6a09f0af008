"""How a strategy treats values of a single replica, without any cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.gradients.tensor import Tensor
from pstrain.strategy.replica import Replica
from pstrain.trainer.context import trainer_scope

VALUE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("op", [ps.ReduceOp.SUM, "sum", "SUM", "ReduceOp.Sum"])
def test_reduce_sum_over_axis(op: Any) -> None:
    assert Replica().reduce(op, VALUE, axis=0).tolist() == [3.0, 5.0, 7.0]
    assert Replica().reduce(op, VALUE, axis=None) is VALUE
    assert Replica().reduce(op, Tensor(VALUE), axis=-1).tolist() == [3.0, 12.0]


@pytest.mark.parametrize("op", [ps.ReduceOp.MEAN, "mean"])
def test_reduce_mean_over_axis_divides_by_count(op: Any) -> None:
    assert Replica().reduce(op, VALUE, axis=1).tolist() == [1.0, 4.0]
    both = Replica().reduce(op, {"a": VALUE, "b": (VALUE, [VALUE])}, axis=0)
    assert both["b"][1][0].tolist() == both["a"].tolist() == [1.5, 2.5, 3.5]


def test_reduce_treats_list_of_numbers_as_one_value() -> None:
    assert Replica().reduce("SUM", [1, 2.5], axis=0) == 3.5
    assert Replica().reduce("MEAN", ([1, 2], VALUE), axis=0)[0] == 1.5
    assert Replica().reduce("SUM", [1, 2], axis=None) == [1, 2]
    assert Replica().gather([1, 2], axis=0).tolist() == [1, 2]


def test_replica_scope_is_refused_and_run_needs_function() -> None:
    with pytest.raises(FailedPreconditionError, match="make them in the program"):
        Replica().scope()
    with pytest.raises(InvalidTypeError, match="function that run calls must be a function, got 3"):
        Replica().run(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [(0, 1), [0, 1], (-1, 0)])
def test_reduce_goes_over_several_axes(axis: Any) -> None:
    assert Replica().reduce("SUM", VALUE, axis=axis) == 15.0
    assert Replica().reduce("MEAN", VALUE, axis=axis) == 2.5
    cube = np.arange(24.0).reshape(2, 3, 4)
    expected = cube.mean(axis=tuple(axis))
    assert Replica().reduce("MEAN", Tensor(cube), axis=axis).tolist() == expected.tolist()
    assert Replica().reduce("MEAN", VALUE, axis=()).tolist() == VALUE.tolist()


def test_reduce_refuses_invalid_op_and_axis() -> None:
    strategy = Replica()
    with pytest.raises(ValueError, match="MAX"):
        strategy.reduce("MAX", VALUE, axis=None)
    with pytest.raises(ValueError, match="axis 2"):
        strategy.reduce("SUM", VALUE, axis=2)
    with pytest.raises(ValueError, match="axis 0"):
        strategy.reduce("SUM", 1.0, axis=0)
    with pytest.raises(TypeError, match="str"):
        strategy.reduce("SUM", VALUE, axis="0")
    with pytest.raises(InvalidTypeError):
        strategy.reduce("SUM", VALUE, axis=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="axis 2"):
        strategy.reduce("SUM", VALUE, axis=(0, 2))
    with pytest.raises(InvalidTypeError, match="integer, got str"):
        strategy.reduce("SUM", VALUE, axis=("0", 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"axis \(0, -2\) has an axis twice"):
        strategy.reduce("SUM", VALUE, axis=(0, -2))


def test_gather_of_single_replica_returns_its_value() -> None:
    assert Replica().gather(VALUE, axis=0).tolist() == VALUE.tolist()
    with pytest.raises(InvalidArgumentError, match="axis 5"):
        Replica().gather(VALUE, axis=5)


@pytest.mark.parametrize(
    "call",
    [
        lambda strategy: strategy.reduce("SUM", 1.0, axis=None),
        lambda strategy: strategy.gather(VALUE, axis=0),
    ],
)
def test_reduce_and_gather_inside_run_are_refused(call: Callable[[Replica], Any]) -> None:
    strategy = Replica()
    with pytest.raises(FailedPreconditionError, match=r"strategy\.run"):
        strategy.run(call, args=(strategy,))
    assert isinstance(FailedPreconditionError(""), RuntimeError)
    assert strategy.run(lambda: 4) == 4


def test_process_outside_scope_is_the_only_replica() -> None:
    assert not ps.in_cross_replica_context()
    context = ps.get_replica_context()
    assert context is not None
    assert (context.num_replicas_in_sync, context.all_reduce("SUM", 3)) == (1, 3)
    assert Replica().reduce("SUM", 2.0, axis=None) == 2.0
    with ps.v1.ParameterServerStrategy().scope():
        assert ps.in_cross_replica_context()
        assert ps.get_replica_context() is None


def test_replica_context_inside_run_is_of_single_replica() -> None:
    def inside() -> tuple[Any, ...]:
        context = ps.get_replica_context()
        merged = context.merge_call(lambda _, x: (ps.in_cross_replica_context(), x), (7,))
        return (
            ps.in_cross_replica_context(),
            context.replica_id_in_sync_group,
            context.num_replicas_in_sync,
            context.all_reduce("SUM", 3),
            merged,
        )

    assert Replica().run(inside) == (False, 0, 1, 3, (True, 7))


def test_trainer_under_sync_rounds_is_one_of_several_replicas() -> None:
    strategy = Replica(3)

    def inside() -> tuple[int, int]:
        context = ps.get_replica_context()
        return context.replica_id_in_sync_group, context.num_replicas_in_sync

    with trainer_scope(7, position=2):
        assert strategy.run(inside) == (2, 3)
        made = strategy.experimental_distribute_values_from_function(
            lambda context: (context.replica_id_in_sync_group, context.num_replicas_in_sync)
        )
    assert made == (2, 3)
    with trainer_scope(2):
        assert Replica().run(inside) == (0, 1)


def test_single_replica_has_one_local_result() -> None:
    strategy = Replica()
    assert strategy.num_replicas_in_sync == 1
    assert strategy.experimental_local_results(3) == (3,)
    made = strategy.experimental_distribute_values_from_function(
        lambda context: (context.replica_id_in_sync_group, context.num_replicas_in_sync)
    )
    assert made == (0, 1)
    with pytest.raises(TypeError, match="value_fn must be a function, got 3"):
        strategy.experimental_distribute_values_from_function(3)  # type: ignore[arg-type]


def test_run_refuses_invalid_args_and_kwargs() -> None:
    with pytest.raises(ValueError, match="int"):
        Replica().run(print, args=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kwargs are named by strings, got 1"):
        Replica().run(len, kwargs={1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="kwargs must be a dict, got list"):
        Replica().run(print, kwargs=[])  # type: ignore[arg-type]
    assert Replica().run(lambda a, b: a + b, [1], {"b": 2}) == 3


def test_gather_refuses_sparse_values() -> None:
    slices = ps.IndexedSlices(np.ones((1, 2)), np.array([0]))
    with pytest.raises(NotImplementedError, match="sparse"):
        Replica().gather(slices, axis=0)
    assert Replica().reduce("SUM", slices) is slices

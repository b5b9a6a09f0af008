"""The default strategy: what a program written for a strategy does outside of all scopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import FailedPreconditionError, InvalidArgumentError


def test_default_strategy_is_one_replica_with_variables_in_this_process() -> None:
    strategy = ps.get_strategy()
    assert strategy is ps.get_strategy()
    assert (strategy.num_replicas_in_sync, strategy.cluster_resolver) == (1, None)
    with strategy.scope() as entered:
        made = ps.Variable(1.0)
        assert entered is strategy is ps.get_strategy()
        assert not ps.has_strategy()
        assert not ps.in_cross_replica_context()
    assert made.device == ps.Variable(1.0).device
    assert strategy.reduce("MEAN", np.array([1.0, 3.0]), axis=0) == 2.0


def test_default_strategy_runs_a_step_as_its_replica() -> None:
    def step(amount: float) -> Any:
        context = ps.get_replica_context()
        merged = context.merge_call(lambda strategy: strategy is ps.get_strategy())
        return amount * context.num_replicas_in_sync, ps.in_cross_replica_context(), merged

    assert ps.get_strategy().run(step, args=(3.0,)) == (3.0, False, True)
    context = ps.get_replica_context()
    assert context is not None
    assert context.strategy is ps.get_strategy()


def test_default_strategy_distributes_a_dataset_to_the_only_pipeline() -> None:
    strategy, dataset = ps.get_strategy(), ds.Dataset.range(4)
    assert strategy.experimental_distribute_dataset(dataset) is dataset
    made = strategy.distribute_datasets_from_function(
        lambda context: dataset.batch(context.get_per_replica_batch_size(2))
    )
    assert [batch.num_rows for batch in made] == [2, 2]


def test_extended_of_default_strategy_speaks_of_this_process() -> None:
    extended, made = ps.get_strategy().extended, ps.Variable([1.0, 2.0])
    assert extended.variable_created_in_scope(made)
    assert not extended.variable_created_in_scope(1.0)
    assert extended.parameter_devices == extended.worker_devices == (made.device,)
    assert extended.should_checkpoint
    assert extended.should_save_summary
    with extended.colocate_vars_with(made):
        assert ps.Variable(1.0).device == made.device


def test_extended_of_default_strategy_reduces_and_updates_for_the_only_replica() -> None:
    extended, made = ps.get_strategy().extended, ps.Variable([1.0, 2.0])
    assert extended.reduce_to("SUM", 3.0, destinations=made) == 3.0
    assert extended.batch_reduce_to("MEAN", [(1.0, made), (2.0, made)]) == [1.0, 2.0]
    with pytest.raises(InvalidArgumentError, match="reduce_op must be SUM or MEAN"):
        extended.reduce_to("MAX", 3.0, destinations=made)
    extended.update(made, lambda var, by: var.assign_add(by), args=([1.0, 1.0],))
    assert made.numpy().tolist() == [2.0, 3.0]
    assert extended.update(made, lambda var: var.shape, group=False) == (made.shape,)


def test_extended_of_default_strategy_colocates_only_with_variables_of_this_process() -> None:
    extended, made = ps.get_strategy().extended, ps.Variable(1.0)
    with pytest.raises(InvalidArgumentError, match=r"not made in this strategy's scope"):
        extended.colocate_vars_with("/job:ps/task:0").__enter__()
    with (
        ps.v1.ParameterServerStrategy().scope(),
        pytest.raises(FailedPreconditionError, match="another strategy's scope is entered"),
    ):
        extended.colocate_vars_with(made).__enter__()


def test_default_scope_is_refused_inside_another_strategys() -> None:
    default = ps.get_strategy()
    with ps.v1.ParameterServerStrategy().scope() as other:
        assert ps.get_strategy() is other
        with (
            pytest.raises(FailedPreconditionError, match="another strategy's scope is entered"),
            default.scope(),
        ):
            pass

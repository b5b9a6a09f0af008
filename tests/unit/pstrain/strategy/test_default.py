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


def test_default_scope_is_refused_inside_another_strategys() -> None:
    default = ps.get_strategy()
    with ps.v1.ParameterServerStrategy().scope() as other:
        assert ps.get_strategy() is other
        with (
            pytest.raises(FailedPreconditionError, match="another strategy's scope is entered"),
            default.scope(),
        ):
            pass


def test_default_strategy_has_no_coordinator() -> None:
    with pytest.raises(InvalidArgumentError, match="DefaultStrategy"):
        ps.ClusterCoordinator(ps.get_strategy())

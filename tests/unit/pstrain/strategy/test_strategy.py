"""What a strategy refuses before it connects to anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.config import ParameterConfig
from pstrain.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ServerLostError,
    UnavailableError,
)
from pstrain.strategy.parameter_server import ParameterServerStrategy

CLUSTER = {"worker": ["h:1"], "ps": ["h:2"]}


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({"worker": ["h:1"]}, {}, "'ps'"),
        (CLUSTER, {"task_type": "worker", "task_id": 1}, "task_id 1"),
    ],
)
def test_invalid_cluster_is_refused(cluster: Any, task: Any, message: str) -> None:
    resolver = SimpleClusterResolver(ClusterSpec(cluster), **task)
    with pytest.raises(InvalidArgumentError, match=message):
        ParameterServerStrategy(resolver)


def test_unknown_transport_dtype_is_refused() -> None:
    resolver = SimpleClusterResolver(ClusterSpec(CLUSTER))
    for wrong in ("int8", np.float32, None):
        with pytest.raises(
            InvalidArgumentError, match=r"transport_dtype .*'float32' or 'bfloat16'"
        ):
            ParameterServerStrategy(resolver, transport_dtype=wrong)


@pytest.mark.parametrize("kind", [ServerLostError, DeadlineExceededError, UnavailableError])
def test_server_that_does_not_answer_in_time_is_unavailable_and_no_longer_a_loss(kind: Any) -> None:
    """A restore starts over for a loss, and would wait for the same server again and again."""
    strategy: Any = object.__new__(ParameterServerStrategy)
    strategy.parameters = SimpleNamespace(addresses=["h:2"], config=ParameterConfig())

    def ask(_limit_s: float) -> None:
        raise kind("silent")

    with pytest.raises(UnavailableError, match=r"parameter server 0 at h:2 .*silent") as raised:
        strategy._answer_of(0, 0.0, ask)
    assert type(raised.value) is UnavailableError


def test_wait_for_server_that_is_starting_gives_no_advice_for_a_lost_one() -> None:
    strategy: Any = object.__new__(ParameterServerStrategy)
    strategy.parameters = SimpleNamespace(addresses=["h:2"], config=ParameterConfig())

    def ask(_limit_s: float) -> None:
        raise ServerLostError("it is gone: restore a checkpoint") from OSError("refused")

    with pytest.raises(UnavailableError, match=r"start .*'ps' tasks.*: refused$") as raised:
        strategy._answer_of(0, 0.0, ask)
    assert "restore" not in str(raised.value)

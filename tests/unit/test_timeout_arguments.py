"""Time-outs are seconds or None; the call itself refuses anything else."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dataservice as ds
import pstrain as ps
from dataservice.client.snapshots import Snapshot
from dataservice.runtime.arguments import limit_s
from pstrain.coordinator.client import ClusterCoordinator
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import InvalidArgumentError, InvalidTypeError


class _FailsWhenUsed:
    """A coordinator's scheduler, or the owner of a value, that fails the test when it is used."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"{name} was reached")


def _coordinator() -> ClusterCoordinator:
    coordinator = object.__new__(ClusterCoordinator)
    coordinator._scheduler = _FailsWhenUsed()  # type: ignore[assignment]
    return coordinator


def _value() -> RemoteValue:
    return RemoteValue(1, threading.Condition(), _FailsWhenUsed())


def _checkpoint() -> ps.Checkpoint:
    return ps.Checkpoint(x=ps.Variable(1.0))


WAITS: dict[str, Callable[[Any, Path], Any]] = {
    "join": lambda t, _: _coordinator().join(timeout=t),
    "fetch": lambda t, _: _coordinator().fetch([], timeout=t),
    "value.fetch": lambda t, _: _value().fetch(t),
    "value.get": lambda t, _: _value().get(t),
    "value.cancel": lambda t, _: _value().cancel(t),
    "Checkpoint.wait": lambda t, _: _checkpoint().wait(t),
    "CheckpointManager.wait": lambda t, p: ps.CheckpointManager(_checkpoint(), p).wait(t),
    "SavedCheckpoint.wait": lambda t, p: _checkpoint().save(p).wait(t),
    "checkpoints_iterator": lambda t, p: ps.checkpoints_iterator(p, timeout=t),
    "SidecarEvaluator": lambda t, p: ps.SidecarEvaluator(None, None, p, timeout=t),
    "Snapshot.wait": lambda t, _: Snapshot("s", "id", "localhost:1", 1.0).wait(t),
}


@pytest.mark.parametrize("name", WAITS)
def test_timeout_other_than_seconds_or_none_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"timeout.* must be seconds.*got 'x'"):
        WAITS[name]("x", tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"timeout.* or None to wait .*, got -1"):
        WAITS[name](-1, tmp_path)


@pytest.mark.parametrize("make", [ds.DispatchServer, ds.WorkerServer])
def test_server_join_refuses_invalid_timeout(make: Any) -> None:
    server = make(None if make is ds.DispatchServer else ds.WorkerConfig("a:1"), start=False)
    server.stop()
    with pytest.raises(InvalidTypeError, match="timeout_s must be seconds"):
        server.join("soon")


def test_infinite_limit_becomes_none_and_huge_limit_is_capped() -> None:
    assert limit_s(None) is None
    assert limit_s(math.inf) is None
    assert limit_s(0) == 0.0
    assert limit_s(1e300) == threading.TIMEOUT_MAX
    for value in (math.nan, -math.inf):
        with pytest.raises(InvalidArgumentError):
            limit_s(value)

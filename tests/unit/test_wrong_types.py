"""Arguments of impossible types raise a TypeError that names the value given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

import dataservice as ds
import pstrain as ps
from dataservice.errors import InvalidTypeError, MissingColumnError, MissingFileError

ROWS = ds.Dataset.range(4)
RESOLVER = ps.SimpleClusterResolver(ps.ClusterSpec({"worker": ["a:1"], "ps": ["b:1"]}))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ds.Dataset.range(1.5),  # type: ignore[arg-type]
        lambda: ds.Dataset.from_table([1]),  # type: ignore[arg-type]
        lambda: ds.Dataset.from_numpy([1]),  # type: ignore[arg-type]
        lambda: ds.Dataset.from_parquet(3),  # type: ignore[arg-type]
        lambda: ROWS.map(3),  # type: ignore[arg-type]
        lambda: ROWS.filter(True),  # type: ignore[arg-type]
        lambda: ROWS.batch("2"),  # type: ignore[arg-type]
        lambda: ROWS.concatenate(3),  # type: ignore[arg-type]
        lambda: ROWS.apply(lambda _: 3),  # type: ignore[arg-type,return-value]
        lambda: ds.register_dataset("localhost:1", [1]),  # type: ignore[arg-type]
        lambda: ds.DispatchServer(3),  # type: ignore[arg-type]
        lambda: ds.WorkerServer("localhost:1"),  # type: ignore[arg-type]
        lambda: ps.ParameterServerStrategy(RESOLVER, 3),  # type: ignore[arg-type]
        lambda: ps.optimizers.SGD("fast"),
    ],
)
def test_wrong_type_raises_type_error_that_is_value_error(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("given", ["ckpt", ps.Checkpoint(x=ps.Variable(1.0)), 3])
def test_coordinator_refuses_checkpoint_that_is_no_manager(given: Any) -> None:
    strategy: Any = SimpleNamespace(coordinator=None)
    coordinator = object.__new__(ps.ClusterCoordinator)
    with pytest.raises(InvalidTypeError, match=r"must be a CheckpointManager, got .*max_to_keep"):
        coordinator.__init__(strategy, checkpoint=given)  # type: ignore[misc]
    assert strategy.coordinator is None
    with pytest.raises(InvalidTypeError, match="must be a CheckpointManager"):
        coordinator.recover_from(given)


@pytest.mark.parametrize(
    "read",
    [
        lambda: ROWS.select(["price"]).schema,
        lambda: ROWS.rename({"price": "p"}).schema,
        lambda: ROWS.filter(ds.col("price") > 0).to_table(),
    ],
)
def test_missing_column_raises_key_error(read: Callable[[], Any]) -> None:
    with pytest.raises(MissingColumnError, match="no column 'price'; the columns are") as caught:
        read()
    assert isinstance(caught.value, KeyError)


def test_missing_path_raises_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        ds.Dataset.load(tmp_path / "snapshot")
    with pytest.raises(FileNotFoundError):
        ps.Checkpoint(x=ps.Variable(1.0)).restore(tmp_path / "checkpoint")


@pytest.mark.parametrize("make", [ds.DispatchServer, ds.WorkerServer])
def test_join_of_unstarted_server_is_refused(make: Any) -> None:
    config = None if make is ds.DispatchServer else ds.WorkerConfig("localhost:1")
    server = make(config, start=False)
    assert repr(server).endswith("not started>")
    with pytest.raises(RuntimeError, match=r"before start\(\)"):
        server.join()
    server.stop()
    server.join()
    assert repr(server).endswith("stopped>")


def test_pyarrow_filter_is_refused_naming_dataservice_expression() -> None:
    condition = pc.field("id") >= 90
    with pytest.raises(InvalidTypeError, match=r'ds.col\("id"\) >= 90, or .*, got .*pyarrow'):
        ds.Dataset.from_parquet("x.parquet", filter=condition)

"""A stream that is closed before its end frees its rows, in the worker and in the reader.

The garbage collector is off: until it happened to run, each such stream would keep the elements
that its worker had computed ahead.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.errors import UserFunctionError

ROWS = 1 << 18
BATCH_ROWS = 4_096
TOLERATED_BYTES = 1 << 20
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("rows")
    columns = {f"x{index}": np.arange(ROWS) for index in range(8)}
    for name in ("a", "b"):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=ROWS // 4)
    return [str(path) for path in sorted(folder.glob("*.parquet"))]


@pytest.fixture
def target() -> Iterator[str]:
    config = ds.DispatcherConfig(port=0, worker_addresses=["127.0.0.1"])
    with (
        ds.DispatchServer(config) as dispatcher,
        ds.WorkerServer(ds.WorkerConfig(dispatcher.target)),
    ):
        yield dispatcher.target


@pytest.fixture
def allocated() -> Iterator[int]:
    """Turns the garbage collector off; yields how many bytes Arrow has allocated so far."""
    gc.collect()
    gc.disable()
    yield pa.total_allocated_bytes()
    gc.enable()


def wait_until_freed(allocated: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while (kept := pa.total_allocated_bytes() - allocated) > TOLERATED_BYTES:
        assert time.monotonic() < deadline_s, f"{kept} bytes are kept"
        time.sleep(0.01)


@pytest.mark.parametrize("protocol", ["local", "shared_memory", "flight"])
@pytest.mark.parametrize(
    "policy", [ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF, ds.ShardingPolicy.FILE]
)
def test_stream_closed_halfway_frees_its_rows(
    paths: list[str], target: str, allocated: int, policy: ds.ShardingPolicy, protocol: str
) -> None:
    rows = ds.Dataset.from_parquet(paths).repeat().batch(BATCH_ROWS)
    remote = rows.distribute(policy, target, data_transfer_protocol=protocol)
    for _ in range(2):
        with iter(remote) as batches:
            for _ in range(20):
                assert next(batches).num_rows == BATCH_ROWS
        wait_until_freed(allocated)


def test_closed_stream_of_mapped_rows_frees_its_rows(
    paths: list[str], target: str, allocated: int
) -> None:
    rows = ds.Dataset.from_parquet(paths).batch(BATCH_ROWS).map(lambda batch: dict(batch))
    with iter(rows.distribute(ds.ShardingPolicy.DYNAMIC, target)) as batches:
        next(batches)
    wait_until_freed(allocated)


def test_failed_pipeline_frees_its_rows(paths: list[str], target: str, allocated: int) -> None:
    def fail(_columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise ValueError("wrong")

    remote = ds.Dataset.from_parquet(paths).map(fail, schema=pa.schema([("x0", pa.int64())]))
    batches = iter(remote.distribute(ds.ShardingPolicy.DYNAMIC, target))
    with pytest.raises(UserFunctionError):
        next(batches)
    wait_until_freed(allocated)

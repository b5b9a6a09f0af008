"""The README's custom loop: in one script, and as processes configured by TF_CONFIG."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import InvalidArgumentError, OutOfRangeError
from tests.ports import free_port
from tests.programs import said_by

PROGRAM = pathlib.Path(__file__).parent / "programs" / "custom_loop.py"
DEADLINE_S = 90.0


def register(service: str) -> str:
    rng = np.random.default_rng(0)
    page, price = rng.integers(0, 50, 20_000), rng.normal(size=20_000).astype(np.float32)
    label = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    data = ds.Dataset.from_numpy({"page": page, "price": price, "label": label})
    return ds.register_dataset(service, data.shuffle(5_000, seed=1).repeat().batch(200))


def check(outcome: dict[str, Any]) -> None:
    assert outcome["steps"] == 300
    assert outcome["last_loss"] < 0.9 * outcome["first_loss"]
    assert 0.7 < outcome["auc"] <= 1.0
    assert (pathlib.Path(outcome["checkpoint"]) / "manifest.json").exists()


def test_loop_in_one_script_trains_on_local_cluster(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import custom_loop, pstrain as ps;"
        "spec = ps.ClusterSpec(__import__('json').loads(sys.argv[2]));"
        "custom_loop.train(ps.SimpleClusterResolver(spec),"
        " *sys.argv[3:])"
    )
    arguments = [
        str(PROGRAM.parent),
        json.dumps(cluster.cluster_spec.as_dict()),
        cluster.service,
        register(cluster.service),
        str(tmp_path),
    ]
    check(json.loads(said_by(script, *arguments).splitlines()[-1]))


def test_program_plays_every_role_given_by_tf_config(
    cluster: ps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    addresses = [f"localhost:{free_port()}" for _ in range(6)]
    # Nothing listens at the evaluator's address, as no other task ever waits for it.
    spec = {
        "chief": addresses[:1],
        "worker": addresses[1:3],
        "ps": addresses[3:5],
        "evaluator": addresses[5:],
    }
    arguments = [cluster.service, register(cluster.service), str(tmp_path)]

    def start(task: str, index: int) -> subprocess.Popen[str]:
        config = json.dumps({"cluster": spec, "task": {"type": task, "index": index}})
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env={**os.environ, "TF_CONFIG": config, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    tasks = [start(task, i) for task in ("chief", "worker", "ps") for i in range(len(spec[task]))]
    try:
        out, err = tasks[0].communicate(timeout=DEADLINE_S)
        assert tasks[0].returncode == 0, err
        check(json.loads(out.splitlines()[-1]))
        assert all(task.poll() is None for task in tasks[1:]), "a server ended by itself"
        # The evaluator may also start after training has ended.
        tasks.append(start("evaluator", 0))
        out, err = tasks[-1].communicate(timeout=DEADLINE_S)
        assert tasks[-1].returncode == 0, err
        results = json.loads(out.splitlines()[-1])
        assert [result["step"] for result in results] == [150, 300]
        assert results[1]["metrics"]["auc"] > 0.8
        best = json.loads((tmp_path / "evaluation" / "best.json").read_text())
        assert best["step"] == 300
    finally:
        for task in tasks:
            task.send_signal(signal.SIGKILL)
            task.communicate()


def ids_of(iterator: Any) -> list[int]:
    ids: list[int] = next(iterator)["id"].to_pylist()
    return ids


def taken(coordinator: Any, iterator: Any) -> list[int]:
    """Returns the ids of all rows that are left, in order."""
    values = []
    with contextlib.suppress(OutOfRangeError):
        while True:
            values.append(coordinator.schedule(ids_of, (iterator,)))
    return sorted(i for value in values if value.has_value for i in value.fetch())


def test_position_in_a_data_service_goes_from_one_process_to_trainers_and_back(
    cluster: ps.LocalCluster,
) -> None:
    def shared(name: str) -> ds.Dataset:
        data = ds.Dataset.range(4_000).batch(100)
        return data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service, job_name=name)

    strategy = ps.ParameterServerStrategy(cluster.resolver)
    makers = [ps.LocalCoordinator(), ps.ClusterCoordinator(strategy)]
    for before, after in (makers, makers[::-1]):
        name = f"moved from {type(before).__name__}"
        iterator = iter(before.create_per_worker_dataset(shared(name)))
        ids = [i for _ in range(10) for i in before.schedule(ids_of, (iterator,)).fetch()]
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        rest = iter(after.create_per_worker_dataset(shared(name)))
        rest.load_state_dict(state)
        assert sorted([*ids, *taken(after, rest)]) == list(range(4_000))
        rest.close()
    for before, after in (makers, makers[::-1]):
        own = iter(before.create_per_worker_dataset(ds.Dataset.range(100).batch(10)))
        before.schedule(ids_of, (own,)).fetch()
        other = iter(after.create_per_worker_dataset(ds.Dataset.range(100).batch(10)))
        with pytest.raises(InvalidArgumentError, match="cannot continue from it: train"):
            other.load_state_dict(own.state_dict())
    makers[1].close()

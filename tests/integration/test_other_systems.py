"""Clusters run where Python has only what macOS has too: over TCP and Flight."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.programs import run_program, said_by

_FOLDERS = [str(pathlib.Path(__file__).parent / "without_linux"), os.environ.get("PYTHONPATH")]
WITHOUT_LINUX = {"PYTHONPATH": os.pathsep.join(filter(None, _FOLDERS))}
TRAINING = """
import numpy as np, dataservice as ds, pstrain as ps
def main():
    ids = np.arange(4_000)
    columns = {"id": ids, "c": ids % 50, "x": (ids % 7).astype("f4"), "label": ids % 2}
    data = ds.Dataset.from_numpy(columns).shuffle(1_000, seed=1).batch(256)
    schema = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(50)}, label="label")
    with ps.LocalCluster(workers=2, ps=2, data_workers=2) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        with strategy.scope():
            model = ps.models.WideDeep(schema, dim=8, hidden=(16,))
            model.compile(ps.optimizers.Adagrad(0.1), metrics=[ps.metrics.AUC()])
        remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.service)
        history = model.fit(remote, epochs=2, verbose=0).history
        print(history["examples"], history["auc"][-1] > 0.6)
        checkpoint = ps.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.restore(checkpoint.save("checkpoints"))
        print(len(model.predict(data)))
if __name__ == "__main__":
    main()
"""
SUSPENDING = """
from dataservice.runtime.process.children import spawn_module
with spawn_module("dataservice", ["dispatcher", "--port", "0", "--ready-json"]) as child:
    child.wait_ready(60)
    child.suspend()
    child.resume()
    print(child.terminate())
"""
SAVING = """
import dataservice as ds
config = ds.DispatcherConfig(port=0, work_dir="state", fault_tolerant_mode=True)
with ds.DispatchServer(config) as dispatcher:
    with ds.WorkerServer(ds.WorkerConfig(dispatcher_address=dispatcher.target)):
        ds.save(ds.Dataset.range(1_000), "saved", dispatcher.target)
        saved = ds.Dataset.load("saved", wait=True)
        print(sorted(row["id"] for row in saved.rows()) == list(range(1_000)))
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "memfd_create"), ("os", "waitid"), ("socket", "MSG_CMSG_CLOEXEC")],
)
def test_programs_lack_what_macos_lacks(module: str, name: str) -> None:
    assert said_by(f"import {module}; print(hasattr({module}, {name!r}))", env=WITHOUT_LINUX) == (
        "False\n"
    )


def test_cluster_trains_predicts_and_restores(tmp_path: pathlib.Path) -> None:
    # Kernels that no program has compiled yet take minutes on a busy machine.
    done = run_program(TRAINING, env=WITHOUT_LINUX, cwd=tmp_path, timeout_s=400)
    assert done.stdout.splitlines() == ["[4000.0, 4000.0] True", "4000"], done.stderr


def test_servers_in_one_program_save_a_dataset(tmp_path: pathlib.Path) -> None:
    assert said_by(SAVING, env=WITHOUT_LINUX, cwd=tmp_path) == "True\n"


def test_child_can_be_suspended() -> None:
    assert said_by(SUSPENDING, env=WITHOUT_LINUX) == "0\n"

"""The benchmarks of peers run at smoke size and leave no process. Skipped without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench import data
from bench.peers import children

_ROOT = Path(children.__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def peer_python() -> str:
    try:
        return children.find_interpreter(os.environ.get("PEER_PYTHON"))
    except children.PeerError as error:
        pytest.skip(f"{error}, or set PEER_PYTHON")


def test_interpreter_without_the_module_is_refused():
    with pytest.raises(children.PeerError, match="--peer-python"):
        children.find_interpreter(sys.executable, module="no_such_module")


def test_peer_that_exits_early_is_reported_with_its_log():
    with children.Children(30) as group, pytest.raises(children.PeerError, match="no_such_module"):
        group.start("no_such_module", []).line()


def test_silent_peer_is_given_up_at_the_deadline():
    with children.Children(0.2) as group:
        child = group.start("http.server", ["0", "--bind", "127.0.0.1"])
        with pytest.raises(children.PeerError, match="deadline"):
            child.line()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["example", "packed"])
def test_tfdata_service_peer_streams_rows(peer_python: str, tmp_path: Path, form: str):
    file_format = {"example": "tfrecord", "packed": "packed"}[form]
    data.write_files(tmp_path, 4 * data.BLOCK_ROWS, file_format, files=2)
    result = children.run_peer(
        "bench.peers.tfdata_service",
        ["--smoke", "--form", form, "--files", str(tmp_path / "*.tfrecord")],
        peer_python=peer_python,
        deadline_s=90,
    )
    assert (result["bench"], result["form"], result["workers"]) == ("stream", form, 1)
    assert result["rows"] > 0
    assert result["rows_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("form", "count"), [("usual", 1), ("tuned", 2)])
def test_tf_parameter_server_peer_trains_examples(peer_python: str, form: str, count: int):
    result = children.run_peer(
        "bench.peers.tf_parameter_server",
        ["--smoke", "--form", form, "--workers", str(count), "--ps", str(count)],
        peer_python=peer_python,
        deadline_s=90,
    )
    assert (result["bench"], result["form"], result["ps"]) == ("train", form, count)
    assert result["examples"] >= result["batch"]


@pytest.mark.slow
def test_killed_peer_benchmark_leaves_no_processes(peer_python: str):
    command = [peer_python, "-m", "bench.peers.tf_parameter_server", "--smoke", "--seconds", "30"]
    parent = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        started: list[psutil.Process] = []
        while len(started) < 3 and time.monotonic() < deadline:
            started = psutil.Process(parent.pid).children()
            time.sleep(0.05)
        assert len(started) == 3
    finally:
        parent.kill()
        parent.wait(timeout=10)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []

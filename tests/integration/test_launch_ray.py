"""A program as actors on a real Ray, started for the test: `pip install ray`, then `-m long`."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="pip install 'pstrain[ray]'")

PROGRAM = str(pathlib.Path(__file__).parent / "programs" / "launched.py")
DEADLINE_S = 110.0


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pstrain", "launch", "--engine", "ray", "--insecure-network"]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.long
def test_ray_job_trains_and_ends_with_the_chiefs_exit_code() -> None:
    shape = ("--workers", "1", "--ps", "1", "--data-workers", "1")
    done = finished(*shape, "--", PROGRAM, "3")
    assert done.returncode == 3, done.stdout + done.stderr
    said = next(line for line in done.stdout.splitlines() if "[chief:0] {" in line)
    assert json.loads(said.partition("[chief:0] ")[2])["steps"] >= 20
    assert "chief:0 ended: exit code 3" in done.stderr


@pytest.mark.long
def test_failed_task_is_named_with_its_last_lines() -> None:
    shape = ("--workers", "2", "--ps", "1", "--data-workers", "0")
    done = finished(*shape, "--", PROGRAM, "0", "fail")
    assert done.returncode == 1
    assert "worker:1 ended: exit code 1; its last lines:\n    no luck today" in done.stderr


@pytest.mark.long
def test_too_few_cpus_are_an_error_naming_those_there_are() -> None:
    import ray

    from pstrain.errors import UnavailableError
    from pstrain.launch.layout import Exposure, Layout
    from pstrain.launch.ray import RayOptions, run_on_ray

    layout = Layout(program=("t.py",), exposure=Exposure(insecure_network=True))
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    try:
        with pytest.raises(UnavailableError, match=r"no room for 7 tasks of 1 CPUs.*it has 1 CPUs"):
            run_on_ray(layout, RayOptions(timeout_s=1.0))
        assert ray.is_initialized()
    finally:
        ray.shutdown()

"""The batch script for Slurm, run by bash with stand-ins for srun and scontrol."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from pstrain.launch import slurm

PROGRAMS = pathlib.Path(__file__).parent / "programs"
DEADLINE_S = 90.0


def script(tmp_path: pathlib.Path, *options: str) -> pathlib.Path:
    path = tmp_path / "job.sh"
    command = [sys.executable, "-m", "pstrain", "launch", "--engine", "slurm", "--output"]
    shape = ["--workers", "1", "--ps", "1", "--insecure-network", "--python", sys.executable]
    subprocess.run(
        [*command, str(path), *shape, *options, "--", str(PROGRAMS / "launched.py"), "4"],
        check=True,
        timeout=DEADLINE_S,
    )
    return path


def test_script_is_valid_bash_and_private(tmp_path: pathlib.Path) -> None:
    path = script(tmp_path, "--nodes", "2", "--sbatch=--partition=long")
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert path.stat().st_mode & 0o077 == 0


def test_job_takes_ports_at_which_no_other_job_listens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSTRAIN_HOSTS", "127.0.0.1")
    monkeypatch.setenv("SLURM_JOB_ID", str(os.getpid()))
    assert slurm.main("ports", "") == 0
    first = int(capsys.readouterr().out)
    with socket.create_server(("127.0.0.1", first)):
        assert slurm.main("ports", "") == 0
    assert int(capsys.readouterr().out) != first


@pytest.mark.long
def test_slurm_job_trains_and_ends_with_the_chiefs_exit_code(tmp_path: pathlib.Path) -> None:
    path = script(tmp_path)
    done = subprocess.run(
        ["bash", str(path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={
            **os.environ,
            "PATH": f"{PROGRAMS / 'slurm'}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "127.0.0.1",
            "TMPDIR": str(tmp_path),
        },
    )
    assert done.returncode == 4, done.stdout + done.stderr
    outcome = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert outcome["steps"] >= 20
    assert [name for name in os.listdir(tmp_path) if name.startswith("tmp.")] == []

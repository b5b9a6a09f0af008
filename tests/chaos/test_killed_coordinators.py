"""A coordinator that is killed in mid-epoch and started again goes on from its last checkpoint."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
import time

import pstrain as ps
from tests.chaos import coordinating_program

_CHANCE = random.Random(6)


def start(cluster: ps.LocalCluster, directory: pathlib.Path) -> subprocess.Popen[str]:
    spec = {job: cluster.cluster_spec.job_tasks(job) for job in ("worker", "ps")}
    described = json.dumps({"spec": spec, "service": cluster.service})
    return subprocess.Popen(
        [sys.executable, "-m", coordinating_program.__name__, described, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_restarted_coordinator_trains_every_row_once(tmp_path: pathlib.Path) -> None:
    with ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster:
        for kill in (True, False):
            program = start(cluster, tmp_path)
            assert program.stdout is not None
            assert program.stderr is not None
            try:
                if kill:
                    # After a checkpoint; closures run, and the next checkpoint may be in progress.
                    assert program.stdout.readline().strip().isdigit(), program.stderr.read()
                    time.sleep(_CHANCE.random() * 0.2)
                else:
                    output, errors = program.communicate(timeout=200)
                    assert program.returncode == 0, errors
                    assert output.split()[-1] == "whole"
            finally:
                program.kill()
                program.communicate()

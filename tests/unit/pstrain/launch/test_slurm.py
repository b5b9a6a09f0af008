"""The batch script, and how each of its tasks finds out which task it is."""

from __future__ import annotations

import json
import shlex

import pytest

from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.launch.layout import Exposure, Layout
from pstrain.launch.slurm import SlurmOptions, batch_script, free_port_base, server_jobs, task_of

OPEN = Exposure(insecure_network=True)
LAYOUT = Layout(program=("t.py", "it's $HOME"), workers=2, ps=1, data_workers=1, exposure=OPEN)


def test_batch_script_requests_resources_and_carries_layout() -> None:
    options = SlurmOptions(nodes=2, cpus_per_task=4, name="my job", directives=("--partition=p",))
    script = batch_script(LAYOUT, options)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name='my job'",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=3",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --partition=p",
    ]
    assert server_jobs(LAYOUT) == {"ps": 1, "worker": 2, "dispatcher": 1, "data_worker": 1}
    assert "--ntasks=5" in script
    carried = next(line for line in lines if line.startswith("layout="))
    (quoted,) = shlex.split(carried)
    assert Layout.from_json(quoted.removeprefix("layout=")) == LAYOUT


def test_every_slurm_task_finds_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = "n1,n1,n1,n2,n2"
    first = 10_064
    environment = {"PSTRAIN_HOSTS": hosts, "PSTRAIN_FIRST_PORT": str(first)}
    spec = {
        "chief": [f"n1:{first + 3}"],
        "worker": [f"n2:{first}", f"n2:{first + 1}"],
        "ps": [f"n1:{first + 2}"],
    }
    found = []
    for part, rank in [("chief", 0), *(("server", rank) for rank in range(5))]:
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        command, told = task_of(part, LAYOUT, environment, "python3")
        if not told:
            found.append(command[3])
            assert command[-1] == "--insecure-network"
            continue
        assert command == ["python3", *LAYOUT.program]
        config = json.loads(told["TF_CONFIG"])
        assert config["cluster"] == spec
        assert told["DATASERVICE_DISPATCHER"] == f"grpc://n1:{first + 1}"
        found.append(f"{config['task']['type']}:{config['task']['index']}")
    assert found == ["chief:0", "worker", "dispatcher", "ps:0", "worker:0", "worker:1"]


def test_task_outside_slurm_job_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match=r"PSTRAIN_HOSTS is not set.*sbatch"):
        task_of("chief", LAYOUT, {}, "python3")
    with pytest.raises(FailedPreconditionError, match=r"PSTRAIN_FIRST_PORT is not set.*sbatch"):
        task_of("chief", LAYOUT, {"PSTRAIN_HOSTS": "n1"}, "python3")


def test_jobs_on_one_host_have_different_ports() -> None:
    used: set[tuple[str, int]] = set()

    def start(job: int, *servers: str) -> int:
        environment = {"PSTRAIN_HOSTS": ",".join(servers), "SLURM_JOB_ID": str(job)}
        first = free_port_base(environment, lambda addresses: used.isdisjoint(addresses))
        for host in set(servers):
            count = servers.count(host) + 1
            mine = {(host, port) for port in range(first, first + count)}
            assert used.isdisjoint(mine)
            used.update(mine)
        return first

    first = start(1201, "n1", "n2")
    assert first == 10_000 + 1201 % 340 * 64
    assert start(1201 + 340, "n2", "n3") == first + 64
    assert start(1202, "n2") == first + 128
    assert start(1202, "n3", "n4") == first + 128
    assert start(7, *["n1"] * 65) == 10_000 + 7 * 64
    assert start(8, "n1") == 10_000 + 9 * 64, "the job before it has taken two blocks"
    assert start(339, "n1") == 10_000 + 339 * 64
    assert start(339 + 340, "n1") == 10_000
    with pytest.raises(FailedPreconditionError, match="use all 340 blocks of 64 ports from 10000"):
        free_port_base({"PSTRAIN_HOSTS": "n1"}, lambda _: False)


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        (Layout(program=("t.py",)), {}, "--insecure-network"),
        (LAYOUT, {"nodes": 6}, "--nodes 6 is more than the 5 servers"),
        (LAYOUT, {"nodes": 0}, "--nodes must be at least 1, got 0"),
        (LAYOUT, {"directives": ("partition=p",)}, "--sbatch takes an option"),
        (LAYOUT, {"name": "a\n#SBATCH --x"}, "one line"),
    ],
)
def test_invalid_slurm_options_are_refused_by_name(
    layout: Layout, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        batch_script(layout, SlurmOptions(**options))  # type: ignore[arg-type]

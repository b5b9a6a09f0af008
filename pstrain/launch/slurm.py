"""``pstrain launch --engine slurm``: a batch script, and the entry point of its tasks.

The script runs two job steps, one with all servers and one with the chief; the end of the chief
ends the servers. A task finds its place with SlurmClusterResolver and replaces itself by its
command. Invariant: the script depends on the arguments alone, and both steps resolve the same
addresses.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pstrain.errors import DataServiceError, FailedPreconditionError, InvalidArgumentError
from pstrain.launch.layout import Addresses, Layout
from pstrain.resolvers.slurm import SlurmClusterResolver

HOSTS_ENV: Final = "PSTRAIN_HOSTS"
# All ports are below 32,768, where Linux's ephemeral ports begin.
_FIRST_PORT: Final = 10_000
_PORTS_PER_JOB: Final = 64
_PORT_BLOCKS: Final = 340

_SCRIPT: Final = """\
#!/bin/bash
{directives}
set -uo pipefail

# The host of each server, node by node.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${{#hosts[@]}}" -eq 0 ]; then
    echo "scontrol names no host for $SLURM_JOB_NODELIST" >&2
    exit 1
fi
placed=$(mktemp) || exit 1
for ((task = 0; task < {servers}; task++)); do
    echo "${{hosts[task * ${{#hosts[@]}} / {servers}]}}"
done > "$placed"
PSTRAIN_HOSTS=$(paste -sd, "$placed")
export PSTRAIN_HOSTS

layout={layout}
SLURM_HOSTFILE="$placed" srun --overlap --distribution=arbitrary --ntasks={servers} \\
    --cpus-per-task={cpus} --kill-on-bad-exit=1 --label \\
    {python} -m pstrain.launch.slurm server "$layout" &
servers=$!
srun --overlap --nodes=1 --ntasks=1 --cpus-per-task={cpus} \\
    {python} -m pstrain.launch.slurm chief "$layout" &
chief=$!
# What still runs when the script has ended, Slurm kills.
finish() {{
    kill "$servers" "$chief" 2>/dev/null
    rm -f "$placed"
}}
trap 'finish; exit 143' TERM INT

wait -n "$servers" "$chief"
if kill -0 "$chief" 2>/dev/null; then
    echo "a server ended before the chief: the job ends" >&2
    finish
    exit 1
fi
wait "$chief"
status=$?
finish
exit "$status"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What the job requests. ``directives``: further options, such as ``--partition=long``."""

    nodes: int = 1
    cpus_per_task: int = 1
    name: str = "pstrain"
    python: str = "python3"
    directives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("nodes", "cpus_per_task"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise InvalidArgumentError(
                    f"{option} must be at least 1, got {getattr(self, name)}"
                )
        for text in (self.name, *self.directives):
            if "\n" in text:
                raise InvalidArgumentError(f"a directive is one line, got {text!r}")
        for text in self.directives:
            if not text.startswith("-"):
                raise InvalidArgumentError(
                    f"--sbatch takes an option of sbatch such as --partition=long, got {text!r}"
                )


def batch_script(layout: Layout, options: SlurmOptions) -> str:
    """Returns the script for ``sbatch``.

    InvalidArgumentError if tasks may not be exposed, or there are fewer servers than nodes.
    """
    layout.exposure.require("slurm")
    servers = sum(server_jobs(layout).values())
    if options.nodes > servers:
        raise InvalidArgumentError(
            f"--nodes {options.nodes} is more than the {servers} servers; ask for fewer"
        )
    # Only servers are counted: the chief's step overlaps the servers' on the first node.
    listed = [
        f"--job-name={shlex.quote(options.name)}",
        f"--nodes={options.nodes}",
        f"--ntasks-per-node={-(-servers // options.nodes)}",
        f"--cpus-per-task={options.cpus_per_task}",
        *options.directives,
    ]
    return _SCRIPT.format(
        directives="\n".join(f"#SBATCH {directive}" for directive in listed),
        servers=servers,
        cpus=options.cpus_per_task,
        layout=shlex.quote(layout.to_json()),
        python=shlex.quote(options.python),
    )


def server_jobs(layout: Layout) -> dict[str, int]:
    """Returns the number of tasks of every job but the chief's."""
    return {job: count for job, count in layout.jobs.items() if job != "chief"}


def resolve(layout: Layout, environment: Mapping[str, str]) -> SlurmClusterResolver:
    """Returns a resolver for the servers, on the hosts where the script has placed them."""
    hosts = [host for host in environment.get(HOSTS_ENV, "").split(",") if host]
    if not hosts:
        raise FailedPreconditionError(f"{HOSTS_ENV} is not set: run the script by sbatch")
    counts = {host: hosts.count(host) for host in hosts}
    return SlurmClusterResolver(
        server_jobs(layout), port_base=_port_base(environment), tasks_per_node=counts
    )


def _port_base(environment: Mapping[str, str]) -> int:
    """Returns the first port of this Slurm job, by its id, so that jobs can share a node."""
    number = int(environment.get("SLURM_JOB_ID", "0"))
    return _FIRST_PORT + number % _PORT_BLOCKS * _PORTS_PER_JOB


def task_of(
    part: str, layout: Layout, environment: Mapping[str, str], python: str
) -> tuple[list[str], dict[str, str]]:
    """Returns command and environment of this process's task; `part` is "chief" or "server"."""
    resolver = resolve(layout, environment)
    spec = resolver.cluster_spec()
    addresses: dict[str, Sequence[str]] = {
        job: [spec.task_address(job, index) for index in spec.task_indices(job)]
        for job in spec.jobs
    }
    chief_host = environment[HOSTS_ENV].partition(",")[0]
    # Nobody connects to the chief; its port follows those of the servers on its host.
    beyond = environment[HOSTS_ENV].split(",").count(chief_host)
    addresses["chief"] = [f"{chief_host}:{_port_base(environment) + beyond}"]
    job, index = ("chief", 0) if part == "chief" else resolver.get_task_info()
    assert job is not None
    assert index is not None
    return _command_and_environment(layout, job, index, addresses, python)


def _command_and_environment(
    layout: Layout, job: str, index: int, addresses: Addresses, python: str
) -> tuple[list[str], dict[str, str]]:
    command = layout.command(job, index, addresses, python)
    return command, layout.environment(job, index, addresses)


def main(part: str, text: str) -> int:
    """Replaces this process by the task that Slurm's variables name; returns 1 if that fails."""
    try:
        command, told = task_of(part, Layout.from_json(text), os.environ, sys.executable)
        os.environ.update(told)
        os.execvp(command[0], command)
    except (DataServiceError, OSError) as error:
        print(f"pstrain launch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

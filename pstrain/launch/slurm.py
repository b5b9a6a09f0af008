"""``pstrain launch --engine slurm``: a batch script, and the entry point of its tasks.

The script looks for a block of ports that no other job uses on its hosts, then runs two job steps,
one with all servers and one with the chief; the end of the chief ends the servers. A task finds its
place with SlurmClusterResolver and replaces itself by its command. Invariant: the script depends on
the arguments alone, and both steps resolve the same addresses.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from pstrain.errors import DataServiceError, FailedPreconditionError, InvalidArgumentError
from pstrain.launch.layout import Layout
from pstrain.resolvers.slurm import SlurmClusterResolver

HOSTS_ENV: Final = "PSTRAIN_HOSTS"
FIRST_PORT_ENV: Final = "PSTRAIN_FIRST_PORT"
# All ports are below 32,768, where Linux's ephemeral ports begin.
_FIRST_PORT: Final = 10_000
_PORTS_PER_JOB: Final = 64
_PORT_BLOCKS: Final = 340
_CONNECT_TIMEOUT_S: Final = 0.5
_CONNECTIONS_MAX: Final = 32

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
PSTRAIN_FIRST_PORT=$({python} -m pstrain.launch.slurm ports "$layout") || {{
    rm -f "$placed"
    exit 1
}}
export PSTRAIN_FIRST_PORT
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
    counts = _servers_by_host(environment)
    return SlurmClusterResolver(
        server_jobs(layout), port_base=_port_base(environment), tasks_per_node=counts
    )


def _servers_by_host(environment: Mapping[str, str]) -> dict[str, int]:
    hosts = [host for host in _set_by_script(environment, HOSTS_ENV).split(",") if host]
    return {host: hosts.count(host) for host in hosts}


def _port_base(environment: Mapping[str, str]) -> int:
    """Returns the first port of this Slurm job on each of its hosts."""
    return int(_set_by_script(environment, FIRST_PORT_ENV))


def _set_by_script(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise FailedPreconditionError(f"{name} is not set: run the script by sbatch")
    return value


def free_port_base(
    environment: Mapping[str, str], are_free: Callable[[Sequence[tuple[str, int]]], bool]
) -> int:
    """Returns the first port of a block that no other job uses on this job's hosts.

    The search begins at the job's id, so jobs that start at the same time try different blocks.
    ``are_free``: True if nobody listens at any of these addresses. FailedPreconditionError if all
    blocks are in use.
    """
    servers = _servers_by_host(environment)
    number = int(environment.get("SLURM_JOB_ID", "0"))
    for tried in range(_PORT_BLOCKS):
        base = _FIRST_PORT + (number + tried) % _PORT_BLOCKS * _PORTS_PER_JOB
        # The first port of a block is in use if any is. A host's tasks may need several blocks; one
        # port more than there are servers, because the chief has one too.
        if are_free(
            [
                (host, port)
                for host, count in servers.items()
                for port in range(base, base + count + 1, _PORTS_PER_JOB)
            ]
        ):
            return base
    raise FailedPreconditionError(
        f"other jobs use all {_PORT_BLOCKS} blocks of {_PORTS_PER_JOB} ports from {_FIRST_PORT} on "
        f"at {', '.join(servers)}: wait until some have ended"
    )


def _are_free(addresses: Sequence[tuple[str, int]]) -> bool:
    with ThreadPoolExecutor(_CONNECTIONS_MAX) as pool:
        return not any(pool.map(_is_used, addresses))


def _is_used(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


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
    command = layout.command(job, index, addresses, python)
    return command, layout.environment(job, index, addresses)


def main(part: str, text: str) -> int:
    """Replaces this process by the task that Slurm's variables name; returns 1 if that fails.

    With `part` "ports", prints the first port of the job instead.
    """
    try:
        if part == "ports":
            print(free_port_base(os.environ, _are_free))
            return 0
        command, variables = task_of(part, Layout.from_json(text), os.environ, sys.executable)
        os.environ.update(variables)
        os.execvp(command[0], command)
    except (DataServiceError, OSError) as error:
        print(f"pstrain launch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

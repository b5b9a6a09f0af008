"""``pstrain launch``: runs one program as every task of a cluster, here or on an engine.

The program is started once per task and finds its role in TF_CONFIG; the address of the data
service is in DATASERVICE_DISPATCHER. On this machine and on Ray the command runs until the chief
ends; for Slurm and Kubernetes it writes the input of `sbatch` or `kubectl apply -f`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final

from pstrain.commands.options import add_number, positive, rate
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.launch.layout import Exposure, Layout

_PROGRAM: Final = """\
examples:
  pstrain launch --engine local --workers 2 --ps 2 --data-workers 1 -- program.py ARGS...
  pstrain launch --engine slurm --insecure-network --nodes 2 -- program.py | sbatch
  pstrain launch --engine k8s --insecure-network --image NAME:TAG -- program.py | kubectl apply -f -
  pstrain launch --engine ray --insecure-network -- program.py

what the program does in every task:
  resolver = ps.TFConfigClusterResolver()
  if resolver.task_type in ("worker", "ps"):
      ps.Server(resolver).join()
  else:
      ...  # the chief: ps.ParameterServerStrategy(resolver), os.environ["DATASERVICE_DISPATCHER"]
"""

# The engines that use each option; other engines would ignore it, so it is refused for them.
_ENGINES_OF: Final = {
    "supervise": ("local",),
    "cpus_per_task": ("slurm", "ray"),
    "nodes": ("slurm",),
    "sbatch": ("slurm",),
    "output": ("slurm", "k8s"),
    "name": ("slurm", "k8s"),
    "python": ("slurm", "k8s"),
    "image": ("k8s",),
    "namespace": ("k8s",),
    "cpu": ("k8s",),
    "memory": ("k8s",),
    "token_secret": ("k8s",),
    "tls_secret": ("k8s",),
    "ray_address": ("ray",),
    "working_dir": ("ray",),
    "timeout": ("ray",),
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "launch",
        help="run a program as every task of a cluster",
        description=__doc__,
        epilog=_PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="pstrain launch [options] -- PROGRAM [ARGS...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine",
        choices=tuple(_RUN),
        default="local",
        help="where the tasks run (default: local)",
    )
    _add_shape(parser)
    _add_exposure(parser)
    _add_engines(parser)
    parser.add_argument(
        "program",
        nargs="+",
        metavar="PROGRAM",
        help=".py file or command to run, and its arguments",
    )
    parser.set_defaults(run=run)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    shape = parser.add_argument_group("tasks, besides one chief")
    add_number(shape, "--workers", 2, "number of trainers")
    add_number(shape, "--ps", 2, "number of parameter servers")
    servers = "number of workers of the data service, besides its dispatcher; 0 for no data service"
    add_number(shape, "--data-workers", 1, servers, _count)


def _add_exposure(parser: argparse.ArgumentParser) -> None:
    exposure = parser.add_argument_group(
        "network and encryption",
        description="Tasks on several hosts need either --insecure-network or certificates.",
    )
    exposure.add_argument(
        "--insecure-network",
        action="store_true",
        help="let the tasks talk unencrypted, on a network that you trust",
    )
    for name, what in (
        ("cert", "certificate that every server presents"),
        ("key", "private key of that certificate"),
        ("ca", "CA certificates that every task trusts"),
    ):
        exposure.add_argument(
            f"--tls-{name}", metavar="PEM", help=f"{what}, as a path that exists on each host"
        )
    exposure.add_argument(
        "--tls-secret",
        metavar="NAME",
        help="k8s: name of a Secret with tls.crt, tls.key and ca.crt",
    )


def _add_engines(parser: argparse.ArgumentParser) -> None:
    def option(name: str, help: str, **settings: object) -> None:
        engines = ", ".join(_ENGINES_OF[name.strip("-").replace("-", "_")])
        group.add_argument(name, help=f"{engines}: {help}", **settings)  # type: ignore[arg-type]

    group = parser.add_argument_group("options of single engines")
    option(
        "--supervise",
        "restart trainers and parameter servers that fail, at the addresses that they had",
        action="store_true",
    )
    option("--cpus-per-task", "CPUs for each task (default: 1)", type=positive, metavar="N")
    option("--output", "file to write (default: standard output)", metavar="FILE")
    option(
        "--name", "name of the job and of all that belongs to it (default: pstrain)", metavar="NAME"
    )
    option("--python", "Python interpreter of the tasks (default: python3)", metavar="PATH")
    option("--nodes", "number of nodes of the job (default: 1)", type=positive, metavar="N")
    option(
        "--sbatch",
        "further option for sbatch, such as --sbatch=--partition=long; may be given several times",
        action="append",
        metavar="OPTION",
    )
    option("--image", "container image with pstrain and the program (required)", metavar="NAME:TAG")
    option("--namespace", "namespace of the pods (default: default)", metavar="NAME")
    option("--cpu", "CPUs for each pod, such as 2 or 500m", metavar="AMOUNT")
    option("--memory", "memory for each pod, such as 4Gi", metavar="AMOUNT")
    option(
        "--token-secret",
        "name of a Secret whose key `token` holds the token (default: the manifest makes one)",
        metavar="NAME",
    )
    option(
        "--ray-address",
        "address of the Ray cluster, or auto (default: RAY_ADDRESS, or a new one on this machine)",
        metavar="ADDRESS",
    )
    option("--working-dir", "folder to copy to the nodes", metavar="DIR")
    option(
        "--timeout",
        "how long to wait until Ray has room for all tasks (default: 600)",
        type=rate,
        metavar="SECONDS",
    )


def run(args: argparse.Namespace) -> int:
    for name, engines in _ENGINES_OF.items():
        if getattr(args, name) not in (None, False) and args.engine not in engines:
            raise InvalidArgumentError(
                f"--{name.replace('_', '-')} is for --engine {' and '.join(engines)}, "
                f"not for {args.engine}"
            )
    exposure = Exposure(
        insecure_network=args.insecure_network,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_ca=args.tls_ca,
    )
    layout = Layout(
        program=tuple(args.program),
        workers=args.workers,
        ps=args.ps,
        data_workers=args.data_workers,
        exposure=exposure,
    )
    return _RUN[args.engine](args, layout)


def _local(args: argparse.Namespace, layout: Layout) -> int:
    from pstrain.launch.local_engine import run_locally

    return run_locally(layout, supervise=args.supervise)


def _slurm(args: argparse.Namespace, layout: Layout) -> int:
    from pstrain.launch.slurm import SlurmOptions, batch_script

    options = SlurmOptions(
        nodes=args.nodes or 1,
        cpus_per_task=args.cpus_per_task or 1,
        name=args.name or "pstrain",
        python=args.python or "python3",
        directives=tuple(args.sbatch or ()),
    )
    return _write(args.output, batch_script(layout, options))


def _kubernetes(args: argparse.Namespace, layout: Layout) -> int:
    import dataclasses
    import secrets

    from pstrain.launch.kubernetes import KubernetesOptions, exposure_of_pods, manifest

    amounts = {"cpu": args.cpu, "memory": args.memory}
    options = KubernetesOptions(
        image=args.image or "",
        name=args.name or "pstrain",
        namespace=args.namespace or "default",
        resources={name: amount for name, amount in amounts.items() if amount},
        token_secret=args.token_secret,
        tls_secret=args.tls_secret,
        python=args.python or "python3",
    )
    exposure = exposure_of_pods(layout.exposure, args.tls_secret)
    layout = dataclasses.replace(layout, exposure=exposure)
    return _write(args.output, manifest(layout, options, secrets.token_urlsafe(32)))


def _ray(args: argparse.Namespace, layout: Layout) -> int:
    from pstrain.launch.ray import RayOptions, run_on_ray

    options = RayOptions(
        address=args.ray_address,
        cpus_per_task=args.cpus_per_task or 1,
        working_dir=args.working_dir,
        timeout_s=args.timeout or RayOptions().timeout_s,
    )
    return run_on_ray(layout, options)


_RUN: Final[dict[str, Callable[[argparse.Namespace, Layout], int]]] = {
    "local": _local,
    "slurm": _slurm,
    "k8s": _kubernetes,
    "ray": _ray,
}


def _write(path: str | None, text: str) -> int:
    """Writes to a file that only the user may read (a manifest has the token), or to stdout."""
    if path is None:
        sys.stdout.write(text)
        return 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise FailedPreconditionError(
            f"cannot write --output {path!r}: {error.strerror}"
        ) from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    return 0


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)

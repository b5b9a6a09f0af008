"""``pstrain launch``: runs one program as every task of a cluster, here or on an engine.

The program is started once per task and finds its part in TF_CONFIG; the address of the data
service is in DATASERVICE_DISPATCHER.
"""

from __future__ import annotations

import argparse

from pstrain.commands.options import positive
from pstrain.launch.layout import Exposure, Layout

ENGINES = ("local",)
_USAGE = """\
pstrain launch --engine local --workers 2 --ps 2 --data-workers 1 -- program.py ARGS...

The program, in every task:
  resolver = ps.TFConfigClusterResolver()
  if resolver.task_type in ("worker", "ps"):
      ps.Server(resolver).join()
  else:
      ...  # the chief: ps.ParameterServerStrategy(resolver), os.environ["DATASERVICE_DISPATCHER"]
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "launch",
        help="run a program as every task of a cluster",
        description=__doc__,
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="pstrain launch [options] -- PROGRAM [ARGS...]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="local", help="where the tasks run (default local)"
    )
    _add_shape(parser)
    _add_exposure(parser)
    parser.add_argument(
        "--supervise",
        action="store_true",
        help="local: start trainers and parameter servers that fail again, at their addresses",
    )
    parser.add_argument(
        "program", nargs="+", metavar="PROGRAM", help="a .py file or a command, and its arguments"
    )
    parser.set_defaults(run=run)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    shape = parser.add_argument_group("tasks, beside one chief")
    shape.add_argument("--workers", type=positive, default=2, help="trainers (default 2)")
    shape.add_argument("--ps", type=positive, default=2, help="parameter servers (default 2)")
    shape.add_argument(
        "--data-workers",
        type=_count,
        default=1,
        help="workers of the data service, and a dispatcher; 0 for none (default 1)",
    )


def _add_exposure(parser: argparse.ArgumentParser) -> None:
    exposure = parser.add_argument_group("tasks on several hosts, one of")
    exposure.add_argument(
        "--insecure-network",
        action="store_true",
        help="their traffic travels unencrypted, on a network that you trust",
    )
    for name, what in (("cert", "certificate"), ("key", "key"), ("ca", "authority to trust")):
        exposure.add_argument(f"--tls-{name}", metavar="PEM", help=f"{what}: a path on each host")


def run(args: argparse.Namespace) -> int:
    from pstrain.launch.here import run_here

    return run_here(_layout(args), supervise=args.supervise)


def _layout(args: argparse.Namespace) -> Layout:
    exposure = Exposure(
        insecure_network=args.insecure_network,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        tls_ca=args.tls_ca,
    )
    return Layout(
        program=tuple(args.program),
        workers=args.workers,
        ps=args.ps,
        data_workers=args.data_workers,
        exposure=exposure,
    )


def _count(text: str) -> int:
    return 0 if text == "0" else positive(text)

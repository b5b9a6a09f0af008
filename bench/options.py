"""The command-line options that several benchmarks share.

Knows no benchmark. Uses the standard library only, since programs of other projects use it too, in
their own interpreters. Invariant: an option means the same in each of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any, Final

# What each option means: its type, its number of values, and its help.
_COMMON: Final[dict[str, tuple[type, str | None, str]]] = {
    "batches": (int, "+", "batch sizes to measure, in rows"),
    "trainers": (int, "+", "numbers of trainers to measure"),
    "rounds": (int, None, "number of times that each measurement is repeated"),
    "seconds": (float, None, "seconds of each run that count, about"),
    "warm_up_s": (float, None, "seconds before each measurement that do not count"),
    "deadline_s": (float, None, "seconds after which a run is given up"),
}


def new_parser(
    module: str, description: str | None, *, has_smoke: bool = True
) -> argparse.ArgumentParser:
    """Returns the parser of ``python -m module``; adds ``--smoke`` unless the module does."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if has_smoke:
        parser.add_argument(
            "--smoke",
            action="store_true",
            help="make a tiny run, to check that the benchmark works",
        )
    return parser


def add_peer(parser: argparse.ArgumentParser, peer: str) -> None:
    """Adds ``--peer``, which measures ``peer`` too, and ``--peer-python``."""
    parser.add_argument(
        "--peer", action="store_true", help=f"also measure {peer}, and print the ratios"
    )
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("PEER_PYTHON"),
        help="Python interpreter that has TensorFlow, for --peer (default: $PEER_PYTHON, or this "
        "one)",
    )


def add_peer_forms(
    parser: argparse.ArgumentParser, forms: Sequence[str], default: Sequence[str], meaning: str
) -> None:
    """Adds ``--peer-forms``, which chooses among the ``forms`` of the peer's program or data."""
    parser.add_argument(
        "--peer-forms",
        nargs="+",
        choices=forms,
        default=default,
        help=f"{meaning} (default: %(default)s)",
    )


def add_common(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Adds options that mean the same in each benchmark, by their names, with these defaults."""
    for name, default in defaults.items():
        kind, nargs, meaning = _COMMON[name]
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            nargs=nargs,
            default=default,
            help=f"{meaning} (default: %(default)s)",
        )

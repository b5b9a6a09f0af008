"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text}")
    return value


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """How many processes of each role."""
    shape = parser.add_argument_group("the cluster, on this machine")
    shape.add_argument("--workers", type=positive, default=2, help="trainers (default 2)")
    shape.add_argument("--ps", type=positive, default=2, help="parameter servers (default 2)")
    shape.add_argument(
        "--data-workers", type=positive, default=2, help="workers of the data service (default 2)"
    )

"""Options that several commands share, the checks of their values, and tables they share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

POOLINGS = ("sum", "mean", "sqrtn")
TYPES_REMEDY = (
    "correct the file, whose columns must be of the types that the model was trained on, or state "
    "the type of a column that the model does not read with --types COLUMN=TYPE"
)
TYPES = ("string", "bool", "int64", "uint64", "double")

T = TypeVar("T", int, float)

if TYPE_CHECKING:
    from pstrain.launch.activity import Activity


def _number(parse: Callable[[str], T], holds: Callable[[T], bool], must: str) -> Callable[[str], T]:
    """Returns a parser for argparse that refuses numbers for which ``holds`` is False."""

    def number(text: str) -> T:
        try:
            value = parse(text)
        except ValueError:
            value = None
        if value is None or not holds(value):
            raise argparse.ArgumentTypeError(f"must be {must}, got {text}")
        return value

    return number


positive = _number(int, lambda value: value >= 1, "a positive integer")
seed = _number(int, lambda value: value >= 0, "an integer of at least 0")
rate = _number(float, lambda value: 0 < value < math.inf, "a positive number")
share = _number(float, lambda value: 0 < value < 1, "between 0 and 1")


def local_path(text: str) -> Path:
    """Parses a path of this machine, for argparse; refuses URLs."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"must be a path in a file system of this machine, got the URL {text}"
        )
    return Path(text)


def names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas, for argparse."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def poolings(text: str) -> dict[str, str]:
    """Parses ``RULE`` or ``COLUMN=RULE``, separated by commas; a rule alone has the column ""."""
    rules: dict[str, str] = {}
    for part in names(text):
        name, _, rule = part.rpartition("=")
        if rule not in POOLINGS:
            raise argparse.ArgumentTypeError(
                f"must be {', '.join(POOLINGS)}, or COLUMN= one of them, got {part}"
            )
        rules[name] = rule
    return rules


def column_types(text: str) -> dict[str, str]:
    """Parses types by column, for argparse: ``COLUMN=TYPE`` separated by commas."""
    types: dict[str, str] = {}
    for part in names(text):
        name, _, type_ = part.rpartition("=")
        if type_ not in TYPES or not name:
            raise argparse.ArgumentTypeError(
                f"must be COLUMN=TYPE, a type being {', '.join(TYPES)}, got {part}"
            )
        types[name] = type_
    return types


def delimiter(text: str) -> str:
    """Parses one character, for argparse; a tab may be written as backslash and t, as in shells."""
    sign = "\t" if text == r"\t" else text
    if len(sign) != 1:
        raise argparse.ArgumentTypeError(f"must be one character, or \\t for a tab, got {text!r}")
    return sign


def add_number(
    parser: argparse._ActionsContainer,
    option: str,
    default: int,
    what: str,
    parse: Callable[[str], int] = positive,
) -> None:
    """Adds an option for a number; its help is ``what`` and the default."""
    shown = f"{what} (default: {default})"
    parser.add_argument(option, type=parse, default=default, metavar="N", help=shown)


def add_data(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds the option that names the files to read; its help begins with ``what``."""
    shown = f"{what}: a path, a folder, or a glob in quotes"
    parser.add_argument("--data", required=True, metavar="GLOB", help=shown)


def add_types(parser: argparse._ActionsContainer) -> None:
    """Adds the options that say how columns of text files are read."""
    parser.add_argument(
        "--delimiter",
        type=delimiter,
        metavar="CHARACTER",
        help=r"character between the columns of CSV files, such as ';' or '\t' (default: a comma, "
        "in .tsv files a tab)",
    )
    parser.add_argument(
        "--types",
        type=column_types,
        default={},
        metavar="COLUMN=TYPE,...",
        help="types of columns of CSV and JSON files, where the first rows do not show the right "
        f"one; a type is {', '.join(TYPES[:-1])} or {TYPES[-1]}",
    )


def role_rows(roles: Sequence[Activity]) -> list[tuple[str, ...]]:
    """Returns the rows of a table that says what every process did."""
    rows: list[tuple[str, ...]] = [("role", "pid", "peak memory", "work done")]
    for role in roles:
        memory = f"{role.memory_bytes / 2**20:,.0f} MiB" if role.memory_bytes else "?"
        rows.append((role.role, str(role.pid), memory, role.did))
    return rows


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the number of processes of each role."""
    shape = parser.add_argument_group("processes of the cluster on this machine")
    add_number(shape, "--workers", 2, "number of trainers")
    add_number(shape, "--ps", 2, "number of parameter servers")
    add_number(shape, "--data-workers", 2, "number of workers of the data service")

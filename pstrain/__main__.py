"""The command line of pstrain: runs a command and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence

from dataservice.errors import (
    AddressInUseError,
    DataServiceError,
    NotFoundError,
    SourceError,
    UnauthenticatedError,
    UserFunctionError,
)

COMMANDS = ("demo", "train", "evaluate", "predict", "server", "launch")

# Errors that the user can correct: arguments, files, columns, tokens, ports.
_WRONG_INPUT = (
    ValueError,
    FileNotFoundError,
    NotFoundError,
    SourceError,
    UserFunctionError,
    UnauthenticatedError,
    AddressInUseError,
)


class _Version(argparse.Action):
    """An option that looks the version up only when it is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from dataservice.runtime.installed import installed_version

        print(f"pstrain {installed_version()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pstrain",
        description="Parameter-server training for click and tabular models.",
        epilog="`pstrain COMMAND --help` describes the options of a command.",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="log every change of state (default: warnings only)"
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"pstrain.commands.{name}").add_parser(commands)
    for command in commands.choices.values():
        # Descriptions are module docstrings, whose double backticks a terminal does not render.
        command.description = (command.description or "").replace("``", "")
    return parser


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args, more = parser.parse_known_args(argv)
    if more:
        # A shell expands a glob that is not in quotes, so its files arrive as extra arguments.
        files = " (put globs in quotes, and name other files by a glob or their folder)"
        hint = files if any(os.path.exists(each) for each in more) else ""
        parser.error(f"unrecognized arguments: {' '.join(more)}{hint}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    0: done; 1: failed on the way; 2: bad arguments or input; 130: interrupted.
    """
    command = ""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of columns and files may have characters that the terminal cannot encode.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Commands are imported inside the try block, so that an interrupt ends quietly here too.
        args = _parsed(argv)
        command = args.command
        logging.basicConfig(
            level=logging.INFO if args.verbose else logging.WARNING,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        status = int(args.run(args) or 0)
        # Flushes here: a write error at interpreter exit would not be reported.
        print(end="", flush=True)
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError as error:
        print(f"pstrain {command}: not enough memory: {error}", file=sys.stderr)
        return 1
    except (DataServiceError, OSError) as error:
        print(f"{f'pstrain {command}'.rstrip()}: {error}", file=sys.stderr)
        return 2 if isinstance(error, _WRONG_INPUT) else 1


if __name__ == "__main__":
    sys.exit(main())

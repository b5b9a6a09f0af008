"""The command line of the data service: run its servers, look at them, tidy up.

Responsible for parsing arguments and for exit statuses; the commands are in `dataservice.commands`.
An error that the user can act on ends with one line on standard error and exit status 2, an error
of the operating system with exit status 1.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from dataservice.errors import DataServiceError

_ACTIONS: Final = ("list", "delete", "cancel")
_GROUPS: Final = ("jobs", "datasets", "snapshots")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of jobs and files may have characters that the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # `_parser` imports the commands; inside the try, Ctrl-C during the imports is handled too.
        options = _parser().parse_args(_action_first(arguments))
        options.arguments = arguments
        logging.basicConfig(
            level=options.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        status = int(options.run(options) or 0)
        # Flushes here: errors of the flush at interpreter exit would not be handled.
        print(end="", flush=True)
        return status
    except DataServiceError as error:
        print(f"dataservice: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # The process that reads our output, such as `head`, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # For example, standard output is a file on a full disk.
        print(f"dataservice: {error}", file=sys.stderr)
        return 1


def _action_first(arguments: Sequence[str]) -> list[str]:
    """Rewrites `jobs HOST:PORT list`, which is accepted too, as `jobs list HOST:PORT`."""
    words = list(arguments)
    for index, (group, first, second) in enumerate(zip(words, words[1:], words[2:], strict=False)):
        if group in _GROUPS and second in _ACTIONS and ":" in first:
            words[index + 1 : index + 3] = second, first
            break
    return words


class _Version(argparse.Action):
    """An option that looks the version up only when it is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from dataservice.runtime.installed import installed_version

        print(f"dataservice {installed_version()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    from dataservice.commands import dispatcher, inspect, monitor, worker

    parser = argparse.ArgumentParser(
        prog="dataservice",
        allow_abbrev=False,
        description="A distributed input service: one dispatcher and any number of data workers.",
        epilog="Servers and clients share a secret token. Those of one user on one machine find it "
        "by themselves; across users or machines, set DATASERVICE_TOKEN or DATASERVICE_TOKEN_FILE. "
        "`dataservice COMMAND --help` describes the options of a command.",
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="least severity of messages that are logged (default: info)",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    dispatcher.add_parser(commands)
    worker.add_parser(commands)
    inspect.add_parsers(commands)
    monitor.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())

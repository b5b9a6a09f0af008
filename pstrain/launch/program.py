"""Checks that a program can be started on this machine, before any process is started.

Knows files and the search path for commands, nothing of tasks or other machines. Invariant: a
program that is refused cannot start on this machine; one that passes may still fail.
"""

from __future__ import annotations

import os
import shutil

from pstrain.errors import InvalidArgumentError, MissingFileError


def check_program(program: str) -> None:
    """Raises an error unless ``program`` is a readable .py file or a command that is found."""
    if os.path.isdir(program):
        raise InvalidArgumentError(
            f"{program!r} is a folder; give the .py file in it that is to run in every task"
        )
    if program.endswith(".py"):
        if not os.path.exists(program):
            raise MissingFileError(
                f"there is no program {program!r}: nothing is at {os.path.abspath(program)}"
            )
        if not os.access(program, os.R_OK):
            raise InvalidArgumentError(f"the program {program!r} cannot be read by this user")
    elif shutil.which(program) is None:
        if os.path.exists(program):
            raise InvalidArgumentError(
                f"{program!r} is neither a .py file nor a command that may be executed; run it as "
                f"`-- python {program}`, or allow it by `chmod +x {program}`"
            )
        raise MissingFileError(
            f"there is no command {program!r} here; give a .py file, or a command that is on PATH"
        )

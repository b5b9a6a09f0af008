"""Folders of this machine that commands write their results into.

Knows nothing of what is written. Invariant: a folder that nothing can be written into is an error
that names the option it came from, before any work is done for it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pstrain.errors import InvalidArgumentError


def make_folder(option: str, folder: Path) -> None:
    """Makes the folder that ``option`` names; InvalidArgumentError where files cannot be in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InvalidArgumentError(
            f"{option} must name a folder, and {str(folder)!r} is a file"
        ) from error
    except OSError as error:
        raise _refused(option, folder, error) from error
    check_writable(option, folder)


def check_writable(option: str, folder: Path) -> None:
    """InvalidArgumentError where no file can be made in the folder, which is there."""
    try:
        # Modes do not tell: of a file system that is mounted for reading they allow all.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refused(option, folder, error) from error


def _refused(option: str, folder: Path, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{option}: cannot write into the folder {str(folder)!r} ({error.strerror}); name another "
        "one, or make room or get permission there"
    )

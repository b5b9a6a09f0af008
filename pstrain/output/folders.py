"""Checks of the local folders that commands write their results into.

Knows nothing of what is written. Invariant: a folder that cannot be written to raises an error
that names the option it came from, before any work is done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pstrain.errors import InvalidArgumentError


def make_folder(option: str, folder: Path) -> None:
    """Makes the folder that ``option`` names; InvalidArgumentError if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise InvalidArgumentError(
            f"{option} must name a folder, and {str(folder)!r} is a file"
        ) from error
    except OSError as error:
        raise _refused(option, folder, error) from error
    check_writable(option, folder)


@contextmanager
def folder_to_fill(option: str, folder: Path) -> Iterator[None]:
    """Makes the folder as :func:`make_folder` does, for the block to write into.

    If the block fails or is interrupted, removes those of the folders it made that are empty.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    made: list[Path] = []
    try:
        for each in reversed(missing):
            # Another program may make the folder meanwhile; make_folder raises all other errors.
            with suppress(OSError):
                each.mkdir()
                made.insert(0, each)
        make_folder(option, folder)
        yield
    except BaseException:
        for each in made:
            with suppress(OSError):
                each.rmdir()
        raise


def check_writable(option: str, folder: Path) -> None:
    """Raises InvalidArgumentError if no file can be made in the existing folder."""
    try:
        # Permission bits are not enough: on a read-only file system they may still allow writing.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refused(option, folder, error) from error


def _refused(option: str, folder: Path, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{option}: cannot write into the folder {str(folder)!r} ({error.strerror}); name another "
        "one, or make room or get permission there"
    )

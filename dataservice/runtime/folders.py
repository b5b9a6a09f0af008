"""Folders that are private to a user, and folders whose names of files survive a power failure.

Users whose home directory cannot be written get a private folder in the temporary directory. Any
user may create names there, so its owner is checked before it is used. Knows nothing of what is
stored. Invariant: no other user can read from or write into a folder that `private_folder` returns.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


def private_folder(name: str) -> str:
    """Returns the user's folder of that name, created if missing.

    Raises OSError if the folder is not the user's alone.
    """
    folder = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    ensure_private(folder)
    return folder


def ensure_private(folder: str) -> None:
    """Creates a folder that only this user can use; raises PermissionError if others can too."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder of this user alone")


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Syncs a folder, so that the names of its files are on the disk; the files need it too."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

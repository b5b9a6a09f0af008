"""Folders of one user under the temporary directory, for those whose home cannot be written.

Everybody may make names there, so who uses such a folder looks first whose it is. Invariant: what
`private_folder` returns nobody else can write into or read from.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


def private_folder(name: str) -> str:
    """The user's folder of that name, made if need be; OSError where it is not theirs alone."""
    folder = os.path.join(tempfile.gettempdir(), f"{name}-{os.getuid()}")
    ensure_private(folder)
    return folder


def ensure_private(folder: str) -> None:
    """Makes a folder that nobody else can put files into; PermissionError where others can."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder of this user alone")

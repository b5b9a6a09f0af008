"""The step besides syncing a file that makes it survive a power failure: syncing its folder."""

from __future__ import annotations

import os


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Syncs a folder, so that the names of its files are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

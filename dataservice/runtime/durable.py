"""What it takes, beyond a synced file, for a file to outlive a host that loses power."""

from __future__ import annotations

import os


def sync_folder(path: str | os.PathLike[str]) -> None:
    """The names in a folder are on the disk when this returns."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

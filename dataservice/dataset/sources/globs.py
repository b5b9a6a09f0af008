"""The names that match a local pattern, even if links between folders form cycles.

Lists folders, opens no file. Invariant: `**` visits each folder once, so that it ends: under its
own name if that lies below the pattern, else under the name of a link.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

_ANY_DEPTH = "**"


def expanded(pattern: str) -> Iterator[str]:
    """Yields the names that match a glob; with several `**`, a name may come more than once."""
    parts = pattern.split(os.sep)
    if _ANY_DEPTH not in parts:
        yield from glob.iglob(pattern)
        return
    depth = parts.index(_ANY_DEPTH)
    below = os.sep.join(parts[depth + 1 :]) or "*"
    root = os.sep.join(parts[:depth])
    if not root and depth:
        root = os.sep
    for start in sorted(glob.iglob(root)) if glob.has_magic(root) else [root]:
        for folder in _folders_below(start):
            yield from expanded(os.path.join(glob.escape(folder), below))


def _folders_below(start: str) -> Iterator[str]:
    """Yields a folder and all folders below it except hidden ones; follows links last."""
    seen: set[str] = set()
    waiting = [start]
    links: list[str] = []
    while waiting or links:
        folder = waiting.pop() if waiting else links.pop(0)
        place = os.path.realpath(folder or os.curdir)
        if place in seen:
            continue
        seen.add(place)
        yield folder
        for entry in _entries(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                inner = os.path.join(folder, entry.name)
                (links if entry.is_symlink() else waiting).append(inner)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder by name; none if it cannot be read, as in any glob."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []

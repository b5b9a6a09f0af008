"""The names that a local pattern stands for, also where links between folders make circles.

Looks at folders, opens no file. Invariant: `**` comes into each folder once, by its own name where
it has one below the pattern, else by a link's; so it ends.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

_ANY_DEPTH = "**"


def expanded(pattern: str) -> Iterator[str]:
    """What matches a glob; several `**` may give a name more than once."""
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
    """A folder and those in it, but for hidden ones; links are followed last."""
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
    """What is in a folder, by name; nothing where it may not be read, as for any glob."""
    try:
        with os.scandir(folder or os.curdir) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []

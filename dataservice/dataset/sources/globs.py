"""The names that match a local pattern, or lie below a folder, even if links form cycles.

Lists folders, opens no file. Invariant: `**`, and a search below a folder, visit each folder once,
so that they end: under its own name if that lies below the start, else under the name of a link.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Iterator

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
        for folder, _ in _folders_below(start, _shown_in):
            yield from expanded(os.path.join(glob.escape(folder), below))


def files_below(folder: str) -> Iterator[str]:
    """Yields the files below a folder, except hidden ones and what is in hidden folders below it.

    Raises OSError if a folder cannot be listed.
    """
    for below, entries in _folders_below(folder, _data_in):
        yield from (os.path.join(below, entry.name) for entry in entries if not _is_folder(entry))


def is_hidden(name: str) -> bool:
    """True if programs that read data ignore files and folders of that name, as Spark does."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _folders_below(
    start: str, entries_of: Callable[[str], list[os.DirEntry[str]]]
) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Yields a folder and all folders below it with their entries; follows links last."""
    seen: set[str] = set()
    # With the real path, which is asked of the system for links only: that takes many calls.
    waiting = [(start, os.path.realpath(start or os.curdir))]
    links: list[str] = []
    while waiting or links:
        folder, place = waiting.pop() if waiting else _followed(links.pop(0))
        if place in seen:
            continue
        seen.add(place)
        entries = entries_of(folder or os.curdir)
        yield folder, entries
        for entry in filter(_is_folder, entries):
            inner = os.path.join(folder, entry.name)
            if entry.is_symlink():
                links.append(inner)
            else:
                waiting.append((inner, os.path.join(place, entry.name)))


def _followed(link: str) -> tuple[str, str]:
    """Returns a link with the real path of what it leads to."""
    return link, os.path.realpath(link)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """True for a folder or a link to one, False for a link that leads nowhere or to itself."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _shown_in(folder: str) -> list[os.DirEntry[str]]:
    """Returns what a glob sees in a folder; nothing if it cannot be read."""
    try:
        return [entry for entry in _entries(folder) if _is_shown(entry)]
    except OSError:
        return []


def _is_shown(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    return not entry.is_symlink() or os.path.exists(entry.path)


def _data_in(folder: str) -> list[os.DirEntry[str]]:
    return [entry for entry in _entries(folder) if not is_hidden(entry.name)]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder by name."""
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)

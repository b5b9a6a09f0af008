"""The control groups that a process is in, as Linux shows them to it.

A container is a group with limits of its own, and so may be the groups around it. Reads files;
knows nothing of what the limits mean. Invariant: a file that is missing or cannot be read counts as
no group.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

# Returns the text of the file at a path, or None.
Read: TypeAlias = Callable[[str], str | None]


class Group(NamedTuple):
    """The folder of a group; `is_unified`: of version 2, where all controllers have their files."""

    folder: str
    is_unified: bool


class _Mount(NamedTuple):
    kind: str
    options: frozenset[str]
    root: str
    point: str


def text_of(path: str) -> str | None:
    """Returns the text of a file, None if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def own_groups(controller: str) -> Iterator[Group]:
    """Yields the groups of this process; see `groups`."""
    memberships, mounts = text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo")
    return groups(controller, memberships or "", mounts or "")


def groups(controller: str, memberships: str, mounts: str) -> Iterator[Group]:
    """Yields the groups of a process under a controller, such as "cpu".

    They begin with the process's own group and end with the highest that it can see. `memberships`
    and `mounts` are the text of its `cgroup` and `mountinfo`.
    """
    mounted = [mount for line in mounts.splitlines() if (mount := _mount(line)) is not None]
    for line in memberships.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = hierarchy == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for mount in mounted:
            if mount.kind == "cgroup2" if unified else controller in mount.options:
                yield from (Group(folder, unified) for folder in _folders(path, mount))


def _mount(line: str) -> _Mount | None:
    """Parses a line of `mountinfo`; returns None if it does not mount control groups."""
    place, separator, filesystem = line.partition(" - ")
    fields, kinds = place.split(), filesystem.split()
    if not separator or len(fields) < 5 or len(kinds) < 3 or not kinds[0].startswith("cgroup"):
        return None
    options = frozenset(kinds[2].split(",")) if kinds[0] == "cgroup" else frozenset()
    return _Mount(kinds[0], options, fields[3], fields[4])


def _folders(path: str, mount: _Mount) -> Iterator[str]:
    """Yields the folders from the group itself up to the highest that can be seen.

    In a container the mount shows only a part of the tree. If the path leads out of that part, the
    mounted folder is the container's own group.
    """
    inside = posixpath.relpath(path, mount.root)
    parts = [] if inside == "." or inside.startswith("..") else inside.split("/")
    for depth in range(len(parts), -1, -1):
        yield posixpath.join(mount.point, *parts[:depth])

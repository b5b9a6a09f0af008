"""The storage that all simulated processes share, as far as folders of snapshots use it.

Stands for `open`, `os`, `fsspec`, `tempfile` and `uuid` in `atomic_folder`. Each operation takes a
moment before it takes effect, in which its process may be killed or frozen; a trap does so at the
n-th operation from the moment it is set. Knows nothing of the contents of files. A host that loses
power loses what its processes had not synced: contents and names of files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.simulation.fibers import running, wait
from tests.simulation.world import STAGE

_STEP_S = 0.004
LAYOUTS = ("file", "s3", "sftp")
"""A local folder, an object store, and a file system that cannot rename over an existing file."""


class File:
    """The content of a file, and how many bytes of it are synced."""

    def __init__(self) -> None:
        self.content = b""
        self.synced = 0


class Draft:
    """A file open for writing, text or bytes."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.closed = False

    def write(self, data: Any) -> int:
        self._file.content += data.encode() if isinstance(data, str) else bytes(data)
        return len(data)

    def tell(self) -> int:
        return len(self._file.content)

    def flush(self) -> None:
        """Does nothing, as what a process has written outlives the process."""

    def fileno(self) -> File:
        return self._file

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Disk:
    """All files by path; `on_change` is called with a path whose file came, changed or went."""

    def __init__(self, world: Any, layout: str, on_change: Callable[[str], None]) -> None:
        self._world = world
        self.protocol = layout
        self._on_change = on_change
        self.files: dict[str, File] = {}
        self.trouble = 0.0
        self._unsynced: dict[str, dict[str, File | None]] = {}

    def step(self) -> None:
        """Precedes each operation: may spring a trap, takes a moment, and may fail."""
        node: Any = running().node
        trap = getattr(node, "trap", None)
        if trap is not None:
            node.trap = (trap[0] - 1, trap[1])
            if trap[0] <= 0:
                node.trap = None
                trap[1]()
        wait(self._world.dice.random() * _STEP_S)
        if self._world.dice.random() < self.trouble:
            raise ConnectionError("the storage is away")

    def lose_power(self, node_name: str) -> None:
        """Stops the host of a process: renames not synced may be undone, contents are cut."""
        for path, before in self._unsynced.pop(node_name, {}).items():
            if self._world.dice.random() < 0.5:
                continue
            if before is None:
                self.files.pop(path, None)
            else:
                self.files[path] = before
            self._on_change(path)
        for path, file in self.files.items():
            if getattr(file, "maker", None) == node_name and file.synced < len(file.content):
                file.content = file.content[: file.synced]
                self._on_change(path)

    def content(self, path: str) -> bytes | None:
        file = self.files.get(path)
        return None if file is None else file.content

    def delete(self, folder: str) -> None:
        """Deletes a folder, as the user does by hand."""
        for path in [path for path in self.files if path.startswith(folder + "/")]:
            del self.files[path]
        for names in self._unsynced.values():
            for path in [path for path in names if path.startswith(folder + "/")]:
                del names[path]

    def _put(self, path: str, file: File) -> None:
        self.files[path] = file
        self._on_change(path)

    # open, os, tempfile

    def open(self, path: str, _mode: str) -> Draft:
        self.step()
        file: Any = File()
        file.maker = running().node.name
        self._put(path, file)
        return Draft(file)

    def replace(self, source: str, target: str) -> None:
        self.step()
        file = self.files.pop(source, None)
        if file is None:
            raise FileNotFoundError(source)
        names = self._unsynced.setdefault(running().node.name, {})
        names.setdefault(target, self.files.get(target))
        self._put(target, file)

    def link(self, source: str, target: str) -> None:
        self.step()
        if target in self.files:
            raise FileExistsError(target)
        names = self._unsynced.setdefault(running().node.name, {})
        names.setdefault(target, None)
        self._put(target, self.files[source])

    def remove(self, path: str) -> None:
        self.step()
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)
        self._on_change(path)

    def fsync(self, what: Any) -> None:
        self.step()
        if isinstance(what, File):
            what.synced = len(what.content)
            return
        names = self._unsynced.get(running().node.name, {})
        for path in [path for path in names if posixpath.dirname(path) == what]:
            del names[path]

    def as_os(self) -> SimpleNamespace:
        def getsize(path: str) -> int:
            return len(self.files[path].content)

        path = SimpleNamespace(
            getsize=getsize, basename=posixpath.basename, dirname=posixpath.dirname
        )
        return SimpleNamespace(
            makedirs=self.makedirs,
            replace=self.replace,
            link=self.link,
            remove=self.remove,
            fsync=self.fsync,
            open=lambda folder, _flags: folder,
            close=lambda _folder: None,
            O_RDONLY=0,
            path=path,
        )

    # A file system of fsspec

    def makedirs(self, _path: str, exist_ok: bool = False) -> None:
        assert exist_ok

    def invalidate_cache(self, _path: str) -> None:
        """Does nothing, as nothing is cached."""

    def cat_file(self, path: str) -> bytes:
        self.step()
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path].content

    def ls(self, folder: str, detail: bool) -> list[dict[str, Any]]:
        assert detail
        self.step()
        found: dict[str, int] = {}
        for path, file in self.files.items():
            if path.startswith(folder + "/"):
                name = path[len(folder) + 1 :].split("/")[0]
                found[f"{folder}/{name}"] = len(file.content)
        if not found:
            raise FileNotFoundError(folder)
        return [{"name": name, "size": size} for name, size in found.items()]

    def put_file(self, source: str, target: str) -> None:
        """Puts a file, at once in an object store, elsewhere in two parts."""
        self.step()
        whole = self.files[source].content
        if self.protocol != "s3":
            part = File()
            part.content, part.synced = whole[: len(whole) // 2], len(whole) // 2
            self._put(target, part)
            self.step()
        file = File()
        file.content, file.synced = whole, len(whole)
        self._put(target, file)

    def exists(self, path: str) -> bool:
        self.step()
        return path in self.files

    def mv(self, source: str, target: str) -> None:
        self.step()
        if target in self.files:
            raise FileExistsError(target)
        file = self.files.pop(source, None)
        if file is None:
            raise FileNotFoundError(source)
        self._put(target, file)

    def rm_file(self, path: str) -> None:
        self.remove(path)

    def rm(self, folder: str, recursive: bool) -> None:
        assert recursive
        self.step()
        paths = [path for path in self.files if path.startswith(folder + "/")]
        if not paths:
            raise FileNotFoundError(folder)
        for path in paths:
            del self.files[path]


def next_hex() -> SimpleNamespace:
    """Stands for `uuid.uuid4`."""
    STAGE.ids += 1
    return SimpleNamespace(hex=f"{STAGE.ids:012x}")

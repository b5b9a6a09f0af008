"""Checkpoint folders: their numbers, how one becomes visible, and the manifest inside.

A checkpoint is a folder ``<directory>/<name>-<n>`` with a ``manifest.json``; the default name is
``ckpt``. The folder is written under another name, its manifest last, and renamed when complete.
Only one program at a time may save into a directory, but several of its saves may be in flight.
Knows nothing of variables. Invariant: a folder with such a name and a manifest is whole, whichever
process was killed at whatever moment, and a checkpoint that it replaces was whole until then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from dataservice.runtime.arguments import check_optional, check_text, path_of
from dataservice.runtime.folders import sync_folder
from dataservice.runtime.identity import new_id
from pstrain.errors import DataLossError, InvalidArgumentError, MissingFileError
from pstrain.failpoints import reached
from pstrain.output.result_files import naming
from pstrain.paramserver.output_file import written_into

FORMAT = 6
# Older formats lack checksums of pieces, tables in several files, or a checksum of the manifest.
_OLDER = (3, 4, 5)

_FILE = "manifest.json"
_NAME = re.compile(r"[^.].*-(\d+)")
_PARTIAL = ".partial-"

Path = str | os.PathLike[str]

_lock = threading.Lock()
_under_way: dict[str, int] = {}
"""The folders of this process's saves in flight, and the numbers of their checkpoints."""


def checkpoints(directory: Path) -> list[str]:
    """Returns the paths of the checkpoints in ``directory``, oldest first; it may be missing."""
    directory = path_of(directory, "directory")
    paths = (os.path.join(directory, name) for _, name in _numbered(directory))
    return [path for path in paths if os.path.exists(os.path.join(path, _FILE))]


def number_of(path: str) -> int:
    """Returns the number at the end of a checkpoint's name."""
    return int(os.path.basename(path).rpartition("-")[2])


def name_of(path: Path) -> str:
    """Returns a checkpoint's name without its number."""
    return os.path.basename(os.fspath(path)).rpartition("-")[0]


def saved_at_s(path: str) -> float:
    """Returns when the checkpoint at ``path`` was completed, by the clock of its file system."""
    return os.stat(os.path.join(path, _FILE)).st_mtime


def latest_checkpoint(directory: Path) -> str | None:
    """Returns the path of the newest checkpoint in ``directory``, or None."""
    return next(reversed(checkpoints(directory)), None)


def find(path: Path) -> str:
    """Returns the checkpoint at ``path``: that folder itself, or the newest in a directory.

    Raises MissingFileError if there is none.
    """
    path = path_of(path, "the path of a checkpoint")
    if os.path.basename(path) == _FILE:
        path = os.path.dirname(path)
    if os.path.exists(os.path.join(path, _FILE)):
        return path
    found = latest_checkpoint(path)
    if found is None:
        raise MissingFileError(
            f"no checkpoint at {path!r}: expected a folder ckpt-<n> with {_FILE}, or a directory "
            f"of such folders"
        )
    return found


def no_folder(directory: str) -> InvalidArgumentError:
    """Returns the error for a checkpoint directory whose path is a file, or is inside one."""
    return InvalidArgumentError(
        f"no checkpoints can be in {directory!r}, which is, or lies in, a file: name a folder"
    )


class PartialCheckpoint:
    """A checkpoint that is not visible yet: a ``folder`` to fill, and the final ``path``.

    ``number`` None means one above the highest in ``directory``. An existing checkpoint of that
    name will be replaced. The constructor removes leftovers of saves that were killed. The caller
    must call :meth:`end`.
    """

    def __init__(self, directory: Path, name: str, number: int | None) -> None:
        check_name(name, number)
        directory = os.path.abspath(path_of(directory, "directory"))
        with written_into(directory), _lock:
            _make_directory(directory)
            _remove_partial(directory)
            if number is None:
                number = 1 + max(_taken_numbers(directory), default=0)
            self.number = int(number)
            self.path = os.path.join(directory, f"{name}-{number}")
            self.folder = os.path.join(directory, f"{_PARTIAL}{new_id('ckpt')}")
            os.mkdir(self.folder)
            _under_way[self.folder] = number

    def commit(self, contents: Mapping[str, Any]) -> None:
        """Writes the manifest and makes the checkpoint visible, in one step.

        ResourceExhaustedError if the disk is full or fails.
        """
        with written_into(os.path.dirname(self.path)):
            self._commit(contents)

    def _commit(self, contents: Mapping[str, Any]) -> None:
        reached("checkpoint_commit")
        manifest = _summed({"format": FORMAT, "number": self.number, **contents})
        _write_synced(os.path.join(self.folder, _FILE), json.dumps(manifest, indent=1))
        sync_folder(self.folder)
        reached("checkpoint_commit")
        if os.path.exists(os.path.join(self.path, _FILE)):
            _replace_contents(self.folder, self.path)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
            os.rename(self.folder, self.path)
        reached("checkpoint_commit")
        sync_folder(os.path.dirname(self.path))

    def end(self) -> None:
        """Removes the folder, unless it was committed. Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with _lock:
            _under_way.pop(self.folder, None)


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise no_folder(directory) from error


def _replace_contents(folder: str, target: str) -> None:
    """Moves files beside those of the older checkpoint, then replaces its manifest by the new one.

    The old files are removed last.
    """
    old = os.listdir(target)
    for name in os.listdir(folder):
        if name != _FILE:
            os.rename(os.path.join(folder, name), os.path.join(target, name))
    sync_folder(target)
    reached("checkpoint_commit")
    os.replace(os.path.join(folder, _FILE), os.path.join(target, _FILE))
    sync_folder(target)
    for name in old:
        if name != _FILE:
            shutil.rmtree(os.path.join(target, name), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def read(path: str) -> dict[str, Any]:
    """Returns the manifest of the checkpoint at ``path``.

    Raises DataLossError if it is damaged, and InvalidArgumentError for an unknown format.
    """
    file = os.path.join(path, _FILE)
    try:
        with open(file, encoding="utf-8") as stream:
            manifest = json.load(stream)
        found = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"{file} is damaged ({error}); restore an older checkpoint") from error
    if found not in (FORMAT, *_OLDER):
        raise InvalidArgumentError(
            f"{file} has format {found}, this version reads {_OLDER[0]} to {FORMAT}: use the "
            f"version of pstrain that wrote it"
        )
    if found == FORMAT and manifest != _summed(manifest):
        raise DataLossError(
            f"{file} is damaged: its contents are not those of its checksum; restore an older "
            "checkpoint"
        )
    # Older checkpoints store a variable with several names under one, and do not list the others.
    whole = {"aliases": {}, **manifest}
    for part in ("objects", "saved", "aliases"):
        if not isinstance(whole.get(part), dict):
            raise DataLossError(f"{file} is damaged (no {part}); restore an older checkpoint")
    return whole


def remove(path: str) -> None:
    """Removes a checkpoint; makes it invisible before it removes the files."""
    doomed = os.path.join(os.path.dirname(path), f"{_PARTIAL}{new_id('old')}")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def check_json(contents: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError if a manifest, which is JSON, cannot hold ``contents``."""
    try:
        json.dumps(contents)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"a state_dict or get_config holds something that JSON cannot: {error}"
        ) from error
    for key in _keys(contents):
        if not isinstance(key, str):
            raise InvalidArgumentError(
                f"a state_dict or get_config has the key {key!r}, which JSON would make text: use "
                f"{str(key)!r}, or a list of pairs"
            )


def _keys(value: Any) -> Iterator[Any]:
    """Yields the keys of all dicts in ``value``, at any depth."""
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list | tuple):
            yield from _keys(item)


def _summed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest, in its JSON form, with the checksum of its contents."""
    rest = json.loads(json.dumps({**manifest, "checksum": None}))
    text = json.dumps(rest, sort_keys=True)
    return {**rest, "checksum": zlib.crc32(text.encode())}


def write_file(folder: str, name: str, text: str) -> None:
    """Writes a file beside the checkpoints; a reader sees either the old or the new file, whole."""
    partial = os.path.join(folder, f"{_PARTIAL}{new_id('file')}")
    with _lock, naming(os.path.join(folder, name)):
        _write_synced(partial, text)
        os.replace(partial, os.path.join(folder, name))


def _write_synced(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def check_name(name: str, number: int | None = None) -> None:
    """Raises InvalidArgumentError if a checkpoint's folder cannot have this name or number."""
    check_text("the name of a checkpoint", name)
    if name.startswith(".") or os.path.basename(name) != name:
        raise InvalidArgumentError(f"not a name for a checkpoint's folder: {name!r}")
    check_optional(0, **{"the number of a checkpoint": number})


def _numbered(directory: Path) -> list[tuple[int, str]]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise no_folder(os.fspath(directory)) from error
    return sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))


def _taken_numbers(directory: str) -> Iterator[int]:
    yield from (number for number, _ in _numbered(directory))
    for folder, number in _under_way.items():
        if os.path.dirname(folder) == directory:
            yield number


def _remove_partial(directory: str) -> None:
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith(_PARTIAL) and path not in _under_way:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                # Another thread may have just removed it, for example a sweep of old checkpoints.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

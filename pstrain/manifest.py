"""Checkpoint folders: their numbers, how one becomes visible, and the manifest inside.

``<directory>/<name>-<n>/manifest.json`` makes a checkpoint, ``ckpt-<n>`` unless it is named; the
folder is written under another name and renamed when complete. Knows nothing of variables.
Invariant: a folder with such a name and a manifest is whole, whatever was killed when. One program
at a time saves into a directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dataservice.runtime.identity import new_id
from pstrain.errors import DataLossError, InvalidArgumentError, NotFoundError

FORMAT = 1

_FILE = "manifest.json"
_NAME = re.compile(r"[^.].*-(\d+)")
_PARTIAL = ".partial-"

Path = str | os.PathLike[str]


def checkpoints(directory: Path) -> list[str]:
    """Paths of the checkpoints in ``directory``, oldest first; none if it does not exist."""
    paths = (os.path.join(directory, name) for _, name in _numbered(directory))
    return [path for path in paths if os.path.exists(os.path.join(path, _FILE))]


def number_of(path: Path) -> int:
    """The number at the end of a checkpoint's name."""
    match = _NAME.fullmatch(os.path.basename(os.fspath(path)))
    if match is None:
        raise InvalidArgumentError(f"a checkpoint is named <name>-<number>, got {path!r}")
    return int(match[1])


def saved_at_s(path: str) -> float:
    """When the checkpoint at ``path`` was completed, by its file system's clock."""
    return os.stat(os.path.join(path, _FILE)).st_mtime


def latest_checkpoint(directory: Path) -> str | None:
    """Path of the newest checkpoint in ``directory``, or None."""
    return next(reversed(checkpoints(directory)), None)


def find(path: Path) -> str:
    """The checkpoint at ``path``: one itself, or the newest in a directory.

    Raises NotFoundError when there is none.
    """
    path = os.fspath(path)
    if os.path.basename(path) == _FILE:
        path = os.path.dirname(path)
    if os.path.exists(os.path.join(path, _FILE)):
        return path
    found = latest_checkpoint(path)
    if found is None:
        raise NotFoundError(
            f"no checkpoint at {path!r}: expected a folder ckpt-<n> with {_FILE}, or a directory "
            f"of such folders"
        )
    return found


@contextmanager
def new_checkpoint(
    directory: Path, name: str = "ckpt", number: int | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A folder to fill, and the manifest to fill in; committed when the scope ends without error.

    The manifest's ``path`` is where the checkpoint will be; ``number`` None: one above the highest
    there. A checkpoint of that name is replaced. Leftovers of saves that were killed are removed.
    """
    _check_name(name, number)
    directory = os.path.abspath(directory)
    os.makedirs(directory, exist_ok=True)
    _remove_partial(directory)
    if number is None:
        number = 1 + max((found for found, _ in _numbered(directory)), default=0)
    target = os.path.join(directory, f"{name}-{number}")
    folder = os.path.join(directory, f"{_PARTIAL}{new_id('ckpt')}")
    os.mkdir(folder)
    manifest: dict[str, Any] = {"path": target}
    try:
        yield folder, manifest
        manifest.pop("path")
        _write(folder, {"format": FORMAT, "number": number, **manifest})
        if os.path.exists(target):
            remove(target)
        os.rename(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _sync(directory)


def read(path: str) -> dict[str, Any]:
    """The manifest of the checkpoint at ``path``; DataLossError if it cannot be understood."""
    file = os.path.join(path, _FILE)
    try:
        with open(file, encoding="utf-8") as stream:
            manifest = json.load(stream)
        found = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"{file} is damaged ({error}); restore an older checkpoint") from error
    if found != FORMAT:
        raise InvalidArgumentError(
            f"{file} has format {found}, this version reads {FORMAT}: use the version of pstrain "
            f"that wrote it"
        )
    return dict(manifest)


def remove(path: str) -> None:
    """Removes a checkpoint, which becomes invisible before its files go."""
    doomed = os.path.join(os.path.dirname(path), f"{_PARTIAL}{new_id('old')}")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _write(folder: str, manifest: dict[str, Any]) -> None:
    try:
        text = json.dumps(manifest, indent=1)
    except TypeError as error:
        raise InvalidArgumentError(
            f"a state_dict or get_config holds something that JSON cannot: {error}"
        ) from error
    _write_synced(os.path.join(folder, _FILE), text)
    _sync(folder)


def write_file(folder: str, name: str, text: str) -> None:
    """Writes a file beside the checkpoints; readers see the old one or the new one, whole."""
    partial = os.path.join(folder, f"{_PARTIAL}{new_id('file')}")
    _write_synced(partial, text)
    os.replace(partial, os.path.join(folder, name))


def _write_synced(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_name(name: str, number: int | None) -> None:
    if not name or name.startswith(".") or os.path.basename(name) != name:
        raise InvalidArgumentError(f"not a name for a checkpoint's folder: {name!r}")
    if number is not None and number < 0:
        raise InvalidArgumentError(f"the number of a checkpoint is not negative, got {number}")


def _numbered(directory: Path) -> list[tuple[int, str]]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))


def _remove_partial(directory: str) -> None:
    for name in os.listdir(directory):
        if name.startswith(_PARTIAL):
            path = os.path.join(directory, name)
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

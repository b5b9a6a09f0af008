"""Checkpoint folders: their numbers, how one becomes visible, and the manifest inside.

``<directory>/ckpt-<n>/manifest.json`` makes a checkpoint; the folder is written under another name
and renamed when complete. Knows nothing of variables. Invariant: a folder named ``ckpt-<n>`` is
whole, whatever was killed when. One program at a time saves into a directory.
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
_NAME = re.compile(r"ckpt-(\d+)")
_PARTIAL = ".partial-"

Path = str | os.PathLike[str]


def checkpoints(directory: Path) -> list[str]:
    """Paths of the checkpoints in ``directory``, oldest first; none if it does not exist."""
    paths = (os.path.join(directory, f"ckpt-{number}") for number in _numbers(directory))
    return [path for path in paths if os.path.exists(os.path.join(path, _FILE))]


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
def new_checkpoint(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A folder to fill, and the manifest to fill in; committed when the scope ends without error.

    The manifest's ``path`` is where the checkpoint will be. Leftovers of saves that were killed
    are removed.
    """
    directory = os.path.abspath(directory)
    os.makedirs(directory, exist_ok=True)
    _remove_partial(directory)
    number = 1 + max(_numbers(directory), default=0)
    target = os.path.join(directory, f"ckpt-{number}")
    folder = os.path.join(directory, f"{_PARTIAL}{new_id('ckpt')}")
    os.mkdir(folder)
    manifest: dict[str, Any] = {"path": target}
    try:
        yield folder, manifest
        manifest.pop("path")
        _write(folder, {"format": FORMAT, "number": number, **manifest})
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
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    _sync(folder)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _numbers(directory: Path) -> list[int]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def _remove_partial(directory: str) -> None:
    for name in os.listdir(directory):
        if name.startswith(_PARTIAL):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)

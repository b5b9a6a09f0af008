"""Finding input files, local or at any fsspec URL.

Responsible for turning paths, directories, globs and URLs into a list of files with sizes and
versions, and for noticing that a file has changed since then. Opens no file and knows no format.
Invariant: the list is in the order given; the files of each glob and directory are sorted by path.
"""

from __future__ import annotations

import datetime
import glob
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from dataservice.dataset.sources.globs import expanded, files_below, is_hidden
from dataservice.dataset.sources.paths import (
    is_local,
    looked_in,
    named_errors,
    parts_of_chain,
    unreadable,
)
from dataservice.errors import FailedPreconditionError, MissingFileError, SchemaError, SourceError
from dataservice.sharding import Split

T = TypeVar("T")

_OTHER_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class InputFile(NamedTuple):
    """A file as it was found; `version` changes when the file changes."""

    path: str
    size_bytes: int
    version: str

    def as_split(self) -> Split:
        """Returns the whole file as one split, whose number of rows is not known."""
        return Split(path=self.path, size_bytes=self.size_bytes, version=self.version)


def find_files(
    paths: tuple[str, ...],
    suffixes: tuple[str, ...],
    options: Mapping[str, Any] | None,
    on_error: str = "raise",
) -> Iterator[InputFile]:
    """Yields the files that `paths` name, looked up when the iterator reaches them.

    A directory stands for the files below it whose names end in one of `suffixes`, except hidden
    ones. SourceError for a glob or a directory without a match, and for a path that does not exist;
    with `on_error` "skip", such a path is yielded all the same, and reading it fails.
    """
    for _, file in find_in_each(paths, suffixes, options, on_error):
        yield file


def find_in_each(
    paths: tuple[str, ...],
    suffixes: tuple[str, ...],
    options: Mapping[str, Any] | None,
    on_error: str = "raise",
) -> Iterator[tuple[str, InputFile]]:
    """Yields the files as `find_files` does, each with that one of `paths` that names it."""
    for path in paths:
        find = _find_local if is_local(path) else _find_remote
        try:
            for file in find(path, suffixes, options or {}):
                yield path, file
        except SourceError:
            if on_error != "skip" or glob.has_magic(path) or os.path.isdir(path):
                raise
            yield path, InputFile(path, 0, "missing")


def first_readable(
    files: Iterable[InputFile],
    on_error: str,
    read: Callable[[InputFile], T],
    is_enough: Callable[[T], bool] = lambda _: True,
) -> T:
    """Returns the result of `read` for the first file; with "skip", for the first readable one.

    If `is_enough` rejects that result, returns the first result that it accepts, if there is one.
    FailedPreconditionError if no file is readable.
    """
    failure: SourceError | None = None
    rejected: list[T] = []
    for file in files:
        try:
            if is_local(file.path):
                _local_status(file.path)  # opening a pipe, which "skip" lets through, may block
            found = read(file)
        except SourceError as error:
            if on_error != "skip":
                raise
            failure = failure or error
            continue
        if is_enough(found):
            return found
        rejected = rejected or [found]
    if rejected:
        return rejected[0]
    raise FailedPreconditionError(
        f"none of the files can be read on this machine; the first error: {failure}"
    )


def _find_local(
    path: str, suffixes: tuple[str, ...], _options: Mapping[str, Any]
) -> Iterator[InputFile]:
    if glob.has_magic(path) and not os.path.exists(path):
        yield from _matching_files(path)
    elif os.path.isdir(path):
        try:
            matches = sorted(name for name in files_below(path) if name.endswith(suffixes))
        except OSError as error:
            raise unreadable(str(error.filename), error) from error
        _require_matches(matches, path, suffixes)
        yield from map(_local_file, matches)
    else:
        yield _local_file(path)


def _matching_files(pattern: str) -> Iterator[InputFile]:
    """Yields the files that a glob names; calls stat once for each, as there may be a million."""
    found = False
    for name in sorted(set(expanded(pattern))):
        try:
            status = os.stat(name)
        except OSError:
            # A dangling link, for example.
            continue
        if stat.S_ISREG(status.st_mode):
            found = True
            yield _as_found(name, status)
    if not found:
        _require_matches([], pattern)


def _local_file(path: str) -> InputFile:
    return _as_found(path, _local_status(path))


def _local_status(path: str) -> os.stat_result:
    """Returns the status of a file; SourceError if it is a pipe or the like, which may block."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path, _OTHER_KINDS.get(stat.S_IFMT(status.st_mode), "no file"))
    return status


def _no_file(path: str, kind: str) -> SourceError:
    return SourceError(
        f"{path!r} is {kind}, and data are read from files, which can be read again; write what it "
        "gives to a file, or move it elsewhere"
    )


def _as_found(path: str, status: os.stat_result) -> InputFile:
    return InputFile(path, status.st_size, str(status.st_mtime_ns))


def _find_remote(
    path: str, suffixes: tuple[str, ...], options: Mapping[str, Any]
) -> Iterator[InputFile]:
    with named_errors(path):
        files, root = _file_system(path, options)
        # A listing has sizes and versions, so that no request is needed for each file.
        if glob.has_magic(root):
            matches = files.glob(root, detail=True)
            found = {name: info for name, info in matches.items() if _is_file(files, name, info)}
            _require_matches(list(found), path)
        elif files.isdir(root):
            below = files.find(root, detail=True)
            found = {
                name: info
                for name, info in below.items()
                if name.endswith(suffixes) and not _is_hidden_below(root, name)
            }
            _require_matches(list(found), path, suffixes)
        else:
            found = {root: files.info(root)}
        for name in sorted(found):
            info = found[name]
            if info.get("type") == "other":
                info = files.info(name)
                if info["type"] == "other":
                    raise _no_file(name, "a named pipe, a socket or a device")
            yield _remote_file(_url_of(name, path, files), info)


def _url_of(name: str, path: str, files: Any) -> str:
    """Returns the URL of the file that was found under `name` at the URL `path`."""
    pattern, rest = parts_of_chain(path)
    if not rest:
        return str(files.unstrip_protocol(name))
    return f"{pattern.partition('://')[0]}://{name}::{rest}"


def _is_file(files: Any, name: str, info: Mapping[str, Any]) -> bool:
    """True for a file that is listed, or a link to one, which a listing of file:// calls other."""
    return info["type"] == "file" or (info["type"] == "other" and bool(files.isfile(name)))


def _is_hidden_below(root: str, name: str) -> bool:
    return any(is_hidden(part) for part in name.removeprefix(root).split("/"))


def _file_system(path: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Returns the file system of a URL and that system's name for the path, with a fresh cache."""
    import fsspec  # not needed for local files

    files, root = fsspec.core.url_to_fs(path, **(options or {}))
    # fsspec keeps file systems for the whole process, and those of object stores cache listings: a
    # file that has changed in the meantime would look unchanged.
    files.invalidate_cache(root)
    return files, root


def _remote_file(path: str, info: Mapping[str, Any]) -> InputFile:
    marks = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
    version = next((info[mark] for mark in marks if info.get(mark) is not None), "")
    if isinstance(version, datetime.datetime):
        # ListingLimit of some file systems give the same time as a number of seconds.
        version = version.timestamp()
    return InputFile(path, int(info.get("size") or 0), str(version))


def _require_matches(matches: list[str], path: str, suffixes: tuple[str, ...] = ()) -> None:
    if not matches:
        # The suffix "" stands for all files.
        wanted = f" that ends in {' or '.join(suffixes)}" if any(suffixes) else ""
        raise MissingFileError(
            f"no file{wanted} matches {path!r}{looked_in(path)}; check the path and the pattern"
        )


def read_unchanged(
    split: Split, options: Mapping[str, Any] | None, rows: Iterator[T]
) -> Generator[T, None, None]:
    """Yields `rows`, which come from the file of `split`; SourceError if it is not as planned.

    Looks before the first row, and after the last one and after an error too if the file is local:
    stores replace objects as a whole. A local file that is deleted or replaced by another in the
    meantime is read to its end.
    """
    opened = check_unchanged(split, options)
    try:
        yield from rows
    except (SourceError, SchemaError):
        _check_not_written(split, opened)
        raise
    _check_not_written(split, opened)


def _check_not_written(split: Split, opened: os.stat_result | None) -> None:
    assert split.path is not None
    if opened is None:
        return
    try:
        now = _local_status(split.path)
    except MissingFileError:
        return
    if (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino):
        _check_version(split, _as_found(split.path, now))


def check_unchanged(split: Split, options: Mapping[str, Any] | None) -> os.stat_result | None:
    """Raises SourceError if the file of `split` has changed since it was planned.

    Returns the status of a local file.
    """
    assert split.path is not None
    if is_local(split.path):
        status = _local_status(split.path)
        _check_version(split, _as_found(split.path, status))
        return status
    with named_errors(split.path):
        files, root = _file_system(split.path, options)
        now = _remote_file(split.path, files.info(root))
    _check_version(split, now)
    return None


def _check_version(split: Split, now: InputFile) -> None:
    if (now.size_bytes, now.version) != (split.size_bytes, split.version):
        raise SourceError(
            f"{split.path!r} has changed since it was planned: it had {split.size_bytes} bytes, "
            f"version {split.version}, and now has {now.size_bytes}, version {now.version}; "
            "start a new iteration, and do not write to files that are being read"
        )

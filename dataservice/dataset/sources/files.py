"""Finding and opening input files, local or at any fsspec URL.

Responsible for turning what users write (paths, directories, globs, URLs) into a list of files
with size and version, and for errors that name the file and the remedy. It knows no file format.
Invariant: the list is in the order given, each glob and directory sorted by path.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import fsspec
import pyarrow as pa

from dataservice.dataset.sources.globs import expanded
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingFileError,
    SourceError,
)
from dataservice.sharding import Split

T = TypeVar("T")


class InputFile(NamedTuple):
    """A file as it was found: `version` changes when the file does."""

    path: str
    size_bytes: int
    version: str


def check_paths(paths: Any, source: str) -> tuple[str, ...]:
    """One or several paths as a tuple, also that of a row of `list_files`.

    InvalidArgumentError for none, or for what is no path.
    """
    if isinstance(paths, Mapping) and [type(value) for value in paths.values()] == [str]:
        (paths,) = paths.values()
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    if isinstance(paths, Mapping):
        raise InvalidArgumentError(
            f"{source} takes a path, a glob or a list of them, got the row {paths!r}; take the "
            'path out of it, as in row["path"]'
        )
    try:
        listed = tuple(os.fspath(path) for path in paths)
    except TypeError as error:
        raise InvalidTypeError(
            f"{source} takes a path, a glob or a list of them, got {paths!r}"
        ) from error
    if not listed:
        raise InvalidArgumentError(f"{source} got an empty list of paths")
    for path in listed:
        if not isinstance(path, str) or not path:
            raise InvalidTypeError(f"{source} got {path!r}, which is not a path")
    return listed


def check_storage_options(options: Any) -> None:
    """InvalidTypeError unless they are None or can travel as JSON. Never shows a value."""
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise InvalidTypeError(
            f"storage_options must be a dict by name, got {type(options).__name__}"
        )
    for name, value in options.items():
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"the names of storage_options must be text, got a {type(name).__name__}"
            )
        if isinstance(value, Mapping):
            check_storage_options(value)
        elif not (value is None or isinstance(value, bool | int | float | str)):
            raise InvalidTypeError(
                f"storage_options[{name!r}] must be text, a number, True, False, None or a dict "
                f"of these, got {type(value).__name__}: it travels to the data workers"
            )


def is_local(path: str) -> bool:
    """Whether the path is one of this machine's file system, not a URL."""
    return "://" not in path and "::" not in path


def find_files(
    paths: tuple[str, ...],
    suffixes: tuple[str, ...],
    options: Mapping[str, Any] | None,
    on_error: str = "raise",
) -> Iterator[InputFile]:
    """The files that `paths` name, looked up as the iterator gets to them.

    A directory stands for the files below it that end in one of `suffixes`. SourceError for a
    path that does not exist, unless `on_error` is "skip": reading it will fail then; and for a
    glob or a directory without a match.
    """
    for path in paths:
        find = _find_local if is_local(path) else _find_remote
        try:
            yield from find(path, suffixes, options or {})
        except SourceError:
            if on_error != "skip" or glob.has_magic(path) or os.path.isdir(path):
                raise
            yield InputFile(path, 0, "missing")


def first_readable(
    files: Iterable[InputFile],
    on_error: str,
    read: Callable[[InputFile], T],
    tells: Callable[[T], bool] = lambda _: True,
) -> T:
    """What `read` makes of the first file; with "skip", of the first that it can read.

    Where that does not tell what is asked for, of the first that `tells`, if there is one.
    """
    failure: SourceError | None = None
    silent: list[T] = []
    for file in files:
        try:
            found = read(file)
        except SourceError as error:
            if on_error != "skip":
                raise
            failure = failure or error
            continue
        if tells(found):
            return found
        silent = silent or [found]
    if silent:
        return silent[0]
    raise FailedPreconditionError(
        f"none of the files can be read on this machine; the first error: {failure}"
    )


def _find_local(
    path: str, suffixes: tuple[str, ...], _options: Mapping[str, Any]
) -> Iterator[InputFile]:
    if glob.has_magic(path) and not os.path.exists(path):
        yield from _matching_files(path)
    elif os.path.isdir(path):
        matches = sorted(
            os.path.join(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if _is_data(name, suffixes)
        )
        _require_matches(matches, path, suffixes)
        yield from map(_local_file, matches)
    else:
        yield _local_file(path)


def _is_data(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file of a directory is meant to be read, not hidden, or somebody's notes."""
    return path.endswith(suffixes) and not path.rpartition("/")[2].startswith((".", "_"))


def _matching_files(pattern: str) -> Iterator[InputFile]:
    """Those that a glob names; each is looked at once, since there may be a million."""
    found = False
    for name in sorted(set(expanded(pattern))):
        try:
            status = os.stat(name)
        except OSError:
            # A link to nothing, for example.
            continue
        if stat.S_ISREG(status.st_mode):
            found = True
            yield InputFile(name, status.st_size, str(status.st_mtime_ns))
    if not found:
        _require_matches([], pattern)


def _local_file(path: str) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return InputFile(path, status.st_size, str(status.st_mtime_ns))


def _find_remote(
    path: str, suffixes: tuple[str, ...], options: Mapping[str, Any]
) -> Iterator[InputFile]:
    with _named_errors(path):
        files, root = _file_system(path, options)
        # A listing has sizes and versions: no request for each file.
        if glob.has_magic(root):
            matches = files.glob(root, detail=True)
            found = {name: info for name, info in matches.items() if info["type"] == "file"}
            _require_matches(list(found), path)
        elif files.isdir(root):
            below = files.find(root, detail=True)
            found = {name: info for name, info in below.items() if _is_data(name, suffixes)}
            _require_matches(list(found), path, suffixes)
        else:
            found = {root: files.info(root)}
        for name in sorted(found):
            yield _remote_file(files.unstrip_protocol(name), found[name])


def _file_system(path: str, options: Mapping[str, Any] | None) -> tuple[Any, str]:
    """The file system of a URL, and its own name for the path. Looks at what is there now."""
    files, root = fsspec.core.url_to_fs(path, **(options or {}))
    # File systems are kept for the whole process, and object stores answer from what they listed
    # before: a file that has changed meanwhile would look as it did.
    files.invalidate_cache(root)
    return files, root


def _remote_file(path: str, info: Mapping[str, Any]) -> InputFile:
    marks = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
    version = next((info[mark] for mark in marks if info.get(mark) is not None), "")
    if isinstance(version, datetime.datetime):
        # Listings of some file systems have the same moment as a number of seconds.
        version = version.timestamp()
    return InputFile(path, int(info.get("size") or 0), str(version))


def _require_matches(matches: list[str], path: str, suffixes: tuple[str, ...] = ()) -> None:
    if not matches:
        # "" is the end of every name.
        wanted = f" that ends in {' or '.join(suffixes)}" if any(suffixes) else ""
        raise MissingFileError(
            f"no file{wanted} matches {path!r}{_looked_in(path)}; check the path and the pattern"
        )


def _looked_in(path: str) -> str:
    """Of a relative path, the folder of this process: data workers may have another one."""
    folder = ""
    if is_local(path) and not os.path.isabs(path):
        with contextlib.suppress(OSError):  # the folder itself is gone
            folder = os.getcwd()
    return folder and f" in {folder!r}, where this process runs; an absolute path holds in all"


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        # Packages for object stores have classes of their own, of no common base.
        raise unreadable(path, error) from error


def unreadable(path: str, error: BaseException) -> SourceError:
    """The error for a file that cannot be found or opened, with what to do about it."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            f"there is no file {path!r}{_looked_in(path)}; check the path, and that it exists on "
            "every machine that reads it"
        )
    if isinstance(error, PermissionError):
        remedy = "its owner and mode" if is_local(path) else "the credentials in storage_options="
        return SourceError(f"no permission to read {path!r}; check {remedy}")
    if isinstance(error, UnicodeEncodeError):
        return SourceError(f"the name of the file {path!r} is not UTF-8; rename it")
    if isinstance(error, ImportError):
        return SourceError(f"cannot read {path!r}: {error}; install the package for that protocol")
    return SourceError(f"cannot read {path!r}: {error}")


class _StoredFile:
    """A file of an object store, whose package has errors of its own in the middle of a read."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)  # type: ignore[no-any-return]
        except Exception as error:
            raise SourceError(
                f"{self._path!r} cannot be read any further, near byte {self._file.tell()}: the "
                f"store failed ({type(error).__name__}: {error}); look whether it can be reached, "
                "and read the file again"
            ) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _StoredFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()


@contextlib.contextmanager
def opened(path: str, options: Mapping[str, Any] | None) -> Iterator[Any]:
    """The file, open for reading; SourceError when it cannot be, or its store fails later."""
    if not is_local(path):
        with _named_errors(path):
            handle = _StoredFile(fsspec.open(path, "rb", **(options or {})).open(), path)
    else:
        try:
            # Not mapped into memory: a file cut short while mapped would kill the process.
            handle = pa.OSFile(path)
        except (OSError, UnicodeEncodeError) as error:
            raise unreadable(path, error) from error
    with handle:
        yield handle


def check_unchanged(split: Split, options: Mapping[str, Any] | None) -> None:
    """SourceError when the file of `split` is no longer the one that was planned."""
    assert split.path is not None
    if is_local(split.path):
        now = _local_file(split.path)
    else:
        with _named_errors(split.path):
            files, root = _file_system(split.path, options)
            now = _remote_file(split.path, files.info(root))
    if (now.size_bytes, now.version) != (split.size_bytes, split.version):
        raise SourceError(
            f"{split.path!r} has changed since it was planned: it had {split.size_bytes} bytes, "
            f"version {split.version}, and now has {now.size_bytes}, version {now.version}; "
            "start a new iteration, and do not write to files that are being read"
        )

"""Paths as users write them, local or fsspec URLs, and errors about the files that they name.

Responsible for checking paths and storage options before anything is looked up, and for errors that
name the path and the remedy. Accesses no file. Invariant: no message shows a value of the storage
options, which may be credentials.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dataservice.errors import InvalidArgumentError, InvalidTypeError, MissingFileError, SourceError


def check_paths(paths: Any, source: str) -> tuple[str, ...]:
    """Returns one or several paths as a tuple; accepts a row of `list_files`, too.

    InvalidArgumentError for an empty list, or for a value that is not a path.
    """
    if isinstance(paths, Mapping) and [type(value) for value in paths.values()] == [str]:
        (paths,) = paths.values()
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    if isinstance(paths, Mapping):
        got, remedy = "row", 'take the path out of it, as in row["path"]'
        if any(isinstance(value, np.ndarray) for value in paths.values()):
            got = "columns"
            remedy = "write interleave(fn, cycle_length=1), which calls fn with one row at a time"
        raise InvalidArgumentError(
            f"{source} takes a path, a glob or a list of them, got the {got} {paths!r}; {remedy}"
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
    """Raises InvalidTypeError unless the options are None or JSON-able. Never shows a value."""
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
    """True if the path is in this machine's file system, rather than a URL.

    A chain of URLs begins with a protocol and `::`, which may also be part of a file's name.
    """
    return "://" not in path and "::" not in path.partition("/")[0]


def parts_of_chain(path: str) -> tuple[str, str]:
    """Returns the URL that says which files are meant, and the rest of a chain of URLs, or "".

    In `zip://*.csv::s3://bucket/a.zip` that is the first. One that has no path, such as
    `simplecache::`, only keeps copies, and is left out.
    """
    first, _, rest = path.partition("::")
    return (first, rest) if "://" in first or not rest else parts_of_chain(rest)


def looked_in(path: str) -> str:
    """Returns a note on this process's folder if the path is relative, else "".

    Data workers may have another working directory.
    """
    folder = ""
    if is_local(path) and not os.path.isabs(path):
        with contextlib.suppress(OSError):  # the folder itself is gone
            folder = os.getcwd()
    return folder and f" in {folder!r}, where this process runs; an absolute path holds in all"


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Turns any error that the storage of `path` raises in the block into a SourceError."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        # The packages for object stores have error classes of their own without a common base.
        raise unreadable(path, error) from error


def unreadable(path: str, error: BaseException) -> SourceError:
    """Returns the error for a file that cannot be found or opened, with the remedy."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(
            f"there is no file {path!r}{looked_in(path)}; check the path, and that it exists on "
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

"""Opening input files, local or at any fsspec URL, for reading.

Knows neither how files are found nor what they hold. Invariant: every error of a file's storage,
on opening or in the middle of a read, becomes a SourceError that names the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from dataservice.dataset.sources.paths import is_local, named_errors, unreadable
from dataservice.errors import SourceError


class _StoredFile:
    """A file of an object store, whose package may raise errors of its own during a read."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)  # type: ignore[no-any-return]
        except Exception as error:
            raise SourceError(
                f"{self._path!r} cannot be read any further, near byte {self._file.tell()}: the "
                f"store failed ({type(error).__name__}: {error}); check that it can be reached, "
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
    """Opens a file for reading; SourceError if that fails, or if its storage fails later."""
    if not is_local(path):
        import fsspec  # not needed for local files

        with named_errors(path):
            handle = _StoredFile(fsspec.open(path, "rb", **(options or {})).open(), path)
    else:
        try:
            # Not mapped into memory: a mapped file that gets truncated would kill the process.
            handle = pa.OSFile(path)
        except (OSError, UnicodeEncodeError) as error:
            raise unreadable(path, error) from error
    with handle:
        yield handle

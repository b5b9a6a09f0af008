"""Opening input files, local or at any fsspec URL, and what their bytes are wrapped in.

That is a compression, or the encoding of a text. Knows neither how files are found nor what they
hold. Invariant: every error of a file's storage, on opening or in the middle of a read, becomes a
SourceError that names the file.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.sources.paths import is_local, named_errors, parts_of_chain, unreadable
from dataservice.errors import InvalidArgumentError, SourceError

COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_NOT_READ: Final = (".xz", ".lzma", ".br", ".zip", ".7z")
UTF_8: Final = "utf-8"


class _StoredFile:
    """A file of an object store, whose package may raise errors of its own during a read."""

    def __init__(self, openable: Any, path: str) -> None:
        # Kept, since the file system of an archive closes the archive when nobody holds it.
        self._openable = openable
        self._file = openable.open()
        self._path = path

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except Exception as error:
            raise SourceError(
                f"{self._path!r} cannot be read any further, near byte {self._file.tell()}: the "
                f"store failed ({type(error).__name__}: {error}); check that it can be reached, "
                "and read the file again"
            ) from error

    def read_ahead_at_most(self, size_bytes: int) -> None:
        """Bounds what fsspec reads beyond what it is asked for, by default 50 MiB of S3."""
        from fsspec.caching import BytesCache, ReadAheadCache

        cache = getattr(self._file, "cache", None)
        if isinstance(cache, BytesCache | ReadAheadCache):
            cache.blocksize = min(cache.blocksize, size_bytes)

    def can_seek(self) -> bool:
        """True if it goes to a byte that it has not read yet. Those that do not may say so."""
        try:
            self._file.seek(1)
        except (OSError, ValueError, NotImplementedError):
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _StoredFile:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()


@contextlib.contextmanager
def opened(
    path: str, options: Mapping[str, Any] | None, ahead_bytes: int | None = None
) -> Iterator[Any]:
    """Opens a file for reading; SourceError if that fails, or if its storage fails later.

    With `ahead_bytes`, at most so many bytes are read from a store before they are asked for.
    """
    if not is_local(path):
        import fsspec  # not needed for local files

        with named_errors(path):
            handle = _StoredFile(fsspec.open(path, "rb", **(options or {})), path)
            if ahead_bytes is not None:
                handle.read_ahead_at_most(ahead_bytes)
    else:
        try:
            # Not mapped into memory: a mapped file that gets truncated would kill the process.
            handle = pa.OSFile(path)
        except (OSError, UnicodeEncodeError) as error:
            raise unreadable(path, error) from error
    with handle:
        yield handle


def can_seek(path: str, options: Mapping[str, Any] | None) -> bool:
    """True unless the store of a file at a URL gives its bytes from the first one on only.

    Also true if the file cannot be opened, which whoever reads it will tell.
    """
    with contextlib.suppress(SourceError), opened(path, options) as handle:
        return bool(handle.can_seek())
    return True


def is_compressed(path: str, options: Mapping[str, Any] | None) -> bool:
    """True if the bytes of a file are told by those before: it is compressed, or in an archive."""
    is_undone = bool((options or {}).get("compression"))
    return is_undone or "::" in path or _suffix(path) in (*COMPRESSIONS, *_NOT_READ)


def decompressed(handle: Any, path: str) -> Any:
    """Returns `handle`, decompressed if the suffix of `path` names a compression.

    Raises SourceError for a compression that cannot be read.
    """
    suffix = _suffix(path)
    if suffix in _NOT_READ:
        raise SourceError(
            f"{path!r} is compressed as {suffix}, which is not read; {', '.join(COMPRESSIONS)} are"
        )
    compression = COMPRESSIONS.get(suffix)
    return pa.CompressedInputStream(handle, compression) if compression else handle


def _suffix(path: str) -> str:
    name = path if is_local(path) else parts_of_chain(path)[0]
    return os.path.splitext(name)[1].lower()


def check_encoding(encoding: Any) -> None:
    """Raises InvalidArgumentError unless Python knows a text encoding of that name."""
    try:
        if isinstance(encoding, str):
            "a".encode(encoding)
            return
    except (LookupError, UnicodeError):
        pass
    raise InvalidArgumentError(
        f"encoding must be the name of an encoding, such as 'utf-8', 'latin-1' or 'cp1252', got "
        f"{encoding!r}"
    )


def is_utf_8(encoding: str) -> bool:
    """True if that is a name of UTF-8."""
    return codecs.lookup(encoding).name == UTF_8


def in_utf_8(handle: Any, encoding: str) -> Any:
    """Returns a file that yields as UTF-8 the text that `handle` holds in `encoding`."""
    if is_utf_8(encoding):
        return handle
    stream = handle if isinstance(handle, pa.NativeFile) else pa.PythonFile(handle, "r")
    return pa.transcoding_input_stream(stream, encoding, UTF_8)

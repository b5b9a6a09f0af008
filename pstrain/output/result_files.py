"""Files of results that grow while training runs, for people and other programs to read.

Knows nothing of what is written. Invariants: a file consists of whole lines, although the disk is
full for a while; an error of the disk names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Raises the block's OSErrors with ``path``: writes do not know what they write to."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, path) from error


def append(path: str, text: str) -> None:
    """Adds ``text`` to a file, or nothing of it if there is no room; makes a missing file.

    A pipe or a terminal, such as /dev/stdout, takes it too.
    """
    with naming(path), open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END) if file.seekable() else None
        rest = memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            if before is not None:
                file.truncate(before)
            raise

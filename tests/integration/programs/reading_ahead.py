"""Stops reading a CSV file in the middle, while Arrow reads ahead on a thread of its own.

The first argument says what ends then: the program, or ("fork") a child forked from it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from dataservice import Dataset
from dataservice.dataset.sources import csv, opening

is_read = threading.Event()


class SlowHandle:
    """A file whose reads are slow, as an object store's are."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        is_read.set()
        time.sleep(0.05)
        return bytes(self._file.read(size))


@contextlib.contextmanager
def opened(path: str, options: Any, ahead_bytes: int | None = None) -> Iterator[SlowHandle]:
    with opening.opened(path, options, ahead_bytes) as file:
        yield SlowHandle(file)


def main(kind: str, folder: pathlib.Path) -> None:
    csv.opened = opened  # type: ignore[assignment]
    path = folder / "a.csv"
    path.write_text("x\n" + "\n".join(map(str, range(2_000_000))) + "\n")
    global batches  # lives until the interpreter ends, as a script's variables do
    batches = iter(Dataset.from_csv(str(path)))
    next(batches)
    is_read.clear()
    assert is_read.wait(30)
    if kind == "fork":
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            print("the child has ended", flush=True)
        else:
            batches.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], pathlib.Path(folder))

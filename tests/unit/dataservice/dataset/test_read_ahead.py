"""Files that Arrow reads ahead: closing one waits for the read in flight."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv as pacsv

from dataservice import Dataset
from dataservice.dataset.sources import opening, read_ahead
from dataservice.dataset.sources.csv_text import CsvText, Quotes
from dataservice.dataset.sources.read_ahead import ReadAheadBatches, ReadAheadFile

TIMEOUT_S = 30.0
ROWS = 400_000


class Handle:
    """A file whose reads block until `may_go_on`."""

    def __init__(self) -> None:
        self.is_read, self.may_go_on = threading.Event(), threading.Event()
        self.during: Callable[[], None] = lambda: None

    def read(self, size: int) -> bytes:
        self.is_read.set()
        assert self.may_go_on.wait(TIMEOUT_S)
        self.during()
        return b"x" * size


def on_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def csv_text(handle: Any) -> CsvText:
    return CsvText(handle, Quotes())


@pytest.mark.parametrize("kind", [ReadAheadFile, csv_text])
def test_closing_file_waits_for_read_in_flight(kind: Callable[[Any], ReadAheadFile]) -> None:
    handle = Handle()
    file = kind(handle)
    reader = on_thread(lambda: file.read(10))
    assert handle.is_read.wait(TIMEOUT_S)
    closer = on_thread(file.close)
    closer.join(0.05)
    assert closer.is_alive()
    handle.may_go_on.set()
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()
    reader.join(TIMEOUT_S)
    assert bytes(file.read(10)) == b""


def test_reading_closed_batches_raises_instead_of_ending() -> None:
    text = io.BytesIO(b"x\n" + b"1\n" * ROWS)
    batches = ReadAheadBatches(csv_text(text), pacsv.open_csv)
    reading = iter(batches)
    next(reading)
    batches.close()
    with pytest.raises(ValueError, match="closed"):
        next(reading)


def test_closing_batches_waits_until_read_buffers_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "_LET_GO_TIMEOUT_S", TIMEOUT_S)
    kept: list[Any] = []

    def open_reader(file: ReadAheadFile) -> Any:
        kept.append(file.read(3))
        return pacsv.open_csv(io.BytesIO(b"x\n1\n"))

    batches = ReadAheadBatches(ReadAheadFile(io.BytesIO(b"abc")), open_reader)
    closer = on_thread(batches.close)
    closer.join(0.05)
    assert closer.is_alive()
    kept.clear()
    closer.join(TIMEOUT_S)
    assert not closer.is_alive()


def test_the_end_of_the_program_waits_until_a_file_that_was_not_opened_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_ahead, "_LET_GO_TIMEOUT_S", TIMEOUT_S)
    at_exit = read_ahead._AtExit()
    monkeypatch.setattr(read_ahead, "_at_exit", at_exit)
    waits: list[Callable[[], object]] = []
    monkeypatch.setattr(
        read_ahead.atexit, "register", lambda wait, *given: waits.append(lambda: wait(*given))
    )
    kept: list[Any] = []

    def fail_to_open(file: ReadAheadFile) -> Any:
        kept.append(file.read(3))
        raise pa.ArrowInvalid("a row is too long")

    for _ in range(2):
        with contextlib.suppress(pa.ArrowInvalid):
            ReadAheadBatches(ReadAheadFile(io.BytesIO(b"abc")), fail_to_open)
    (wait,) = waits
    end = on_thread(wait)
    end.join(0.05)
    assert end.is_alive()
    kept.clear()
    end.join(TIMEOUT_S)
    assert not end.is_alive()


def test_file_may_be_closed_from_within_its_own_read() -> None:
    handle = Handle()
    file = ReadAheadFile(handle)
    handle.during = file.close
    handle.may_go_on.set()
    reader = on_thread(lambda: file.read(10))
    reader.join(TIMEOUT_S)
    assert not reader.is_alive()


class WatchedHandle:
    """A file with slow reads, each of which records whether the file was closed meanwhile."""

    def __init__(self, file: Any, reads: list[bool]) -> None:
        self._file = file
        self._reads = reads
        self.closed = threading.Event()

    def read(self, size: int) -> bytes:
        self._reads.append(self.closed.wait(0.02))
        return bytes(self._file.read(size))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_source_never_closes_file_that_arrow_is_reading(
    kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a.{kind}"
    lines = range(ROWS) if kind == "csv" else (json.dumps({"x": i}) for i in range(ROWS))
    path.write_text("\n".join(map(str, ["x", *lines] if kind == "csv" else lines)) + "\n")
    reads: list[bool] = []

    @contextlib.contextmanager
    def opened(path: str, options: Any, ahead_bytes: Any) -> Iterator[WatchedHandle]:
        with opening.opened(path, options, ahead_bytes) as file:
            handle = WatchedHandle(file, reads)
            try:
                yield handle
            finally:
                handle.closed.set()

    monkeypatch.setattr(f"dataservice.dataset.sources.{kind}.opened", opened)
    for _ in range(5):
        if kind == "csv":
            dataset = Dataset.from_csv(str(path))
        else:
            dataset = Dataset.from_json(str(path), block_size_bytes=1 << 18)
        assert dataset.schema.names == ["x"]
        with iter(dataset) as batches:
            next(batches)
    assert len(reads) >= 10
    assert not any(reads)


def test_error_on_its_way_does_not_make_closing_wait(caplog: pytest.LogCaptureFixture) -> None:
    text = io.BytesIO(b"x\n1\n" + b"2\n" * ROWS + b"garbage\n")
    types = pacsv.ConvertOptions(column_types={"x": pa.int64()})
    small = pacsv.ReadOptions(block_size=1 << 16)
    batches = ReadAheadBatches(
        csv_text(text), lambda file: pacsv.open_csv(file, small, convert_options=types)
    )
    with (
        caplog.at_level(logging.DEBUG, read_ahead.logger.name),
        pytest.raises(pa.ArrowInvalid),
        contextlib.closing(batches),
    ):
        list(batches)
    assert not caplog.messages

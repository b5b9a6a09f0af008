"""Files of results on a full disk, for which a limit on the size of files stands."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from pstrain.callbacks.csv_logger import CSVLogger
from pstrain.callbacks.event_file import EventFile
from pstrain.checkpoints import manifest
from pstrain.output.result_files import append, naming


@contextlib.contextmanager
def full_beyond(size_bytes: int) -> Iterator[None]:
    """No file can grow beyond ``size_bytes`` inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_line_that_finds_no_room_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lines"
    append(str(path), "one\n")
    with full_beyond(6), pytest.raises(OSError, match="lines") as caught:
        append(str(path), "second\n")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_text() == "one\n"
    append(str(path), "second\n")
    assert path.read_text() == "one\nsecond\n"


def test_lines_go_to_a_pipe_too_and_its_error_is_the_one_that_is_raised() -> None:
    receiver, sender = os.pipe()
    path = f"/dev/fd/{sender}"
    append(path, "one\n")
    assert os.read(receiver, 100) == b"one\n"
    with open(path, "ab") as other:
        os.close(receiver)
        with pytest.raises(BrokenPipeError):
            append(f"/dev/fd/{other.fileno()}", "two\n")
    os.close(sender)


def test_csv_logger_writes_whole_lines_and_names_its_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log.csv"
    log = CSVLogger(path)
    log.on_train_begin()
    log.on_epoch_begin(0)
    log.on_epoch_end(0, {"loss": 0.5})
    before = path.read_bytes()
    with full_beyond(len(before) + 2), pytest.raises(OSError, match=r"log\.csv"):
        log.on_epoch_end(1, {"loss": 0.25})
    assert path.read_bytes() == before == b"epoch,loss\r\n0,0.5\r\n"
    log.on_epoch_end(1, {"loss": 0.25})
    assert path.read_bytes() == before + b"1,0.25\r\n"


def test_event_file_names_itself(tmp_path: pathlib.Path) -> None:
    with full_beyond(4):
        events = EventFile(str(tmp_path))
        events.write(1, {"loss": 0.5})
        with pytest.raises(OSError, match=r"events\.out\.tfevents"):
            events.flush()
    events.close()


def test_file_beside_checkpoints_names_itself(tmp_path: pathlib.Path) -> None:
    with full_beyond(4), pytest.raises(OSError, match=r"best\.json"):
        manifest.write_file(str(tmp_path), "best.json", "{'loss': 0.5}")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "other"), OSError("odd")])
def test_error_that_names_a_file_or_has_no_number_stays_as_it_is(error: Any) -> None:
    with pytest.raises(OSError, match=r"gone|odd") as caught, naming("mine"):
        raise error
    assert caught.value is error

"""Checkpoint files hold what was written, through the page cache or past it."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from pstrain.paramserver import output_file as module
from pstrain.paramserver.output_file import OutputFile, size_and_checksum

DIRECT = getattr(os, "O_DIRECT", 0)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 8192)


def write(path: pathlib.Path, data: bytes, sizes: list[int]) -> OutputFile:
    with OutputFile(str(path)) as output:
        at = 0
        for size in sizes:
            output.write(data[at : at + size])
            at += size
        output.write(memoryview(data)[at:])
    return output


@pytest.mark.parametrize("size", [0, 1, 4096, 8191, 8192, 8193, 100_000, 131_072])
def test_output_file_contains_written_bytes_and_their_checksum(
    size: int, tmp_path: pathlib.Path
) -> None:
    data = np.random.default_rng(size).bytes(size)
    output = write(tmp_path / "file", data, [3, 0, 5000, 20_000])
    assert (tmp_path / "file").read_bytes() == data
    assert output.size_bytes == size
    assert size_and_checksum(str(tmp_path / "file")) == (size, output.checksum)


def test_checksum_depends_on_bytes_and_their_order_only(tmp_path: pathlib.Path) -> None:
    data = bytearray(np.random.default_rng(0).bytes(50_000))
    first = write(tmp_path / "1", bytes(data), [100]).checksum
    assert write(tmp_path / "2", bytes(data), [7, 30_000]).checksum == first
    data[40_000] ^= 1
    assert write(tmp_path / "3", bytes(data), []).checksum != first
    data[40_000] ^= 1
    swapped = bytes(data[8192:16_384] + data[:8192] + data[16_384:])
    assert write(tmp_path / "4", swapped, []).checksum != first


@pytest.mark.skipif(not DIRECT, reason="the system has no direct writes")
@pytest.mark.parametrize("refused", ["open", "write"])
def test_output_file_falls_back_to_cached_writes_without_direct_io(
    refused: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, written, handles = os.open, os.write, set()

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        if refused == "open" and flags & DIRECT:
            # Some file systems create the file although they refuse to open it.
            os.close(opened(path, flags & ~DIRECT, mode))
            raise OSError(errno.EINVAL, "no direct writes")
        handle = opened(path, flags & ~DIRECT, mode)
        handles.add(handle)
        return handle

    def write_(handle: int, data: Any) -> int:
        if refused == "write" and handle in handles:
            handles.remove(handle)
            raise OSError(errno.EINVAL, "no direct writes")
        return written(handle, data)

    def cached(_handle: int) -> bool:
        return True

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "write", write_)
    monkeypatch.setattr(module, "_write_through_cache", cached)
    data = np.random.default_rng(1).bytes(60_000)
    write(tmp_path / "file", data, [100])
    assert (tmp_path / "file").read_bytes() == data


def test_failed_disk_write_is_raised_and_ends_writer_threads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    output = OutputFile(str(tmp_path / "file"))

    def fill() -> None:
        with output:
            for _ in range(10):
                output.write(bytes(8192))

    with pytest.raises(OSError, match="no space left"):
        fill()
    assert all(not thread.is_alive() for thread in output._writer._threads)

"""Large text files in stores are read in parts, or whole where a part would have other bytes."""

from __future__ import annotations

import gzip
import pathlib
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.sources import text_parts
from dataservice.errors import SourceError

PART_BYTES = 10_000
READ_BYTES = 100
ROWS = 3_000


class CountedFile(AbstractBufferedFile):
    """A file that adds up the bytes that it gets, far more at once than a part has."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        CountedStore.fetched_bytes += end - start
        return pathlib.Path(self.path).read_bytes()[start:end]


class ForwardFile:
    """A file that is read from its beginning only."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self.read, self.close = self._file.read, self._file.close

    def seekable(self) -> bool:
        return True

    def seek(self, _at: int, _whence: int = 0) -> int:
        raise ValueError("cannot seek in a stream")


class CountedStore(LocalFileSystem):
    """A store of local files, of which it fetches much more than it is asked for."""

    protocol = "counted"
    cachable = False
    fetched_bytes = 0

    def open(self, path: str, *_mode: Any, **_options: Any) -> Any:
        return CountedFile(self, self._strip_protocol(path), block_size=50 << 20)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path.removeprefix(f"{cls.protocol}://")

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.protocol}://{name}"


class ForwardStore(CountedStore):
    """A store whose files cannot seek."""

    protocol = "forward"

    def open(self, path: str, *_mode: Any, **_options: Any) -> Any:
        return ForwardFile(self._strip_protocol(path))


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(text_parts, "_READ_BYTES", READ_BYTES)
    for store in (CountedStore, ForwardStore):
        fsspec.register_implementation(store.protocol, store, clobber=True)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(ROWS)))
    return path


def numbers(dataset: Dataset) -> list[int]:
    return dataset.to_table()["n"].to_pylist()


def test_little_more_than_a_part_is_fetched_for_it(path: pathlib.Path) -> None:
    dataset = Dataset.from_json(f"counted://{path}", block_size_bytes=1_000)
    split = next(iter(dataset.node.splits()))
    schema = dataset.schema
    assert "n" in schema.names
    CountedStore.fetched_bytes = 0
    assert numbers(dataset) == list(range(ROWS))
    size_bytes = path.stat().st_size
    assert split.stop < size_bytes / 3
    assert size_bytes <= CountedStore.fetched_bytes < 1.5 * size_bytes


def test_files_that_fsspec_decompresses_are_read_whole(path: pathlib.Path) -> None:
    # Also compressed it is larger than a part; its size is not that of the text.
    rows = range(0, 40 * ROWS, 7)
    text = "".join(f'{{"n": {n * 7919 % 100_003}}}\n' for n in rows)
    path.write_bytes(gzip.compress(text.encode()))
    assert path.stat().st_size > PART_BYTES
    options = {"compression": "gzip"}
    dataset = Dataset.from_json(f"counted://{path}", storage_options=options)
    assert len(list(dataset.node.splits())) == 1
    assert len(numbers(dataset)) == len(rows)


def test_files_of_a_store_that_cannot_seek_are_read_whole(path: pathlib.Path) -> None:
    dataset = Dataset.from_json(f"forward://{path}")
    assert len(list(dataset.node.splits())) == len(dataset.node.plan_table()) == 1
    assert numbers(dataset) == list(range(ROWS))


def test_a_part_of_a_file_that_cannot_seek_is_an_error(path: pathlib.Path) -> None:
    paths = [f"counted://{path}", f"forward://{path}"]
    with pytest.raises(SourceError, match=r"from byte 8,\d+ on.*from its beginning only"):
        numbers(Dataset.from_json(paths))

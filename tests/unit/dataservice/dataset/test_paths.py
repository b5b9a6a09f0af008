"""Paths whose characters have a meaning elsewhere: in globs, in URLs, or for a shell."""

from __future__ import annotations

import gzip
import pathlib

import pytest

from dataservice import Dataset
from dataservice.dataset.sources.paths import is_local

NAMES = [
    "a b",
    "a#b",
    "a%20b",
    "a*b",
    "a?b",
    "a[1]",
    "ü日本",
    "a:b",
    "a::b",
    "a=b",
    "~a",
    "$A",
    "a\nb",
]


@pytest.mark.parametrize("name", NAMES)
def test_file_is_read_by_its_name_and_below_a_directory(
    tmp_path: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / f"{name}.csv").write_text("x\n1\n")
    (tmp_path / "axb").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in (f"{folder}/{name}.csv", str(folder), f"./{name}/{name}.csv", "."):
        assert Dataset.from_csv(path).to_table()["x"].to_pylist() == [1], path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", True),
        ("/a::b", True),
        ("./a::b/c", True),
        ("s3://a/b", False),
        ("simplecache::s3://a/b", False),
        ("zip::/a/b.zip", False),
        ("zip://a.csv::/b.zip", False),
    ],
)
def test_local_is_what_begins_with_no_protocol(path: str, expected: bool) -> None:
    assert is_local(path) is expected


def test_suffix_of_a_compression_may_be_in_capitals(tmp_path: pathlib.Path) -> None:
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(b"x\n1\n"))
    assert Dataset.from_csv(str(tmp_path / "A.CSV.GZ")).to_table()["x"].to_pylist() == [1]

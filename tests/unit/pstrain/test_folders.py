"""Folders for results are tested before the work begins."""

from __future__ import annotations

import pathlib

import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.folders import make_folder


def test_a_folder_is_made_and_left_empty(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        make_folder("--out", tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())


def test_what_cannot_be_written_into_is_named_with_its_option(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=r"--out must name a folder, and '.*file' is a"):
        make_folder("--out", tmp_path / "file")
    with pytest.raises(
        InvalidArgumentError, match=r"--data-dir: .*file/x' .Not a directory.; name"
    ):
        make_folder("--data-dir", tmp_path / "file" / "x")
    with pytest.raises(InvalidArgumentError, match="--out: cannot write into the folder '/proc'"):
        make_folder("--out", pathlib.Path("/proc"))

"""Folders for results are tested before the work begins."""

from __future__ import annotations

import pathlib

import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.folders import make_folder


def test_make_folder_creates_folder_and_leaves_it_empty(tmp_path: pathlib.Path) -> None:
    for _ in range(2):
        make_folder("--out", tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())


def test_unwritable_folder_is_refused_with_its_option(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match=r"--out must name a folder, and '.*file' is a"):
        make_folder("--out", tmp_path / "file")
    with pytest.raises(
        InvalidArgumentError, match=r"--data-dir: .*file/x' .Not a directory.; name"
    ):
        make_folder("--data-dir", tmp_path / "file" / "x")
    with pytest.raises(InvalidArgumentError, match="--out: cannot write into the folder '/proc'"):
        make_folder("--out", pathlib.Path("/proc"))

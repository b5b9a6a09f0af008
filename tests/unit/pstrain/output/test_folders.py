"""Folders for results are tested before the work begins."""

from __future__ import annotations

import pathlib

import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.output.folders import folder_to_fill, make_folder


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


def test_failed_run_removes_only_folder_it_made(tmp_path: pathlib.Path) -> None:
    def fill(folder: pathlib.Path) -> None:
        (folder / "file").touch()
        raise FileExistsError

    (tmp_path / "old").mkdir()
    for folder in ("old", "new/model"):
        with pytest.raises(KeyboardInterrupt), folder_to_fill("--out", tmp_path / folder):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [tmp_path / "old"]
    with pytest.raises(FileExistsError), folder_to_fill("--out", tmp_path / "new"):
        fill(tmp_path / "new")
    with folder_to_fill("--out", tmp_path / "good"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "good"}


def test_failed_run_keeps_empty_folder_that_another_program_made_meanwhile(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(pathlib.Path, "exists", lambda _path: False)
    with pytest.raises(KeyboardInterrupt), folder_to_fill("--out", tmp_path / "other" / "mine"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert not list((tmp_path / "other").iterdir())
    with pytest.raises(KeyboardInterrupt), folder_to_fill("--out", tmp_path / "other"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["other"]

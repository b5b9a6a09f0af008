"""Which files a directory stands for, local and at a URL."""

from __future__ import annotations

import os
import pathlib
import stat
import zipfile

import fsspec
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.sources.files import check_unchanged, find_files, first_readable
from dataservice.errors import SourceError

DATA = ["_day=1/a.x", "a.x", "d/b.x", "d/e/c.x", "d/e_f/i.x"]
NO_DATA = [
    "_SUCCESS",
    "_c.x",
    ".a.x.crc",
    ".b.x",
    "_temporary/0/a.x",
    "d/.ipynb_checkpoints/a.x",
    "d/.day=1/a.x",
    "a.y",
]


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory below a hidden one, which counts since it is named itself."""
    folder = tmp_path / "_hidden" / "data"
    for name in (*DATA, *NO_DATA):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: pathlib.Path, found: str) -> list[str]:
    files = [file.path for file in find_files((found,), (".x",), None)]
    return [os.path.relpath(path.removeprefix("file://"), folder) for path in files]


@pytest.mark.parametrize("protocol", ["", "file://"])
def test_hidden_files_and_what_is_in_hidden_folders_is_no_data(
    tree: pathlib.Path, protocol: str
) -> None:
    assert names(tree, f"{protocol}{tree}") == DATA


def test_slash_behind_a_directory_changes_nothing(tree: pathlib.Path) -> None:
    assert names(tree, f"{tree}/") == names(tree, str(tree))
    assert names(tree, f"file://{tree}/") == names(tree, str(tree))


def test_root_of_a_file_system_is_a_directory() -> None:
    files = fsspec.filesystem("memory")
    files.pipe({"/files-of-root/a.x": b"", "/files-of-root/_b/a.x": b""})
    try:
        found = [file.path for file in find_files(("memory://",), (".x",), None)]
        assert found == ["memory:///files-of-root/a.x"]
    finally:
        files.rm("/files-of-root", recursive=True)


@pytest.mark.parametrize("cache", ["", "simplecache::"])
def test_files_in_an_archive_are_found_by_a_chain_of_urls(
    tmp_path: pathlib.Path, cache: str
) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as files:
        for name in ("1.csv", "in/2.csv", "in/_3.csv"):
            files.writestr(name, "a\n1\n")
    for pattern, found in (("1.csv", 1), ("*.csv", 1), ("**/*.csv", 3), ("", 2)):
        dataset = Dataset.from_csv(f"zip://{pattern}::{cache}file://{archive}")
        assert dataset.to_table()["a"].to_pylist() == [1] * found
    assert Dataset.from_csv(f"simplecache::zip://1.csv::file://{archive}").to_table().num_rows == 1


def test_links_are_followed_and_each_folder_counts_once(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "other" / "in").mkdir(parents=True)
    (tmp_path / "other" / "in" / "z.x").touch()
    (tree / "l").symlink_to(tmp_path / "other", target_is_directory=True)
    (tree / "again").symlink_to(tree / "d", target_is_directory=True)
    (tree / "d" / "up").symlink_to(tree, target_is_directory=True)
    assert names(tree, str(tree)) == [*DATA, "l/in/z.x"]


def test_link_to_itself_is_no_data_unless_it_has_the_suffix(
    tree: pathlib.Path,
) -> None:
    (tree / "d" / "self").symlink_to("self")
    assert names(tree, str(tree)) == DATA
    assert names(tree, f"{tree}/d/**/*.x") == ["d/b.x", "d/e/c.x", "d/e_f/i.x"]
    (tree / "d" / "self.x").symlink_to("self.x")
    with pytest.raises(SourceError, match=r"cannot read '.*/d/self\.x'.*levels of symbolic links"):
        names(tree, str(tree))


def test_each_link_but_no_other_folder_is_resolved(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "l").symlink_to(tree / "d", target_is_directory=True)
    resolved: list[str] = []
    realpath = os.path.realpath

    def noting(path: str) -> str:
        resolved.append(os.path.relpath(path, tree))
        return realpath(path)

    monkeypatch.setattr(os.path, "realpath", noting)
    assert names(tree, str(tree)) == DATA
    assert resolved == [".", "l"]


def test_folder_that_cannot_be_listed_is_an_error(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may list every folder, so that a mode does not do.
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("/e"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(SourceError, match=r"no permission to read '.*/d/e'"):
        names(tree, str(tree))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
@pytest.mark.parametrize("protocol", ["", "file://"])
def test_named_pipe_below_a_directory_is_refused_by_name(tree: pathlib.Path, protocol: str) -> None:
    os.mkfifo(tree / "d" / "pipe.x")
    with pytest.raises(SourceError, match=r"d/pipe\.x' is a named pipe.* write what it gives to"):
        names(tree, f"{protocol}{tree}")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_named_pipe_is_not_opened_where_files_may_be_skipped(tree: pathlib.Path) -> None:
    os.mkfifo(tree / "pipe.x")
    paths = (str(tree / "pipe.x"), str(tree / "a.x"))
    files = list(find_files(paths, (".x",), None, on_error="skip"))
    assert [file.path for file in files] == [*paths]
    read: list[str] = []
    first_readable(files, "skip", lambda file: read.append(file.path) or file.path)
    assert read == [str(tree / "a.x")]


def test_links_to_files_are_found_by_url_too(tree: pathlib.Path) -> None:
    (tree / "l").mkdir()
    (tree / "l" / "a.x").symlink_to(tree / "a.x")
    size = (tree / "a.x").stat().st_size
    for path in ("l", "l/*.x", "l/a.x"):
        (file,) = find_files((f"file://{tree}/{path}",), (".x",), None)
        assert (file.path, file.size_bytes) == (f"file://{tree}/l/a.x", size), path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
@pytest.mark.parametrize("protocol", ["", "file://"])
def test_glob_leaves_out_named_pipes_and_links_that_lead_nowhere(
    tree: pathlib.Path, protocol: str
) -> None:
    os.mkfifo(tree / "pipe.x")
    (tree / "nowhere.x").symlink_to(tree / "missing")
    assert names(tree, f"{protocol}{tree}/[apn]*.x") == ["a.x"]


@pytest.mark.skipif(not hasattr(os, "mknod"), reason="the platform makes no such files")
def test_device_and_socket_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match=r"'/dev/null' is a device"):
        names(tmp_path, "/dev/null")
    os.mknod(tmp_path / "s.x", stat.S_IFSOCK | 0o600)
    with pytest.raises(SourceError, match=r"s\.x' is a socket"):
        names(tmp_path, str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the platform has no named pipes")
def test_named_pipe_that_took_the_place_of_a_file_is_refused(tree: pathlib.Path) -> None:
    (file,) = find_files((str(tree / "a.x"),), (".x",), None)
    (tree / "a.x").unlink()
    os.mkfifo(tree / "a.x")
    with pytest.raises(SourceError, match=r"a\.x' is a named pipe"):
        check_unchanged(file.as_split(), None)

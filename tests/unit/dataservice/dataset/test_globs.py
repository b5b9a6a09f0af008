"""The files that a pattern matches, also through links between folders."""

from __future__ import annotations

import glob
import pathlib

import pytest

from dataservice.dataset.sources.globs import expanded


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    for name in ("a.x", "d/b.x", "d/e/c.x", "d/e/c.y", ".hidden/d.x", "[z]/e.x", "d/.f.x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    ["*.x", "**", "**/*.x", "d/**/*.x", "**/e/*", "*/**/*.x", "d/**", "**/d/**/*.y", "no/**/*"],
)
@pytest.mark.parametrize("is_absolute", [False, True])
def test_pattern_without_links_matches_same_files_as_python_glob(
    tree: pathlib.Path, pattern: str, is_absolute: bool
) -> None:
    if is_absolute:
        pattern = str(tree / pattern)
    found = [name for name in expanded(pattern) if pathlib.Path(name).is_file()]
    known = [n for n in glob.glob(pattern, recursive=True) if pathlib.Path(n).is_file()]
    assert sorted(set(found)) == sorted(set(known))


def test_cyclic_links_end_and_give_each_file_once(tree: pathlib.Path) -> None:
    for link in ("d/up", "d/e/up", "around"):
        (tree / link).symlink_to(tree, target_is_directory=True)
    assert sorted(expanded("**/*.x")) == ["[z]/e.x", "a.x", "d/b.x", "d/e/c.x"]


def test_links_to_outside_folders_and_to_files_are_followed(
    tree: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "f.x").touch()
    (tree / "d" / "other").symlink_to(elsewhere, target_is_directory=True)
    (tree / "d" / "same.x").symlink_to(tree / "a.x")
    assert sorted(expanded("d/**/*.x")) == ["d/b.x", "d/e/c.x", "d/other/f.x", "d/same.x"]

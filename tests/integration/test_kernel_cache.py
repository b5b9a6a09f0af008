"""Kernels from Numba's cache are never older than the source files."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from numba.core.dispatcher import Dispatcher

from dataservice.runtime.folders import ensure_private
from dataservice.runtime.kernel_cache import remove_stale
from pstrain.kernels import claims
from tests.programs import said_by

CALLED = "from numba import njit\n\n@njit(cache=True)\ndef called():\n    return {}\n"
CALLING = (
    "from numba import njit\nfrom called import called\n\n"
    "@njit(cache=True)\ndef calling():\n    return called()\n"
)
PROGRAM = (
    "import os\n"
    "from numba.core import caching\n"
    "if 'READ_ONLY' in os.environ:\n"
    "    caching.InTreeCacheLocator.get_cache_path = lambda self: '/proc/nowhere'\n"
    "if {is_told}:\n"
    "    from dataservice.runtime.kernel_cache import configure_numba\n"
    "    configure_numba({folder!r})\n"
    "from calling import calling\n"
    "print(calling(), len(calling.stats.cache_hits))\n"
)
RECORDING = """
import sys
from dataservice.runtime.kernel_cache import configure_numba, is_compiled, record_compiled
if {is_told}:
    configure_numba({folder!r})
from warming import warm_up
was_compiled = is_compiled(warm_up)
record_compiled(warm_up)
print(was_compiled, is_compiled(warm_up))
"""
WARMING = "def warm_up():\n    pass\n"
# Holds the first write back until the other process, too, has missed the cache and will write.
MEETING = """
import contextlib, pathlib, sys, time
from numba.core import caching
folder, name, value = pathlib.Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
if {is_told}:
    from dataservice.runtime.kernel_cache import configure_numba
    configure_numba(str(folder))
files = caching.IndexDataCacheFile
written = files._open_for_write
@contextlib.contextmanager
def met(self, path):
    (folder / ("arrived-" + name)).touch()
    end_s = time.monotonic() + 60.0
    while len(list(folder.glob("arrived-*"))) < 2:
        assert time.monotonic() < end_s, "the other process has not arrived"
        time.sleep(0.001)
    with written(self, path) as file:
        yield file
files._open_for_write = met
from twice import twice
assert twice(value) == value * 2
"""
TWICE = "from numba import njit\n\n@njit(cache=True)\ndef twice(x):\n    return x + x\n"
LATER = """
import sys
if {is_told}:
    from dataservice.runtime.kernel_cache import configure_numba
    configure_numba(sys.argv[1])
from twice import twice
twice(3), twice(1.5)
print(len(twice.stats.cache_hits))
"""


def run(folder: pathlib.Path, *, is_told: bool, **environment: str) -> list[int]:
    """Returns the function's result, and how many of its compilations came out of the cache."""
    said = output(PROGRAM.format(is_told=is_told, folder=str(folder)), folder, **environment)
    return [int(number) for number in said]


def was_recorded(folder: pathlib.Path, *, is_told: bool = True, **environment: str) -> bool:
    """True if a process finds a note that all is compiled, before it writes one."""
    said = output(RECORDING.format(is_told=is_told, folder=str(folder)), folder, **environment)
    assert said[1] == str(is_told)
    return said[0] == "True"


def output(program: str, folder: pathlib.Path, **environment: str) -> list[str]:
    return said_by(program, env={**cached(folder), **environment}).split()


def cached(folder: pathlib.Path) -> dict[str, str]:
    """Returns the environment of a program that imports from a folder, and has its cache there."""
    paths = os.pathsep.join([str(folder), *sys.path])
    return {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache")}


@pytest.mark.parametrize("is_told", [True, False])
def test_edit_of_a_called_function_recompiles_its_caller_and_removes_the_old_code(
    tmp_path: pathlib.Path, is_told: bool
) -> None:
    """Without ``configure_numba`` it does not; if that case fails, Numba has learnt to do so."""

    def saved() -> set[str]:
        return {path.name for path in tmp_path.rglob("*.nbc")}

    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert run(tmp_path, is_told=is_told) == [1, 0]
    assert run(tmp_path, is_told=is_told) == [1, 1]
    old = saved()
    (tmp_path / "called.py").write_text(CALLED.format(22))
    assert run(tmp_path, is_told=is_told) == ([22, 0] if is_told else [1, 1])
    assert len(saved()) == len(old) == 2
    assert bool(saved() & old) is not is_told


@pytest.mark.parametrize("is_told", [True, False])
def test_concurrent_compilations_of_a_function_keep_separate_files(
    tmp_path: pathlib.Path, is_told: bool
) -> None:
    """Without ``configure_numba`` one overwrites the other's entry; if not, Numba has learnt."""
    (tmp_path / "twice.py").write_text(TWICE)
    cache = {**os.environ, **cached(tmp_path)}
    program = [sys.executable, "-c", MEETING.format(is_told=is_told), str(tmp_path)]
    both = [subprocess.Popen([*program, *of], env=cache) for of in (["a", "3"], ["b", "1.5"])]
    assert [process.wait(120) for process in both] == [0, 0]
    hits = said_by(LATER.format(is_told=is_told), tmp_path, env=cache)
    assert int(hits) == (2 if is_told else 1)


def test_remove_stale_keeps_code_of_newer_processes(tmp_path: pathlib.Path) -> None:
    def file(name: str, at_s: float) -> pathlib.Path:
        path = tmp_path / name
        path.touch()
        os.utime(path, (at_s, at_s))
        return path

    stale = [
        file("a.f-7-000000000000.py311.12.nbc", 9_999.0),
        file("a.f-7-000000000000.py312.nbi", 9_999.0),
        file("a.f-7-111111111111.py311.12.nbc.tmp.3f", 1.0),
    ]
    kept = [
        file("a.f-7-000000000000.py311.13.nbc", 10_001.0),
        file("a.f-7-111111111111.py311.12.nbc", 1.0),
        file("a.f-7-111111111111.py311.12.nbc.tmp.4f", 9_999.0),
        file("a.f-7.py311.1.nbc", 1.0),
        file("a.cpython-311.pyc", 1.0),
    ]
    remove_stale(tmp_path, "111111111111" + 52 * "f", 10_000.0)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert not any(path.exists() for path in stale)


def test_private_temporary_folder_is_the_last_resort(tmp_path: pathlib.Path) -> None:
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    nowhere = {"READ_ONLY": "1", "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "/proc/nowhere"}
    for hits in (0, 1):
        assert run(tmp_path, is_told=True, TMPDIR=str(tmp_path), **nowhere) == [1, hits]
    own = tmp_path / f"dataservice-kernels-{os.getuid()}"
    assert own.stat().st_mode & 0o777 == 0o700


def test_folder_writable_by_others_is_refused(tmp_path: pathlib.Path) -> None:
    ensure_private(str(tmp_path / "own"))
    ensure_private(str(tmp_path / "own"))
    (tmp_path / "own").chmod(0o770)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("own", "link"):
        with pytest.raises(PermissionError, match=name):
            ensure_private(str(tmp_path / name))


def test_package_kernels_are_stamped_by_all_sources() -> None:
    assert isinstance(claims.find_rows, Dispatcher)
    stamp = claims.find_rows._cache._impl.locator.get_source_stamp()
    assert isinstance(stamp, tuple)
    assert len(stamp[1]) == 64


def test_zeroed_cache_files_are_compiled_again(tmp_path: pathlib.Path) -> None:
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "called.py").write_text(CALLED.format(7))
    assert run(tmp_path, is_told=True) == [7, 0]
    for path in tmp_path.rglob("*.nbc"):
        path.write_bytes(bytes(len(path.read_bytes())))
    assert run(tmp_path, is_told=True) == [7, 0]
    assert run(tmp_path, is_told=True) == [7, 1]


def test_compilation_is_recorded_per_machine_until_a_file_changes(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "warming.py").write_text(WARMING)
    assert not was_recorded(tmp_path)
    assert was_recorded(tmp_path)
    assert not was_recorded(tmp_path, NUMBA_CPU_NAME="generic")
    assert was_recorded(tmp_path)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert not was_recorded(tmp_path)
    shutil.rmtree(tmp_path / "cache")
    assert not was_recorded(tmp_path)


def test_compilation_of_other_packages_is_not_recorded(tmp_path: pathlib.Path) -> None:
    (tmp_path / "warming.py").write_text(WARMING)
    assert not was_recorded(tmp_path, is_told=False)

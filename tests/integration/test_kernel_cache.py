"""Kernels from Numba's cache are those of the files that there are."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from numba.core.dispatcher import Dispatcher

from dataservice.runtime.kernel_cache import ensure_private
from pstrain.kernels import claims

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
    "    from dataservice.runtime.kernel_cache import compile_together\n"
    "    compile_together({folder!r})\n"
    "from calling import calling\n"
    "print(calling(), len(calling.stats.cache_hits))\n"
)


def run(folder: pathlib.Path, *, is_told: bool, **environment: str) -> list[int]:
    """What the function gives, and how many of its compilations came out of the cache."""
    program = PROGRAM.format(is_told=is_told, folder=str(folder))
    paths = os.pathsep.join([str(folder), *sys.path])
    cache = {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **cache, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize("is_told", [True, False])
def test_an_edit_of_what_a_function_calls_is_seen(tmp_path: pathlib.Path, is_told: bool) -> None:
    """Without the rule it is not: where this fails, Numba itself has learnt it."""
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert run(tmp_path, is_told=is_told) == [1, 0]
    assert run(tmp_path, is_told=is_told) == [1, 1]
    (tmp_path / "called.py").write_text(CALLED.format(22))
    assert run(tmp_path, is_told=is_told) == ([22, 0] if is_told else [1, 1])


def test_a_private_temporary_folder_is_used_where_no_other_can_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "calling.py").write_text(CALLING)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    nowhere = {"READ_ONLY": "1", "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "/proc/nowhere"}
    for hits in (0, 1):
        assert run(tmp_path, is_told=True, TMPDIR=str(tmp_path), **nowhere) == [1, hits]
    own = tmp_path / f"dataservice-kernels-{os.getuid()}"
    assert own.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: pathlib.Path) -> None:
    ensure_private(str(tmp_path / "own"))
    ensure_private(str(tmp_path / "own"))
    (tmp_path / "own").chmod(0o770)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("own", "link"):
        with pytest.raises(PermissionError, match=name):
            ensure_private(str(tmp_path / name))


def test_the_kernels_are_compiled_together() -> None:
    assert isinstance(claims.find_rows, Dispatcher)
    stamp = claims.find_rows._cache._impl.locator.get_source_stamp()
    assert isinstance(stamp, tuple)
    assert len(stamp[1]) == 64

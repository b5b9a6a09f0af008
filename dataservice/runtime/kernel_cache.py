"""What Numba is told before kernels are made: how to cache them, and to import SciPy late.

Its cache is changed so that any change of the kernels' source files makes it stale.

Numba checks only the file of a function, not the files of the functions that it calls. So after an
edit or an upgrade it would go on using old machine code of intrinsics and called functions. Numba
also keeps an index of a function's files. Processes that compile a function at the same time
overwrite each other's index entries, so that one signature is found with the code of another. Here
each signature has a file of its own, whose name and contents identify it, and there is no index.
If neither the package's folder nor the user's own can be written, as in a container, the cache is
in a private temporary folder. Notes beside the code say which sets of kernels are compiled
completely, so that a process need not load them all to find out.

Before its first kernel Numba imports `scipy.linalg`, if SciPy is installed, only to find out that
it is there. That takes a quarter of a server's start, so here it does that when a function asks for
linear algebra.

Knows files, but no kernels. Invariants: functions of other packages are cached as before; a file is
complete, and is removed only if no kernel that is compiled later can be in it; a note holds for the
code that this process would load; functions that use linear algebra are compiled as usual.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from numba.core import caching
from numba.core.registry import cpu_target

from dataservice.runtime.compile_notice import notice
from dataservice.runtime.folders import ensure_private

_USER_WIDE: Final = "UserWideCacheLocator"
_CONTENTS_DIGITS: Final = 12
# The part of a file name after the function's: its line, and the digest of all source files.
_OF_CONTENTS: Final = re.compile(rf"-\d+-([0-9a-f]{{{_CONTENTS_DIGITS}}})\.py\d.*\.nb[ci]\b")
_UNFINISHED: Final = ".tmp."
_WRITTEN_WITHIN_S: Final = 3_600.0
_STARTED_S: Final = time.time()


class _Stamp(NamedTuple):
    file: Any
    contents: str


def configure_numba(folder: str) -> None:
    """Ties all later caching of functions in ``folder`` to the contents of all files there.

    Has to come before any kernel is defined.
    """
    _import_scipy_late()
    # Numba has no public way to declare what a function depends on. If this internal way is gone
    # in a later version, Numba's own rule applies.
    cache = getattr(caching, "CacheImpl", None) or getattr(caching, "_CacheImpl", None)
    locators = getattr(cache, "_locator_classes", None)
    if isinstance(locators, list):
        _keep_files_apart()
        bases = list(locators)
        bases += [_temporary(base) for base in bases if base.__name__.endswith(_USER_WIDE)]
        locators[:0] = [_of_folder(os.path.abspath(folder), base) for base in bases]


def record_compiled(warm_up: Callable[[], None]) -> None:
    """Notes, for later processes, that the cache contains all functions that `warm_up` calls."""
    note = _note_of(warm_up)
    if note is not None and not is_compiled(warm_up):
        note.save(_machine(), True)


def is_compiled(warm_up: Callable[[], None]) -> bool:
    """True if `record_compiled` was called, for the files as they are and a machine like this."""
    note = _note_of(warm_up)
    return note is not None and note.load(_machine()) is True


def _note_of(warm_up: Callable[[], None]) -> Any:
    """Returns the cache file for the note about `warm_up`.

    Returns None if `configure_numba` could not change Numba's rule, or was not called for the
    folder of `warm_up`.
    """
    cache = getattr(caching, "FunctionCache", None)
    file = getattr(cache(warm_up), "_cache_file", None) if cache is not None else None
    return file if isinstance(getattr(file, "_source_stamp", None), _Stamp) else None


def _machine() -> Any:
    """Returns Numba's description of the machine for which it compiles."""
    return cpu_target.target_context.codegen().magic_tuple()


def _of_folder(folder: str, base: Any) -> Any:
    @functools.cache
    def contents() -> str:
        digest = hashlib.sha256()
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    class OfFolder(base):
        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            inside = os.path.dirname(os.path.abspath(py_file)) == folder
            return super().from_function(py_func, py_file) if inside else None

        def get_source_stamp(self) -> Any:
            return _Stamp(super().get_source_stamp(), contents())

        def get_disambiguator(self) -> Any:
            return f"{super().get_disambiguator()}-{contents()[:_CONTENTS_DIGITS]}"

    return OfFolder


@functools.cache
def _keep_files_apart() -> None:
    base: Any = getattr(caching, "IndexDataCacheFile", None)
    if isinstance(base, type):
        caching.IndexDataCacheFile = _file_per_signature(base)  # type: ignore[misc]


def _file_per_signature(base: Any) -> Any:
    class FilePerSignature(base):
        def save(self, key: Any, data: Any) -> None:
            if not isinstance(self._source_stamp, _Stamp):
                super().save(key, data)
                return
            notice.end()
            self._save_data(self._name_of(key), (tuple(self._source_stamp), key, data))
            _sweep(self._cache_path, self._source_stamp.contents)

        def load(self, key: Any) -> Any:
            if not isinstance(self._source_stamp, _Stamp):
                return super().load(key)
            data = self._found(key)
            if data is None:
                notice.begin()
            return data

        def flush(self) -> None:
            if not isinstance(self._source_stamp, _Stamp):
                super().flush()
                return
            first = self._data_name_pattern.partition("{")[0]
            for path in Path(self._cache_path).iterdir():
                if path.name.startswith(first):
                    path.unlink(missing_ok=True)

        def _found(self, key: Any) -> Any:
            try:
                stamp, found, data = self._load_data(self._name_of(key))
            # No file yet, or one that a power failure left incomplete.
            except (OSError, EOFError, caching.pickle.UnpicklingError):  # type: ignore[attr-defined]
                return None
            return data if stamp == tuple(self._source_stamp) and found == key else None

        def _name_of(self, key: Any) -> str:
            what = repr((self._version, tuple(self._source_stamp), key))
            return str(self._data_name(int(hashlib.sha256(what.encode()).hexdigest()[:15], 16)))

    return FilePerSignature


@functools.cache
def _sweep(folder: str, contents: str) -> None:
    """Removes stale files, once per process, after it has compiled something for this folder."""
    remove_stale(Path(folder), contents, _STARTED_S)


def remove_stale(folder: Path, contents: str, started_s: float) -> None:
    """Removes code of other source contents, and unfinished files of processes that were killed.

    Keeps files written after `started_s`, since they may be of processes with newer sources than
    one that started then, and files of other packages. A process that needs a removed file compiles
    it again.
    """
    for path in folder.iterdir():
        found = _OF_CONTENTS.search(path.name)
        if found is None:
            continue
        is_unfinished = _UNFINISHED in path.name
        if not is_unfinished and contents.startswith(found[1]):
            continue
        limit_s = started_s - _WRITTEN_WITHIN_S if is_unfinished else started_s
        # Another process may remove the same file, or it may be another user's. Neither matters,
        # since the new kernel is saved already.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < limit_s:
                path.unlink()


def _temporary(user_wide: Any) -> Any:
    """Returns a variant of Numba's user-wide locator with a private temporary folder."""

    class Temporary(user_wide):
        def __init__(self, py_func: Any, py_file: str) -> None:
            super().__init__(py_func, py_file)
            self._own = os.path.join(tempfile.gettempdir(), f"dataservice-kernels-{os.getuid()}")
            self._cache_path = os.path.join(self._own, self.get_suitable_cache_subpath(py_file))

        def ensure_cache_path(self) -> None:
            ensure_private(self._own)
            super().ensure_cache_path()

    return Temporary


def _import_scipy_late() -> None:
    """Postpones Numba's import of SciPy; has no effect once a kernel was compiled or loaded."""
    if "numba.np.arraymath" in sys.modules:
        return
    from numba.np import linalg as module

    linalg: Any = module
    # Numba has no public way to do this. If its internal function is gone, SciPy is just imported.
    if not hasattr(linalg, "ensure_blas"):
        return
    ensure_blas = linalg.ensure_blas
    linalg.ensure_blas = _ensure_installed
    try:
        from numba.np import arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = ensure_blas


def _ensure_installed() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise ImportError("SciPy is not installed")

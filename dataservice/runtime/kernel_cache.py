"""Numba's cache of the kernels, which is compiled anew when any of their files has changed.

Numba looks at the file of a function alone, not at those of what it calls, so that after an edit
or an upgrade the old machine code of intrinsics and of called functions would go on being used.
It also keeps an index of a function's files, in which processes that compile it at the same time
overwrite each other's entries, so that one signature is found with the code of another: here each
signature has a file, whose name and contents say what it is of, and there is no index.
Where neither the package's folder nor the user's own can be written to, as in a container, the
cache lies in a private temporary folder. Beside the code lie notes of what is compiled in full,
so that processes need not load all of it to know. Knows files, no kernels. Invariants: other
packages' functions are cached as they were; a file is whole, and removed only once no kernel that
is compiled from now on can be in it; a note holds for the code that this process would load.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from numba.core import caching
from numba.core.registry import cpu_target

from dataservice.runtime.compile_notice import notice
from dataservice.runtime.private_folder import ensure_private

_USER_WIDE: Final = "UserWideCacheLocator"
_CONTENTS_DIGITS: Final = 12
# In the names of files, after that of the function: its line and what all files contained.
_OF_CONTENTS: Final = re.compile(rf"-\d+-([0-9a-f]{{{_CONTENTS_DIGITS}}})\.py\d.*\.nb[ci]\b")
_UNFINISHED: Final = ".tmp."
_WRITTEN_WITHIN_S: Final = 3_600.0
_STARTED_S: Final = time.time()


class _Stamp(NamedTuple):
    file: Any
    contents: str


def compile_together(folder: str) -> None:
    """Functions of ``folder`` that are cached from now on are fresh where all files there are."""
    # Numba has no public way to say what a function rests on; where this one is gone, its own
    # rule holds.
    cache = getattr(caching, "CacheImpl", None) or getattr(caching, "_CacheImpl", None)
    locators = getattr(cache, "_locator_classes", None)
    if isinstance(locators, list):
        _keep_files_apart()
        bases = list(locators)
        bases += [_temporary(base) for base in bases if base.__name__.endswith(_USER_WIDE)]
        locators[:0] = [_of_folder(os.path.abspath(folder), base) for base in bases]


def note_compiled(warm_up: Callable[[], None]) -> None:
    """Notes, for processes to come, that the cache has all functions that `warm_up` calls."""
    note = _note_of(warm_up)
    if note is not None and not is_compiled(warm_up):
        note.save(_machine(), True)


def is_compiled(warm_up: Callable[[], None]) -> bool:
    """Whether that was noted, of the files as they are and for a machine like this."""
    note = _note_of(warm_up)
    return note is not None and note.load(_machine()) is True


def _note_of(warm_up: Callable[[], None]) -> Any:
    """None where `compile_together` could not change Numba's rule, or for other folders."""
    cache = getattr(caching, "FunctionCache", None)
    file = getattr(cache(warm_up), "_cache_file", None) if cache is not None else None
    return file if isinstance(getattr(file, "_source_stamp", None), _Stamp) else None


def _machine() -> Any:
    """What machine code is made for, as Numba says it of each function in the cache."""
    return cpu_target.target_context.codegen().magic_tuple()


def _of_folder(folder: str, base: Any) -> Any:
    @functools.cache
    def contents() -> str:
        digest = hashlib.sha256()
        for path in sorted(Path(folder).glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    class OfFolder(base):  # type: ignore[misc]
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
        caching.IndexDataCacheFile = _file_per_signature(base)  # type: ignore[misc, attr-defined]


def _file_per_signature(base: Any) -> Any:
    class FilePerSignature(base):  # type: ignore[misc]
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
            # None yet, or what a power failure left of one.
            except (OSError, EOFError, caching.pickle.UnpicklingError):  # type: ignore[attr-defined]
                return None
            return data if stamp == tuple(self._source_stamp) and found == key else None

        def _name_of(self, key: Any) -> str:
            what = repr((self._version, tuple(self._source_stamp), key))
            return str(self._data_name(int(hashlib.sha256(what.encode()).hexdigest()[:15], 16)))

    return FilePerSignature


@functools.cache
def _sweep(folder: str, contents: str) -> None:
    """Once in a process, when it has compiled something for this folder."""
    remove_stale(Path(folder), contents, _STARTED_S)


def remove_stale(folder: Path, contents: str, started_s: float) -> None:
    """Removes code of other contents, and what processes that were killed have not finished.

    Not what was written after `started_s`, that is by those who run newer contents than a process
    that started then, and none of other packages. Who looks for a removed one compiles it again.
    """
    for path in folder.iterdir():
        found = _OF_CONTENTS.search(path.name)
        if found is None:
            continue
        is_unfinished = _UNFINISHED in path.name
        if not is_unfinished and contents.startswith(found[1]):
            continue
        limit_s = started_s - _WRITTEN_WITHIN_S if is_unfinished else started_s
        # Another process may do the same, or another user's file lie here; the kernel is saved.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < limit_s:
                path.unlink()


def _temporary(user_wide: Any) -> Any:
    """As Numba caches for a user who has a home."""

    class Temporary(user_wide):  # type: ignore[misc]
        def __init__(self, py_func: Any, py_file: str) -> None:
            super().__init__(py_func, py_file)
            self._own = os.path.join(tempfile.gettempdir(), f"dataservice-kernels-{os.getuid()}")
            self._cache_path = os.path.join(self._own, self.get_suitable_cache_subpath(py_file))

        def ensure_cache_path(self) -> None:
            ensure_private(self._own)
            super().ensure_cache_path()

    return Temporary

"""Numba's cache of the kernels, which is compiled anew when any of their files has changed.

Numba looks at the file of a function alone, not at those of what it calls, so that after an edit
or an upgrade the old machine code of intrinsics and of called functions would go on being used.
Where neither the package's folder nor the user's own can be written to, as in a container, the
cache lies in a private temporary folder. Knows files, no kernels. Invariant: other packages'
functions are cached as they were.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, Final

from numba.core import caching

_USER_WIDE: Final = "UserWideCacheLocator"


def compile_together(folder: str) -> None:
    """Functions of ``folder`` that are cached from now on are fresh where all files there are."""
    # Numba has no public way to say what a function rests on; where this one is gone, its own
    # rule holds.
    cache = getattr(caching, "CacheImpl", None) or getattr(caching, "_CacheImpl", None)
    locators = getattr(cache, "_locator_classes", None)
    if isinstance(locators, list):
        bases = list(locators)
        bases += [_temporary(base) for base in bases if base.__name__.endswith(_USER_WIDE)]
        locators[:0] = [_of_folder(os.path.abspath(folder), base) for base in bases]


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
            return super().get_source_stamp(), contents()

        def get_disambiguator(self) -> Any:
            # In the names of files: Numba writes what is in the cache before the code itself, so
            # another process could find the old code under the new stamp.
            return f"{super().get_disambiguator()}-{contents()[:12]}"

    return OfFolder


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


def ensure_private(folder: str) -> None:
    """Makes a folder that nobody else can put code into; PermissionError where others can."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder of this user alone")

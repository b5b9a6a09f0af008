"""Numba's cache of the kernels, which is compiled anew when any of their files has changed.

Numba looks at the file of a function alone, not at those of what it calls, so that after an edit
or an upgrade the old machine code of intrinsics and of called functions would go on being used.
Knows files, no kernels. Invariant: other packages' functions are cached as they were.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

from numba.core import caching


def compile_together(folder: str) -> None:
    """Functions of ``folder`` that are cached from now on are fresh where all files there are."""
    # Numba has no public way to say what a function rests on; where this one is gone, its own
    # rule holds.
    cache = getattr(caching, "CacheImpl", None) or getattr(caching, "_CacheImpl", None)
    locators = getattr(cache, "_locator_classes", None)
    if isinstance(locators, list):
        locators[:0] = [_of_folder(os.path.abspath(folder), base) for base in locators]


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

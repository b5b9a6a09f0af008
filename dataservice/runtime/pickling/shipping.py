"""Pickling functions so that they work where the user's own modules cannot be imported.

Installed packages are pickled by reference, since every machine has them. The user's scripts and
modules travel as code that keeps its file and line numbers, so that errors on another machine name
them. Knows nothing of what the functions are for. Invariant: after pickling, cloudpickle's
process-wide registry is as it was before.
"""

from __future__ import annotations

import functools
import io
import operator
import os
import site
import sys
import sysconfig
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

_OURS = ("dataservice", "pstrain")
# Folders that hold packages, recognised by name, since those of other environments may be on the
# path too: environments can be layered, and some distributions have folders of their own.
_PACKAGES = frozenset(("site-packages", "dist-packages"))
# Guards the registration of modules for pickling by value, which is a setting of the whole process.
# Reentrant, since a pickled object may pickle functions of its own, as a dataset does.
_registering = threading.RLock()
unpickling = threading.RLock()
"""To be held by who unpickles functions, which imports what they use. If one thread imports a
package that imports its parts, while another imports a part, Python breaks one of the imports."""


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    make, parts, *rest = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _from_file, (code.co_filename, make, parts), *rest


def _from_file(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file)


class Pickler(cloudpickle.CloudPickler):
    """cloudpickle's pickler, except that code keeps its file name, which newer releases drop."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )


def dumps(value: Any) -> bytes:
    """Pickles ``value`` into bytes that ``pickle.loads`` reads."""
    stream = io.BytesIO()
    Pickler(stream).dump(value)
    return stream.getvalue()


@contextmanager
def users_code_by_value() -> Iterator[None]:
    """Makes cloudpickle include the code of the user's own modules, inside the context."""
    with _registering:
        registered = []
        # Read once: the list is a copy, and copying it for each of thousands of modules would take
        # most of the time of pickling a function.
        known = set(cloudpickle.list_registry_pickle_by_value())
        try:
            for module in _users_modules.loaded():
                if module.__name__ not in known:
                    cloudpickle.register_pickle_by_value(module)
                    known.add(module.__name__)
                    registered.append(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


@functools.lru_cache(maxsize=1)
def _installed_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]]
    roots += [site.getusersitepackages(), os.path.dirname(os.__file__)]
    return tuple(os.path.realpath(root) + os.sep for root in roots)


class _UsersModules:
    """A cache of the user's own modules, refreshed if other modules are loaded than the last time.

    Examining a thousand modules takes as long as pickling two small functions.
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._found: list[ModuleType] = []

    def loaded(self) -> list[ModuleType]:
        """Returns the user's own modules that are loaded at present."""
        modules = list(sys.modules.values())
        if len(modules) != len(self._seen) or not all(map(operator.is_, modules, self._seen)):
            self._found = [
                module
                for module in modules
                if isinstance(module, ModuleType) and _is_users_own(module)
            ]
            self._seen = modules
        return self._found


_users_modules = _UsersModules()


def _is_users_own(module: ModuleType) -> bool:
    name, file = module.__name__, getattr(module, "__file__", None)
    if file is None or name == "__main__":
        return False
    return not _is_installed(file) and name.partition(".")[0] not in _OURS


@functools.lru_cache(maxsize=8192)
def _is_installed(file: str) -> bool:
    real = os.path.realpath(file)
    if real.startswith(_installed_roots()) or not _PACKAGES.isdisjoint(real.split(os.sep)):
        return True
    # `pip install --target` makes a folder of packages anywhere, also beside the user's modules.
    for folder in map(os.path.realpath, sys.path):
        name = real.removeprefix(folder + os.sep)
        if name != real and name.split(os.sep)[0] in _installed_names(folder):
            return True
    return False


@functools.lru_cache(maxsize=1024)
def _installed_names(folder: str) -> frozenset[str]:
    """Returns the top-level names in a folder that a package manager has put there.

    Distributions without a RECORD, such as a project's own metadata, do not count.
    """
    if not any(name.endswith(".dist-info") for name in _listed(folder)):
        return frozenset()
    from importlib.metadata import distributions

    installed = distributions(path=[folder])
    recorded = (dist.files or () for dist in installed if dist.read_text("RECORD") is not None)
    return frozenset(file.parts[0] for files in recorded for file in files)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []

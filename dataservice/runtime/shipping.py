"""Pickling functions so that they work where the user's own modules cannot be imported.

Installed packages are pickled by reference, as they are on every machine; the user's scripts and
modules travel as code, which knows the file and line that it came from: an error in it elsewhere
names them. Knows nothing of what the functions are for. Invariant: cloudpickle's process-wide
register is as before once pickling is done.
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

__all__ = ["Pickler", "dumps", "users_code_by_value"]

_OURS = ("dataservice", "pstrain")
# Folders of packages by name: those of another environment may be on the path too, as where
# environments are laid over each other, or a distribution keeps its own.
_PACKAGES = frozenset(("site-packages", "dist-packages"))
# Registering a module for pickling by value is a setting of the whole process. What is pickled may
# hold functions that are pickled by themselves, as a dataset does.
_registering = threading.RLock()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    make, parts, *rest = cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return _from_file, (code.co_filename, make, parts), *rest


def _from_file(file: str, make: Callable[..., CodeType], parts: tuple[Any, ...]) -> CodeType:
    return make(*parts).replace(co_filename=file)


class Pickler(cloudpickle.CloudPickler):
    """cloudpickle's, by which code keeps its file's name: newer releases leave it out."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.CloudPickler.dispatch_table
    )


def dumps(value: Any) -> bytes:
    """``value`` as bytes that ``pickle.loads`` reads."""
    stream = io.BytesIO()
    Pickler(stream).dump(value)
    return stream.getvalue()


@contextmanager
def users_code_by_value() -> Iterator[None]:
    """While it is entered, cloudpickle takes the code of the user's own modules along."""
    with _registering:
        registered = []
        # A copy: made for each of thousands of modules, it took most of the time of a function.
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
    """Modules of the user's own; looked for again where others are loaded than the last time.

    To look at each of a thousand modules takes as long as to pickle two small functions.
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._found: list[ModuleType] = []

    def loaded(self) -> list[ModuleType]:
        """Those of this moment."""
        modules = list(sys.modules.values())
        if len(modules) != len(self._seen) or not all(map(operator.is_, modules, self._seen)):
            self._found = [
                each for each in modules if isinstance(each, ModuleType) and _is_users_own(each)
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
    """What package managers have put into a folder; a project that only names itself is not."""
    if not any(name.endswith(".dist-info") for name in _listed(folder)):
        return frozenset()
    from importlib.metadata import distributions

    found = distributions(path=[folder])
    recorded = (each.files or () for each in found if each.read_text("RECORD") is not None)
    return frozenset(file.parts[0] for files in recorded for file in files)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []

"""Pickling functions so that they work where the user's own modules cannot be imported.

Installed packages are pickled by reference, as they are on every machine; the user's scripts and
modules travel as code. Knows nothing of what the functions are for. Invariant: cloudpickle's
process-wide register is as before once pickling is done.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import cloudpickle

_OURS = ("dataservice", "pstrain")
# Registering a module for pickling by value is a setting of the whole process. What is pickled may
# hold functions that are pickled by themselves, as a dataset does.
_registering = threading.RLock()


@contextmanager
def users_code_by_value() -> Iterator[None]:
    """While it is entered, cloudpickle takes the code of the user's own modules along."""
    with _registering:
        registered = []
        try:
            for module in list(sys.modules.values()):
                if isinstance(module, ModuleType) and _is_users_own(module):
                    cloudpickle.register_pickle_by_value(module)
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


def _is_users_own(module: ModuleType) -> bool:
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or file is None or name.partition(".")[0] in _OURS:
        return False
    if name in cloudpickle.list_registry_pickle_by_value():
        return False
    return not _is_installed(file)


@functools.lru_cache(maxsize=8192)
def _is_installed(file: str) -> bool:
    return os.path.realpath(file).startswith(_installed_roots())

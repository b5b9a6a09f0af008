"""A package's public names, each imported when it is first used.

Knows no name itself. Invariant: a package whose names are resolved here imports none of its own
modules, so that threads that first use it in different places never meet in its import: where one
imports the package, whose import needs a module, and another the module, which needs the package,
Python ends one of the imports with an error.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_getattr(
    package: str, homes: Mapping[str, str], remedies: str | None = None, depth: int = 1
) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package, of whose names ``homes`` has the modules.

    For other names the error is that of the table ``remedies`` of
    ``pstrain.porting.foreign_names``. The caller of the ``__getattr__`` that is ``depth`` frames
    away is the one that asks for the name.
    """

    def __getattr__(name: str) -> Any:
        owner = sys.modules[package]
        if name not in homes:
            foreign_names = importlib.import_module("pstrain.porting.foreign_names")
            known = getattr(foreign_names, remedies) if remedies else {}
            foreign_names.no_name(package, name, known.get(name), sys._getframe(depth))
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(owner, name, value)
        return value

    return __getattr__

"""Looks up classes by name, among those that this process has loaded.

Serves decoders of data from other processes. Invariant: nothing is imported, and no code of a
module runs.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def loaded_class(module: str, qualname: str) -> type[Any] | None:
    """Returns the class of this name, or None if this process has not loaded it."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(part)
    return found if isinstance(found, type) else None

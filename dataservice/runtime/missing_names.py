"""The error for a name that a module does not have, with what to write instead.

Knows no name. Invariant: `from module import name` shows the same remedy as `module.name`; Python
itself replaces an AttributeError there by an error of its own, without the remedy.
"""

from __future__ import annotations

import sys
from opcode import opmap
from types import FrameType
from typing import Final, NoReturn

_IMPORT_FROM: Final = opmap.get("IMPORT_FROM")


def no_name(module: str, name: str, remedy: str | None, asking: FrameType) -> NoReturn:
    """Raises AttributeError, or ImportError if the frame that asks for the name imports it.

    Without a remedy always AttributeError, of which Python makes its usual error.
    """
    if remedy is not None and _imports(asking):
        raise ImportError(f"cannot import name {name!r} from {module!r}: {remedy}", name=module)
    hint = "" if remedy is None else f": {remedy}"
    owner = sys.modules.get(module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=owner)


def _imports(frame: FrameType) -> bool:
    """True if the frame is in the middle of a `from ... import`."""
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and code[frame.f_lasti] == _IMPORT_FROM

"""How much memory this process may use.

In a container that is less than its machine has, and a process that takes more is killed. Knows
nothing of who takes memory. Invariant: a limit that cannot be read counts as no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from dataservice.runtime.machine.control_groups import Group, Read, own_groups, text_of

_UNKNOWN_BYTES: Final = 8 << 30


def available_memory_bytes() -> int:
    """Returns the machine's memory, or less if control groups limit it; 8 GiB if unknown."""
    limit = memory_limit_bytes(own_groups("memory"), text_of)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        machine = _UNKNOWN_BYTES
    return machine if limit is None else min(machine, limit)


def memory_limit_bytes(groups: Iterable[Group], read: Read) -> int | None:
    """Returns the smallest limit of these groups, None if there is none.

    `read` returns the text of a file.
    """
    limits = []
    for folder, is_unified in groups:
        name = "memory.max" if is_unified else "memory.limit_in_bytes"
        text = (read(f"{folder}/{name}") or "").strip()
        if text.isdecimal() and int(text):
            limits.append(int(text))
    return min(limits) if limits else None

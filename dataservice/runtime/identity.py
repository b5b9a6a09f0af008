"""Ids for things that come and go: readers, workers, iterations.

Random, hence kept out of everything that decides. Invariant: 48 random bits, so ids of one
cluster do not collide.
"""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """``prefix`` followed by a dash and 12 random hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(6)}"

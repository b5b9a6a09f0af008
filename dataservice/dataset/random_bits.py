"""Random bits that depend on a key alone, the same in every version of NumPy.

Knows nothing of seeds, epochs or rows. Invariant: concurrent threads, and a signal handler that
interrupts one of them, each get the bits of their own key.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dataservice.sharding import MASK64

# Generators that are not in use. A new generator first draws a seed from the system, even if a key
# is given, which takes many times as long as the bits of a small buffer.
_idle: list[np.random.Philox] = []
_ZEROS: Final = np.zeros(4, np.uint64)


def random_bits(count: int, key: int) -> np.ndarray:
    """Returns `count` 64-bit numbers; NumPy keeps the raw bits of Philox stable across versions."""
    try:
        generator = _idle.pop()
    except IndexError:
        generator = np.random.Philox(key=key)
    generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _ZEROS, "key": np.array([key & MASK64, key >> 64], np.uint64)},
        "buffer": _ZEROS,
        "buffer_pos": len(_ZEROS),
        "has_uint32": 0,
        "uinteger": 0,
    }
    bits: np.ndarray = generator.random_raw(count)
    _idle.append(generator)
    return bits

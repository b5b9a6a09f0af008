"""Random bits that a key alone decides, the same in every version of NumPy.

Knows nothing of seeds, epochs or rows. Invariant: threads that ask at once, and a handler of
signals between, get the bits of their own keys.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dataservice.sharding import MASK64

# A new generator draws a seed of the system's first, also where a key is given: that takes many
# times as long as the bits of a small buffer.
_idle: list[np.random.Philox] = []
_ZEROS: Final = np.zeros(4, np.uint64)


def random_bits(count: int, key: int) -> np.ndarray:
    """`count` numbers of 64 bits. NumPy keeps the raw bits of Philox stable over versions."""
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

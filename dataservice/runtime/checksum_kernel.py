"""The loop of `checksum` over words, in machine code.

Knows arrays only. Importing this module imports Numba, which takes longer than importing all the
rest of a data worker. Invariant: the value depends on the words alone, whatever the machine.
"""

from __future__ import annotations

import os

import numpy as np
from numba import njit, types

from dataservice.runtime.kernel_cache import configure_numba

configure_numba(os.path.dirname(__file__))

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_UP = np.uint64(31)
_DOWN = np.uint64(33)
_FOLD = np.uint64(29)

_WORDS = types.Array(types.uint64, 1, "C", readonly=True)


@njit(types.uint64(_WORDS, types.uint64, types.uint64), nogil=True, cache=True)
def mix(words: np.ndarray, rest: np.uint64, size: np.uint64) -> np.uint64:
    """Runs four lanes over words (n,) and mixes them into one value; arithmetic is modulo 2^64."""
    a, b, c, d = _PRIME_1, _PRIME_2, np.uint64(0), size
    whole = words.size - words.size % 4
    for i in range(0, whole, 4):
        a = (a ^ words[i]) * _PRIME_1
        a = (a << _UP) | (a >> _DOWN)
        b = (b ^ words[i + 1]) * _PRIME_1
        b = (b << _UP) | (b >> _DOWN)
        c = (c ^ words[i + 2]) * _PRIME_1
        c = (c << _UP) | (c >> _DOWN)
        d = (d ^ words[i + 3]) * _PRIME_1
        d = (d << _UP) | (d >> _DOWN)
    for i in range(whole, words.size):
        a = (a ^ words[i]) * _PRIME_1
        a = (a << _UP) | (a >> _DOWN)
    mixed = (a ^ rest) * _PRIME_1
    for lane in (b, c, d):
        mixed = ((mixed << _UP) | (mixed >> _DOWN)) ^ lane
        mixed = mixed * _PRIME_2
        mixed ^= mixed >> _FOLD
    return mixed

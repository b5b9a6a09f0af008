"""The batches, sizes and rates with which `bench.models` and its peer train.

Needs NumPy alone, so that programs of other frameworks can import it. Ids are rows of one table,
which the fields share: each has its own part.
"""

from __future__ import annotations

import numpy as np

from bench.columns import CATEGORICAL, DENSE

FIELDS, NUMBERS = len(CATEGORICAL), len(DENSE)
# 26 fields of this size have 10^5 rows together, nearly.
ROWS_OF_FIELD = 3_846
ROWS = FIELDS * ROWS_OF_FIELD
HIDDEN = (64, 32)
BOTTOM = (64,)
CROSSES = 2
LEARNING_RATE, INITIAL_ACCUMULATOR, EPSILON = 0.02, 0.1, 1e-7
KINDS = ("LogisticRegression", "FactorizationMachine", "WideDeep", "DeepFM", "DLRM", "DCNv2")
IDS = ("zipf", "uniform")

_ZIPF_EXPONENT = 1.1
_ROWS_IN_MEMORY = 131_072

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


def batches(batch: int, ids: str) -> list[Batch]:
    """Returns, for each batch, labels float32 (n,), dense float32 (n, 13) and ids int64 (n, 26)."""
    random = np.random.default_rng(7)
    return [_draw(random, batch, ids) for _ in range(max(_ROWS_IN_MEMORY // batch, 2))]


def _draw(random: np.random.Generator, batch: int, ids: str) -> Batch:
    dense = random.standard_normal((batch, NUMBERS), dtype=np.float32)
    uniform = random.random((batch, FIELDS))
    ranks = _zipf_ranks(uniform) if ids == "zipf" else (uniform * ROWS_OF_FIELD).astype(np.int64)
    rows = ranks + np.arange(FIELDS, dtype=np.int64) * ROWS_OF_FIELD
    logits = dense @ np.linspace(-0.5, 0.5, NUMBERS, dtype=np.float32)
    labels = random.random(batch) < 1 / (1 + np.exp(-logits))
    return labels.astype(np.float32), dense, rows


def _zipf_ranks(uniform: np.ndarray) -> np.ndarray:
    """Returns ranks by the inverse distribution of a bounded power law."""
    power = 1.0 - _ZIPF_EXPONENT
    top = float(ROWS_OF_FIELD + 1) ** power
    ranks = (1.0 - uniform * (1.0 - top)) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64) - 1, ROWS_OF_FIELD - 1)

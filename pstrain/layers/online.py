"""Ids for keys of which there is no list: each gets one of its own when it is first trained on.

Must not know how keys are kept. Invariant: an id is in ``[0, capacity)``, 0 that of all keys
without one of their own.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.features import columns
from pstrain.features.bags import is_list
from pstrain.features.key_rows import KeyRows


class OnlineLookup:
    """Integers or strings to ids, for an ``Embedding`` of ``capacity`` rows, without a vocabulary.

    A key gets an id when a trainer first meets it, or meets it for the ``min_count``-th time by
    its own count; all trainers share the ids. Others have id 0: keys before that, nulls, keys in
    evaluation that were never trained on, and keys for which no id is left, which begins where
    more than nine tenths are used (``stats()`` counts). Ids are spread by the keys' hash, so which
    of two keys gets which depends on who comes first. Strings count as their 64-bit hash: of n of
    them two share an id with a probability of about n²/2^65. Integers are exact; the smallest
    int64, and 2^63, count as null. A process remembers the keys that have ids and that it has met,
    in 32 to 64 bytes each, and as many of those that never get one. It counts about a million
    others, and forgets rare ones for new ones, so of more a key may have to come more often, or
    never gets an id; what is counted is not saved.

    ``capacity``: one, or a list of those of several fields, as ``Embedding`` has them.
    Make it inside ``strategy.scope()``, and save it with the table:
    ``Checkpoint(table=table, lookup=lookup)``. A claim is no part of its step: of one that fails,
    an id may remain that nobody has trained, and it stays the key's. What is restored or assigned
    waits for closures that run; none of them can assign it. In the V1 form the chief alone assigns
    or restores one, and not while other workers train. Only what was read of a mapping can be
    assigned. A capacity stays what it is: a checkpoint with another is refused.
    """

    def __init__(
        self, capacity: Sequence[int] | int, *, min_count: int = 1, name: str = "online_lookup"
    ) -> None:
        is_one = isinstance(capacity, numbers.Number)
        if not is_one and (isinstance(capacity, str) or not isinstance(capacity, Iterable)):
            raise InvalidTypeError(
                f"layer {name!r} needs a capacity, an integer or a list of those of several "
                f"fields, got {capacity!r}"
            )
        self.capacities: tuple[int, ...] = (capacity,) if is_one else tuple(capacity)  # type: ignore
        if not self.capacities:
            raise InvalidArgumentError(f"layer {name!r} needs a capacity")
        self.name = name
        counts = [min_count] * len(self.capacities)
        self._rows = KeyRows(self.capacities, counts, name)
        self.variables = [self._rows.variable]
        fields = np.arange(len(self.capacities))
        self._places = fields, fields, np.zeros_like(fields), np.zeros_like(fields)

    @property
    def saved_variables(self) -> list[Any]:
        """The same as ``variables``."""
        return self.variables

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Ids, int64 of the inputs' shape: [n, fields], or any where there is one field.

        Arrow arrays, also of lists, become Arrow arrays. Keys that are new get ids with
        ``training``; None: inside of a ``GradientTape``.
        """
        if isinstance(inputs, pa.ChunkedArray):
            inputs = inputs.combine_chunks()
        if isinstance(inputs, pa.Array) and is_list(inputs.type):
            flat = self(inputs.flatten(), training)
            lengths = inputs.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            return pa.LargeListArray.from_arrays(offsets, flat)
        keys = self._keys(inputs)
        ids = self._rows.look_up(keys, *self._places, training)
        return (
            pa.array(ids.reshape(-1))
            if isinstance(inputs, pa.Array)
            else ids.reshape(np.shape(inputs))
        )

    def _keys(self, inputs: Any) -> NDArray[np.int64]:
        """int64 [n, fields]."""
        fields = len(self.capacities)
        shape: tuple[int, ...] = (
            (len(inputs),) if isinstance(inputs, pa.Array) else np.shape(inputs)
        )
        if fields > 1 and (len(shape) != 2 or shape[1] != fields):
            raise InvalidArgumentError(
                f"layer {self.name!r} takes keys [n, {fields}], got shape {shape}"
            )
        column = inputs if isinstance(inputs, pa.Array) else _column(inputs)
        keys = np.empty((len(column), 1), np.int64)
        columns.keys_into(self.name, column, keys, 0)
        return keys.reshape(-1, fields)

    def __len__(self) -> int:
        """Keys that have an id of their own."""
        return self.stats()["used"]

    def __bool__(self) -> bool:
        return True

    def stats(self) -> dict[str, int]:
        """``used`` ids, ``capacity`` (without the 0 of each field), and claims ``refused``.

        Asks the servers, which count those that found no id left since they were started: most keys
        once for each process that meets them.
        """
        return self._rows.stats()

    def __repr__(self) -> str:
        return f"<OnlineLookup {self.name!r} {', '.join(map(str, self.capacities))}>"


def _column(inputs: Any) -> pa.Array:
    flat = np.asarray(inputs).reshape(-1)
    if not len(flat):
        return pa.array([], pa.int64())
    return pa.array(flat.tolist() if flat.dtype.kind in "OUST" else np.ascontiguousarray(flat))

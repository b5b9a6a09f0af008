"""Ids for keys without a vocabulary: a key gets an id of its own when it is first trained on.

Must not know how keys are stored. Invariant: an id is in ``[0, capacity)``, and 0 is the id of all
keys that have none of their own.
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
from pstrain.features.bags import Lists, is_list
from pstrain.features.batches import flat_column
from pstrain.features.key_rows import KeyRows
from pstrain.layers.evictions import checked_keep, tables_of


class OnlineLookup:
    """A lookup without a vocabulary: integers or strings to rows of an ``Embedding``.

    A key gets an id of its own when a trainer first meets it, or meets it for the ``min_count``-th
    time by that trainer's own count; all trainers share the ids. Id 0 stands for all other keys:
    those not met often enough yet, nulls, keys in evaluation that were never trained on, and keys
    for which no id is left. The last case begins to occur when more than nine tenths of the ids are
    used; ``stats()`` counts it, and :meth:`evict` frees ids. Ids are spread by the keys' hash, so
    which of two keys gets which id depends on which comes first. Strings count as their 64-bit
    hash: among n strings two share an id with a probability of about n²/2^65. Integers are exact,
    except that the two smallest int64, 2^63 and 2^63 + 1 count as null.

    A process remembers the keys with ids that it has met, and keys for which no id is left, up to
    as many as there are ids, in 32 to 64 bytes each; a key that was evaluated before it was trained
    on counts twice. It counts up to about a million keys that have no id yet, and forgets rare ones
    in favour of new ones: with more of them, a key may have to occur more often than ``min_count``,
    or never gets an id. These counts are not saved.

    ``capacity``: a number, or a list of one per field, as in ``Embedding``. Make the lookup inside
    ``strategy.scope()``, and save it with the table: ``Checkpoint(table=table, lookup=lookup)``.
    Claiming an id is not part of the step: if the step fails, the key may keep its id although
    nothing was trained under it. A restore or an assignment waits for running closures; closures
    cannot assign. In the V1 form only the chief may assign or restore a lookup, and not while other
    workers train. Only values that were read from a lookup can be assigned to one. The capacity is
    fixed: a checkpoint with another capacity is refused.
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
        """Returns ids, int64 of the inputs' shape: [n, fields], or any shape for a single field.

        Returns Arrow arrays for Arrow arrays, also for lists. New keys get ids if ``training``;
        None: if called inside a ``GradientTape``.
        """
        if isinstance(inputs, pa.ChunkedArray):
            inputs = inputs.combine_chunks()
        if isinstance(inputs, pa.Array) and is_list(inputs.type):
            lists = Lists(self.name, inputs)
            return lists.holding(self(lists.values, training))
        keys = self._keys(inputs)
        ids = self._rows.look_up(keys, *self._places, training)
        return (
            pa.array(ids.reshape(-1))
            if isinstance(inputs, pa.Array)
            else ids.reshape(np.shape(inputs))
        )

    def _keys(self, inputs: Any) -> NDArray[np.int64]:
        """Returns the inputs as keys, int64 [n, fields]."""
        fields = len(self.capacities)
        shape: tuple[int, ...] = (
            (len(inputs),) if isinstance(inputs, pa.Array) else np.shape(inputs)
        )
        if fields > 1 and (len(shape) != 2 or shape[1] != fields):
            raise InvalidArgumentError(
                f"layer {self.name!r} takes keys [n, {fields}], got shape {shape}"
            )
        column = inputs if isinstance(inputs, pa.Array) else flat_column(inputs)
        keys = np.empty((len(column), 1), np.int64)
        columns.keys_into(self.name, column, keys, 0)
        return keys.reshape(-1, fields)

    def evict(self, keep: Sequence[int] | int, tables: Any) -> int:
        """Removes the keys that were trained on least recently, so that ``keep`` are left. Blocks.

        Returns how many. ``keep``: a number, or a list of one per field. ``tables``: the layers or
        variables that the ids are rows of, one or a list. The rows of a removed key get their
        initial values, and new optimizer slots (rows of a variable that was made from an array: 0),
        and other keys may get its id. A removed key that comes again is a new key.

        A key was trained on recently if a trainer met it since a recent call: calls are the only
        measure of time. So call it often, such as every thousand steps, with a ``keep`` that leaves
        room for the new keys until the next call. A call that has nothing to remove counts too.
        Keys that count as equally recent are chosen as if by chance. After a restore all count as
        equally recent.

        No closure runs meanwhile: running ones end first, others wait. If a parameter server is
        lost, the eviction is undone with all else that is not in the checkpoint, and is done again
        if this call has not returned. If the call fails, each key still has its row, with trained
        or with initial values, or is removed. Without a coordinator, no other thread may train
        meanwhile. Raises UnimplementedError in the V1 form, and FailedPreconditionError in a
        scheduled function.
        """
        limits = checked_keep(self.name, keep, self.capacities)
        parameters = self.variables[0].parameters
        found = tables_of(self.name, tables, self.capacities, parameters)
        return self._rows.evict(limits, found)

    def __len__(self) -> int:
        """Returns the number of keys that have an id of their own."""
        return self.stats()["used"]

    def __bool__(self) -> bool:
        return True

    def stats(self) -> dict[str, int]:
        """Returns how many ids are ``used``, the ``capacity``, and how many claims are ``refused``.

        ``capacity`` leaves out id 0 of each field. Asks the servers. ``refused`` counts the claims
        that found no id left since the servers were started: most keys once per process that meets
        them.
        """
        return self._rows.stats()

    def __repr__(self) -> str:
        return f"<OnlineLookup {self.name!r} {', '.join(map(str, self.capacities))}>"

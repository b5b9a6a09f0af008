"""Names of tf.data that a Dataset does not have, and what to use instead.

Responsible for the texts of errors only. Invariant: a Dataset has no attribute of these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

_OPTIONS: Final = "options are arguments of shuffle, map and interleave, and of distribute"
_OLD_ITERATOR: Final = "write iter(dataset)"
_REMEDIES: Final = {
    "assert_cardinality": "leave it out: no number has to be promised here",
    "as_numpy_iterator": "numpy() gives a dict of arrays per batch, rows() a dict per row",
    "counter": "write range(start, stop), or range(n).repeat().enumerate()",
    "element_spec": "it is `schema`, an Arrow schema",
    "from_dict": "write from_numpy(arrays), with a dict of arrays or lists by column",
    "from_list": "write from_table(pyarrow.Table.from_pylist(rows))",
    "from_pandas": "write from_table(pyarrow.Table.from_pandas(frame))",
    "from_pydict": "write from_numpy(arrays), with a dict of arrays or lists by column",
    "from_tensors": "from_numpy takes a dict of arrays, of one row each here",
    "get_single_element": "take next(iter(dataset)), a record batch",
    "ignore_errors": 'say on_error="skip" to from_csv, map, filter or distribute',
    "make_initializable_iterator": _OLD_ITERATOR,
    "make_one_shot_iterator": _OLD_ITERATOR,
    "options": _OPTIONS,
    "with_options": _OPTIONS,
    "ragged_batch": "batch keeps lists at their own lengths",
    "sparse_batch": "batch keeps lists at their own lengths",
    "random": "map range(n) with a function that draws numbers",
    "rebatch": "write unbatch().batch(n)",
    "rejection_resample": "filter by a function that draws numbers",
    "prefetch_to_device": 'write torch(), and batch["x"].to("cuda", non_blocking=True)',
    "reduce": "go over numpy() in a loop, or compute over to_table()",
    "save": "dataservice.save(dataset, path, service) writes on the data workers",
    "scan": "functions see no rows but those they are given: go over numpy() in a loop",
    "snapshot": "cache(path) keeps elements here, dataservice.save(...) writes a snapshot",
    "to_pandas": "write to_table().to_pandas()",
    "to_parquet": "give each batch to a pyarrow.parquet.ParquetWriter, or dataservice.save(...)",
    "take_while": "filter leaves rows out; to end at one, break out of a loop over numpy()",
    "unique": "compute over to_table(), for example with group_by",
    "window": "batch(n) makes elements of n rows; group_by_window gathers by a key",
}


def no_attribute(name: str, owner: Any) -> NoReturn:
    """Raises the AttributeError for a Dataset, or its class, that has no attribute ``name``."""
    hint = f": {_REMEDIES[name]}" if name in _REMEDIES else ""
    raise AttributeError(f"a Dataset has no attribute {name!r}{hint}", name=name, obj=owner)


class HintingType(type):
    """A metaclass whose errors for unknown names give hints, as for Dataset.from_tensors(...)."""

    if not TYPE_CHECKING:  # type checkers should still report unknown names

        def __getattr__(cls, name: str) -> NoReturn:
            no_attribute(name, cls)

"""Arguments that tf.data's methods take and a Dataset's do not, and what to write instead.

Responsible for the texts of errors, and for making the methods raise them. Invariant: no argument
listed here is one that the method takes.
"""

from __future__ import annotations

import inspect
from typing import Any, Final, TypeVar

from dataservice.runtime.refused_arguments import refuse_arguments
from dataservice.runtime.refused_timeouts import TIMEOUT

Made = TypeVar("Made", bound=type[Any])

_NAME: Final = {"name": "operators have no names: leave it out"}
_FN: Final = {"map_func": "write fn="}
_SCHEMA: Final = "write schema=, a pyarrow.Schema"
_FILES: Final = {"filenames": "write paths="}
_NAMED_ONLY: Final = (
    "batch",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "from_tensor_slices",
    "group_by_window",
    "padded_batch",
    "prefetch",
    "repeat",
    "sample_from_datasets",
    "shard",
    "shuffle",
    "skip",
    "take",
    "unbatch",
)
REMEDIES: Final = {
    **dict.fromkeys(_NAMED_ONLY, _NAME),
    "apply": {"transformation_func": "write fn="},
    "cache": {"filename": "write path="} | _NAME,
    "concatenate": {"dataset": "write other="} | _NAME,
    "filter": {"predicate": "write expression_or_fn="} | _NAME,
    "flat_map": _FN | _NAME,
    "from_csv": _FILES
    | {
        "record_defaults": f"{_SCHEMA}; a missing value is null, a missing text is empty",
        "column_names": f"{_SCHEMA}, and header=False if the files have no line of names",
        "field_delim": "write delimiter=",
        "na_value": "write null_values=[...]",
        "select_cols": "write select(columns) behind it",
    },
    "from_generator": {
        "generator": "write fn=, a function that returns an iterator",
        "args": "write fn=functools.partial(function, ...)",
        "output_shapes": _SCHEMA,
        "output_signature": _SCHEMA,
        "output_types": _SCHEMA,
    }
    | _NAME,
    "from_tfrecord": _FILES
    | {
        "compression_type": "write compression=",
        "buffer_size": "files are read ahead as it is: leave it out",
        "num_parallel_reads": "files are read ahead as it is: leave it out",
    }
    | _NAME,
    "interleave": _FN | _NAME,
    "list_files": {"file_pattern": "write pattern="} | _NAME,
    "load": {
        "compression": "files say how they are compressed: leave it out",
        "reader_func": "write shuffle(buffer_size) or the like behind it",
    }
    | TIMEOUT,
    "map": _FN | _NAME,
    "range": {"output_type": 'write with_column("id", col("id").cast("int32")) behind it'} | _NAME,
    "zip": {"datasets": "write Dataset.zip(a, b)"} | _NAME,
}


def refuse_foreign_arguments(made: Made) -> Made:
    """Class decorator: the methods raise InvalidTypeError, with the remedy, for these arguments."""
    for method, remedies in REMEDIES.items():
        refuse = refuse_arguments(method, remedies)
        found = inspect.getattr_static(made, method)
        if isinstance(found, classmethod | staticmethod):
            setattr(made, method, type(found)(refuse(found.__func__)))
        else:
            setattr(made, method, refuse(found))
    return made

"""The module of each public name, loaded on first use, and hints for tf.data names that are absent.

`dataservice/__init__.py` resolves names here. So does a lower layer that has to call a higher one:
a Dataset, which is built and run without the service, resolves `distribute`. Invariants: this
module imports no other module of the package until a name is resolved, and the package of datasets
before any of its modules.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

MODULES: Final = {"errors": "dataservice.errors"}
HOMES: Final = {
    "Dataset": "dataservice.dataset.dataset",
    "col": "dataservice.dataset.expressions",
    "lit": "dataservice.dataset.expressions",
    "sample_from_datasets": "dataservice.dataset.dataset",
    "choose_from_datasets": "dataservice.dataset.dataset",
    "INFINITE_CARDINALITY": "dataservice.dataset.node",
    "UNKNOWN_CARDINALITY": "dataservice.dataset.node",
    "ShardingPolicy": "dataservice.vocabulary",
    "SHARD_HINT": "dataservice.vocabulary",
    "AUTOTUNE": "dataservice.vocabulary",
    "register_dataset": "dataservice.client.registration",
    "from_dataset_id": "dataservice.client.api",
    "distribute": "dataservice.client.api",
    "release_readers": "dataservice.client.api",
    "CrossTrainerCache": "dataservice.client.arguments",
    "save": "dataservice.client.snapshots",
    "Snapshot": "dataservice.client.snapshots",
    "SnapshotProgress": "dataservice.client.snapshots",
    "is_service_state": "dataservice.client.positions",
    "merge_states": "dataservice.client.positions",
    "rewound_state": "dataservice.client.positions",
    "DispatchServer": "dataservice.dispatcher.server",
    "DispatcherConfig": "dataservice.config",
    "WorkerServer": "dataservice.worker.server",
    "WorkerConfig": "dataservice.config",
    "MonitorServer": "dataservice.monitoring.server",
    "DataServiceError": "dataservice.errors",
    "DataServiceWarning": "dataservice.errors",
}

_DATASETS: Final = "dataservice.dataset"
_WITHOUT_DATASETS: Final = frozenset(
    {
        "dataservice.client.arguments",
        "dataservice.client.positions",
        "dataservice.config",
        "dataservice.dispatcher.server",
        "dataservice.errors",
        "dataservice.monitoring.server",
        "dataservice.vocabulary",
    }
)

_OF_DATASETS: Final = "options are arguments of shuffle, map and interleave, and of distribute"
_HERE: Final = "its names are here, in dataservice itself"
_METHOD: Final = "it is a method of Dataset"
_TABLE: Final = "compute over dataset.to_table(), for example with group_by"
_TO_DEVICE: Final = 'write dataset.torch(), and batch["x"].to("cuda", non_blocking=True)'
_EXAMPLES: Final = "write Dataset.from_tfrecord(paths, features=...)"
_FEATURE: Final = (
    "features have Arrow types: write Dataset.from_tfrecord(paths, features={'x': "
    "pyarrow.float32(), 'ids': pyarrow.list_(pyarrow.int64())})"
)
_GENERATOR: Final = "write Dataset.from_generator(fn, schema)"
_ITERATOR: Final = "write iter(dataset), iter(dataset.numpy()) or iter(dataset.rows())"
_PYTHON: Final = "functions are Python and NumPy: give them to dataset.map"
_LISTS: Final = "write dataset.batch(n), which keeps lists at their own lengths"
_LOOP: Final = "go over dataset.numpy() in a loop"
FOREIGN: Final = {
    "AutoShardPolicy": "strategies shard by pstrain.AutoShardPolicy",
    "AutotuneOptions": _OF_DATASETS,
    "Counter": "write Dataset.range(start, stop), or range(n).repeat().enumerate()",
    "CsvDataset": "write Dataset.from_csv(paths)",
    "DistributeOptions": _OF_DATASETS,
    "ExternalStatePolicy": "functions travel with what they hold",
    "FixedLenFeature": _FEATURE,
    "FixedLengthRecordDataset": _GENERATOR,
    "Iterator": _ITERATOR,
    "NumpyIterator": _ITERATOR,
    "OptimizationOptions": _OF_DATASETS,
    "Options": _OF_DATASETS,
    "RaggedFeature": _FEATURE,
    "RaggedTensor": _LISTS,
    "RandomDataset": "map Dataset.range(n) with a function that draws numbers",
    "ServiceOptions": _OF_DATASETS,
    "SqlDataset": _GENERATOR,
    "TFRecordDataset": _EXAMPLES,
    "TFRecordWriter": "write save(dataset, path, service)",
    "TensorSpec": "types are Arrow's: pyarrow.schema([('x', pyarrow.float32())])",
    "TextLineDataset": "write Dataset.from_csv(paths, schema) or from_generator(fn, schema)",
    "ThreadingOptions": _OF_DATASETS,
    "VarLenFeature": _FEATURE,
    "assert_cardinality": "leave it out: no number has to be promised here",
    "bucket_by_sequence_length": _METHOD,
    "cardinality": _METHOD,
    "compat": _HERE,
    "copy_to_device": _TO_DEVICE,
    "data": _HERE,
    "dense_to_ragged_batch": _LISTS,
    "dense_to_sparse_batch": _LISTS,
    "distributed_save": "write save(dataset, path, service)",
    "enumerate_dataset": "write dataset.enumerate()",
    "experimental": _HERE,
    "from_list": "write Dataset.from_table(pyarrow.Table.from_pylist(rows))",
    "get_next_as_optional": "write next(iterator, None)",
    "get_single_element": "take next(iter(dataset)), a record batch",
    "group_by_reducer": _TABLE,
    "group_by_window": _METHOD,
    "ignore_errors": 'say on_error="skip" to from_csv, map, filter or distribute',
    "io": _FEATURE,
    "load": _METHOD,
    "make_batched_features_dataset": _EXAMPLES,
    "make_csv_dataset": "write Dataset.from_csv(paths)",
    "map_and_batch": "write dataset.map(fn).batch(n)",
    "numpy_function": _PYTHON,
    "parallel_interleave": "write dataset.interleave(fn, cycle_length)",
    "parse_example": _FEATURE,
    "parse_example_dataset": _EXAMPLES,
    "parse_single_example": _FEATURE,
    "prefetch_to_device": _TO_DEVICE,
    "py_function": _PYTHON,
    "rejection_resample": "filter by a function that draws numbers",
    "scan": _LOOP,
    "service": _HERE,
    "shuffle_and_repeat": "write dataset.shuffle(buffer_size).repeat()",
    "snapshot": "write save(dataset, path, service)",
    "take_while": f"{_LOOP}, and break",
    "unbatch": _METHOD,
    "unique": _TABLE,
    "zip": _METHOD,
}


def resolve(name: str) -> Any:
    """Returns the object that a public name stands for; imports its module."""
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    home = HOMES[name]
    if home not in _WITHOUT_DATASETS:
        load_datasets()
    return getattr(importlib.import_module(home), name)


def load_datasets() -> None:
    """Imports the package of datasets; has to come before the import of any of its modules.

    Python begins the import of a module before that of its package. So a thread that began with a
    module would wait for one that loads the package, as a dispatcher in this process does in the
    background, and that one for the module: Python then raises an error in one of them.
    """
    importlib.import_module(_DATASETS)

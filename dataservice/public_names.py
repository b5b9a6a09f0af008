"""The module of each public name, loaded on first use, and hints for tf.data names that are absent.

`dataservice/__init__.py` resolves names here. So does a lower layer that has to call a higher one:
a Dataset, which is built and run without the service, resolves `distribute`. Invariant: this module
imports no other module of the package until a name is resolved.
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
    "DataServiceError": "dataservice.errors",
    "DataServiceWarning": "dataservice.errors",
}

_OF_DATASETS: Final = "options are arguments of shuffle, map and interleave, and of distribute"
_HERE: Final = "its names are here, in dataservice itself"
FOREIGN: Final = {
    "AutoShardPolicy": "strategies shard by pstrain.AutoShardPolicy",
    "CsvDataset": "write Dataset.from_csv(paths)",
    "ExternalStatePolicy": "functions travel with what they hold",
    "FixedLengthRecordDataset": "write Dataset.from_generator(fn, schema)",
    "Options": _OF_DATASETS,
    "TFRecordDataset": "write Dataset.from_tfrecord(paths, features=...)",
    "TextLineDataset": "write Dataset.from_csv(paths, schema) or from_generator(fn, schema)",
    "data": _HERE,
    "distributed_save": "write save(dataset, path, service)",
    "experimental": _HERE,
    "make_csv_dataset": "write Dataset.from_csv(paths)",
    "parallel_interleave": "write dataset.interleave(fn, cycle_length)",
    "service": _HERE,
    "snapshot": "write save(dataset, path, service)",
}


def resolve(name: str) -> Any:
    """Returns the object that a public name stands for; imports its module."""
    if name in MODULES:
        return importlib.import_module(MODULES[name])
    return getattr(importlib.import_module(HOMES[name]), name)

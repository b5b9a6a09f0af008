"""Public names of the data service.

Names are resolved on first use, so that importing the package costs next to nothing and a process
that only speaks to a dispatcher loads no more than it needs.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from dataservice.public_names import FOREIGN, HOMES, MODULES, resolve

if TYPE_CHECKING:
    from dataservice import errors
    from dataservice.client.api import distribute, from_dataset_id, release_readers
    from dataservice.client.arguments import CrossTrainerCache
    from dataservice.client.positions import is_service_state, merge_states, rewound_state
    from dataservice.client.registration import register_dataset
    from dataservice.client.snapshots import Snapshot, SnapshotProgress, save
    from dataservice.config import DispatcherConfig, WorkerConfig
    from dataservice.dataset.dataset import Dataset, choose_from_datasets, sample_from_datasets
    from dataservice.dataset.expressions import col, lit
    from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
    from dataservice.dispatcher.server import DispatchServer
    from dataservice.errors import DataServiceError, DataServiceWarning
    from dataservice.monitoring.server import MonitorServer
    from dataservice.vocabulary import AUTOTUNE, SHARD_HINT, ShardingPolicy
    from dataservice.worker.server import WorkerServer

# Otherwise gRPC starts its threads again in a forked child, where they read what comes for the
# parent's streams, and crash it. Here, because gRPC reads it once, when any module imports it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__all__ = [
    "Dataset",
    "col",
    "lit",
    "sample_from_datasets",
    "choose_from_datasets",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "ShardingPolicy",
    "SHARD_HINT",
    "AUTOTUNE",
    "register_dataset",
    "from_dataset_id",
    "distribute",
    "release_readers",
    "CrossTrainerCache",
    "save",
    "Snapshot",
    "SnapshotProgress",
    "is_service_state",
    "merge_states",
    "rewound_state",
    "DispatchServer",
    "DispatcherConfig",
    "WorkerServer",
    "WorkerConfig",
    "MonitorServer",
    "errors",
    "DataServiceError",
    "DataServiceWarning",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("dataservice.runtime.installed").installed_version()
    if name not in HOMES and name not in MODULES:
        missing_names = importlib.import_module("dataservice.runtime.missing_names")
        missing_names.no_name(__name__, name, FOREIGN.get(name), sys._getframe(1))
    value = resolve(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

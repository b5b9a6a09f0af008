"""Public names of parameter-server training. Each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    # cluster
    "ClusterSpec": "pstrain.cluster",
    "SimpleClusterResolver": "pstrain.cluster",
    "TFConfigClusterResolver": "pstrain.cluster",
    "UnionResolver": "pstrain.resolvers.union",
    "SlurmClusterResolver": "pstrain.resolvers.slurm",
    "KubernetesClusterResolver": "pstrain.resolvers.kubernetes",
    "Server": "pstrain.server",
    "LocalCluster": "pstrain.launch.local",
    # strategy and variables
    "ParameterServerStrategy": "pstrain.strategy",
    "get_strategy": "pstrain.strategy",
    "has_strategy": "pstrain.strategy",
    "ReduceOp": "pstrain.replica",
    "ValueContext": "pstrain.replica",
    "get_replica_context": "pstrain.replica",
    "in_cross_replica_context": "pstrain.replica",
    "AutoShardPolicy": "pstrain.input_sharding",
    "InputOptions": "pstrain.input_sharding",
    "Variable": "pstrain.variable",
    "ShardedVariable": "pstrain.variable",
    "ShardInfo": "pstrain.variable",
    "PerWorkerVariable": "pstrain.per_worker_variable",
    "IndexedSlices": "pstrain.indexed_slices",
    # coordinator
    "ClusterCoordinator": "pstrain.coordinator.client",
    "RemoteValue": "pstrain.coordinator.remote_value",
    "InputContext": "pstrain.trainer.context",
    "get_current_worker_index": "pstrain.trainer.context",
    "experimental_get_current_worker_index": "pstrain.trainer.context",
    # models
    "FeatureSchema": "pstrain.features",
    "Category": "pstrain.category",
    "Vocabulary": "pstrain.tokens",
    "GradientTape": "pstrain.tape",
    "Tensor": "pstrain.tape",
    # training
    "Checkpoint": "pstrain.checkpoint",
    "latest_checkpoint": "pstrain.checkpoint",
    "CheckpointManager": "pstrain.checkpoint_manager",
    "checkpoints_iterator": "pstrain.checkpoint_watch",
    "fit": "pstrain.training",
    "evaluate": "pstrain.evaluation",
    "predict": "pstrain.evaluation",
    "SidecarEvaluator": "pstrain.sidecar",
}

_MODULES = {
    "callbacks": "pstrain.callbacks",
    "consistency": "pstrain.consistency",
    "errors": "pstrain.errors",
    "initializers": "pstrain.initializers",
    "layers": "pstrain.layers",
    "losses": "pstrain.losses",
    "metrics": "pstrain.metrics",
    "models": "pstrain.models",
    "optimizers": "pstrain.optimizers",
    "partitioners": "pstrain.partition",
    "v1": "pstrain.v1",
}

# Those that need packages which may not be there are no part of ``__all__``.
_EXTRAS = {"torch": "pstrain.torch"}

__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES or name in _EXTRAS:
        value: Any = importlib.import_module(_MODULES.get(name) or _EXTRAS[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'pstrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""Public names of parameter-server training. Each name is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import dataservice  # noqa: F401  # turns gRPC's support of forks off before anything imports grpc
from pstrain.public_names import lazy_getattr

if TYPE_CHECKING:
    from pstrain import (
        callbacks,
        consistency,
        errors,
        initializers,
        layers,
        losses,
        metrics,
        models,
        optimizers,
        v1,
    )
    from pstrain import partition as partitioners
    from pstrain.checkpoints.checkpoint import Checkpoint, latest_checkpoint
    from pstrain.checkpoints.manager import CheckpointManager
    from pstrain.checkpoints.watch import checkpoints_iterator
    from pstrain.cluster import ClusterSpec, SimpleClusterResolver
    from pstrain.coordinator.client import ClusterCoordinator
    from pstrain.coordinator.join_progress import JoinProgress
    from pstrain.coordinator.local import LocalCoordinator
    from pstrain.coordinator.monitor import MonitorServer
    from pstrain.coordinator.remote_value import RemoteValue
    from pstrain.coordinator.trainer_stats import TrainerStats
    from pstrain.evaluation import evaluate, predict
    from pstrain.features.category import Category
    from pstrain.features.schema import FeatureSchema
    from pstrain.features.tokens import Vocabulary
    from pstrain.gradients.tape import GradientTape
    from pstrain.gradients.tensor import Tensor
    from pstrain.launch.local import LocalCluster
    from pstrain.resolvers.kubernetes import KubernetesClusterResolver
    from pstrain.resolvers.slurm import SlurmClusterResolver
    from pstrain.resolvers.tf_config import TFConfigClusterResolver
    from pstrain.resolvers.union import UnionResolver
    from pstrain.server import Server
    from pstrain.sidecar import SidecarEvaluator
    from pstrain.strategy.default import (
        get_replica_context,
        get_strategy,
        in_cross_replica_context,
    )
    from pstrain.strategy.input_sharding import AutoShardPolicy, InputOptions
    from pstrain.strategy.parameter_server import ParameterServerStrategy
    from pstrain.strategy.replica import ReduceOp, ValueContext
    from pstrain.strategy.scope import has_strategy
    from pstrain.trainer.context import (
        InputContext,
        experimental_get_current_worker_index,
        get_current_worker_index,
    )
    from pstrain.training import fit
    from pstrain.variables.indexed_slices import IndexedSlices
    from pstrain.variables.initial_values import ShardInfo
    from pstrain.variables.per_worker import PerWorkerVariable
    from pstrain.variables.variable import ShardedVariable, Variable

_HOMES = {
    # cluster
    "ClusterSpec": "pstrain.cluster",
    "SimpleClusterResolver": "pstrain.cluster",
    "TFConfigClusterResolver": "pstrain.resolvers.tf_config",
    "UnionResolver": "pstrain.resolvers.union",
    "SlurmClusterResolver": "pstrain.resolvers.slurm",
    "KubernetesClusterResolver": "pstrain.resolvers.kubernetes",
    "Server": "pstrain.server",
    "LocalCluster": "pstrain.launch.local",
    # strategy and variables
    "ParameterServerStrategy": "pstrain.strategy.parameter_server",
    "get_strategy": "pstrain.strategy.default",
    "has_strategy": "pstrain.strategy.scope",
    "ReduceOp": "pstrain.strategy.replica",
    "ValueContext": "pstrain.strategy.replica",
    "get_replica_context": "pstrain.strategy.default",
    "in_cross_replica_context": "pstrain.strategy.default",
    "AutoShardPolicy": "pstrain.strategy.input_sharding",
    "InputOptions": "pstrain.strategy.input_sharding",
    "Variable": "pstrain.variables.variable",
    "ShardedVariable": "pstrain.variables.variable",
    "ShardInfo": "pstrain.variables.initial_values",
    "PerWorkerVariable": "pstrain.variables.per_worker",
    "IndexedSlices": "pstrain.variables.indexed_slices",
    # coordinator
    "ClusterCoordinator": "pstrain.coordinator.client",
    "JoinProgress": "pstrain.coordinator.join_progress",
    "LocalCoordinator": "pstrain.coordinator.local",
    "MonitorServer": "pstrain.coordinator.monitor",
    "RemoteValue": "pstrain.coordinator.remote_value",
    "TrainerStats": "pstrain.coordinator.trainer_stats",
    "InputContext": "pstrain.trainer.context",
    "get_current_worker_index": "pstrain.trainer.context",
    "experimental_get_current_worker_index": "pstrain.trainer.context",
    # models
    "FeatureSchema": "pstrain.features.schema",
    "Category": "pstrain.features.category",
    "Vocabulary": "pstrain.features.tokens",
    "GradientTape": "pstrain.gradients.tape",
    "Tensor": "pstrain.gradients.tensor",
    # training
    "Checkpoint": "pstrain.checkpoints.checkpoint",
    "latest_checkpoint": "pstrain.checkpoints.checkpoint",
    "CheckpointManager": "pstrain.checkpoints.manager",
    "checkpoints_iterator": "pstrain.checkpoints.watch",
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

# Modules that need a package which may not be installed. They are left out of ``__all__``, which
# has to be a list of literals for type checkers.
_EXTRAS = {"torch": "pstrain.torch"}

__all__ = [
    "AutoShardPolicy",
    "Category",
    "Checkpoint",
    "CheckpointManager",
    "ClusterCoordinator",
    "ClusterSpec",
    "FeatureSchema",
    "GradientTape",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "KubernetesClusterResolver",
    "LocalCluster",
    "LocalCoordinator",
    "ParameterServerStrategy",
    "PerWorkerVariable",
    "ReduceOp",
    "JoinProgress",
    "MonitorServer",
    "RemoteValue",
    "TrainerStats",
    "Server",
    "ShardInfo",
    "ShardedVariable",
    "SidecarEvaluator",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "Tensor",
    "UnionResolver",
    "ValueContext",
    "Variable",
    "Vocabulary",
    "callbacks",
    "checkpoints_iterator",
    "consistency",
    "errors",
    "evaluate",
    "experimental_get_current_worker_index",
    "fit",
    "get_current_worker_index",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "initializers",
    "latest_checkpoint",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "partitioners",
    "predict",
    "v1",
]


_of_home = lazy_getattr(__name__, _HOMES, "PSTRAIN", depth=2)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("dataservice.runtime.installed").installed_version()
    if name not in _MODULES and name not in _EXTRAS:
        return _of_home(name)
    value = importlib.import_module(_MODULES.get(name) or _EXTRAS[name])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

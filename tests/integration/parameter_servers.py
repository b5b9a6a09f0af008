"""Real parameter servers for tests, and the strategies and variables that tests put on them.

Invariant: servers end with their context, whatever the test did to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from dataservice.runtime.process.children import ChildProcess, spawn_module
from pstrain import initializers
from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.config import ParameterConfig
from pstrain.partition import FixedShardsPartitioner
from pstrain.strategy import ParameterServerStrategy
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import OptimizerSpec

TOKEN = "token-of-these-tests"
ADAGRAD = OptimizerSpec(
    name="adagrad", learning_rate=0.1, parameters={"epsilon": 1e-7}, slots=(0.1,)
)
SGD = OptimizerSpec(name="sgd", learning_rate=1.0)
DEADLINE_S = 60.0


def spawn_server(port: int = 0) -> ChildProcess:
    arguments = ["--port", str(port)]
    return spawn_module("pstrain.paramserver", arguments, env={"DATASERVICE_TOKEN": TOKEN})


def address_of(process: ChildProcess) -> str:
    return str(process.wait_ready(DEADLINE_S)["address"])


@contextmanager
def running_servers(count: int) -> Iterator[list[str]]:
    """Runs ``count`` servers, and yields their addresses."""
    with ExitStack() as running:
        processes = [spawn_server() for _ in range(count)]
        for process in processes:
            running.callback(process.terminate)
        yield [address_of(process) for process in processes]


def strategy_on(
    addresses: list[str],
    shards: int = 2,
    config: ParameterConfig | None = None,
    transport_dtype: str = "float32",
) -> ParameterServerStrategy:
    resolver = SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"], "ps": addresses}))
    resolver.token = TOKEN
    return ParameterServerStrategy(
        resolver, FixedShardsPartitioner(shards), config=config, transport_dtype=transport_dtype
    )


def make_table(rows: int = 1000, width: int = 5) -> Any:
    return create_variable(initializers.normal(seed=1), shape=(rows, width), name="table")


def make_model() -> tuple[Any, Any, Any]:
    return make_table(), Variable(np.ones(4, np.float32), name="bias"), Variable(0, name="steps")

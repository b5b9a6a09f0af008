"""The strategy that is there outside of all scopes, and what the calling thread is inside of.

Knows no servers: outside of a scope this process is the only replica, and variables are its own.
Invariant: the default strategy counts as none for ``has_strategy``, and its scope changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pstrain.errors import FailedPreconditionError
from pstrain.strategy.extended import DefaultExtended
from pstrain.strategy.replica import Replica, ReplicaContext, is_outside_replica, replica_context
from pstrain.strategy.scope import entered_strategy, has_strategy
from pstrain.trainer.context import InputContext, call_with_context


class DefaultStrategy(Replica):
    """The strategy of programs without one: one replica, with its variables in this process.

    A program that takes its strategy as an argument runs with it unchanged: models and variables
    made in its scope are those made outside of any, and distributed datasets are the datasets.
    """

    cluster_resolver: Final = None

    def __init__(self) -> None:
        super().__init__()
        self.extended = DefaultExtended(self.scope)

    @property
    def num_input_pipelines(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "<DefaultStrategy>"

    @contextmanager
    def scope(self) -> Iterator[DefaultStrategy]:
        """Returns a context manager that changes nothing.

        FailedPreconditionError inside another strategy's scope.
        """
        if has_strategy():
            raise FailedPreconditionError(
                "another strategy's scope is entered; leave it before entering the default one's"
            )
        yield self

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Returns the dataset itself."""
        return dataset

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[..., Any],
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Returns the dataset that ``dataset_fn(context)`` makes, for the only pipeline."""
        return call_with_context(dataset_fn, InputContext())


DEFAULT: Final = DefaultStrategy()


def get_strategy() -> Any:
    """Returns the strategy whose scope, or whose scheduled function, this thread is in.

    Outside of both, the default strategy, with one replica and variables in this process.
    """
    return entered_strategy() or DEFAULT


def get_replica_context() -> ReplicaContext | None:
    """Returns the context of the replica whose function ``strategy.run`` is calling.

    None elsewhere inside a strategy's scope or a scheduled function. Outside both, returns a
    context in which this process is the only replica.
    """
    if not is_outside_replica():
        return replica_context()
    return None if has_strategy() else ReplicaContext(DEFAULT)


def in_cross_replica_context() -> bool:
    """True inside a strategy's scope or a scheduled function, but not inside ``strategy.run``.

    In this context calls are made on behalf of all replicas.
    """
    return get_replica_context() is None

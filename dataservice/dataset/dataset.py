"""The Dataset that users build: a facade whose methods only make nodes of a plan.

Knows nothing of how a plan is read, run or divided. Invariant: the plan of a Dataset never changes;
only its count of passes, which keys the reshuffling, and its statistics grow.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

import pyarrow as pa

from dataservice.dataset import operators as ops
from dataservice.dataset.division import static_sharding
from dataservice.dataset.foreign_arguments import refuse_foreign_arguments
from dataservice.dataset.foreign_names import HintingType, no_attribute
from dataservice.dataset.formed_iterator import FormedIterator
from dataservice.dataset.iterator import DatasetIterator
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    Node,
    check_depth,
    rewrite,
    unrepeatable,
    walk,
)
from dataservice.dataset.numpy_views import NumpyViews, to_rows
from dataservice.dataset.operator_methods import OperatorMethods, nodes_of
from dataservice.dataset.operators.nested import given_to_functions
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.receipts import ReceiptSources
from dataservice.dataset.seeds import identity_of, node_of_identity, settle_seeds, varied_seeds
from dataservice.dataset.source_methods import SourceMethods
from dataservice.dataset.statistics import DatasetStats, StatsCounter
from dataservice.dataset.stream import RunContext
from dataservice.dataset.uncounted import uncounted_cardinality
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
)
from dataservice.public_names import resolve
from dataservice.runtime.arguments import integer_at_least
from dataservice.vocabulary import ShardingPolicy

if TYPE_CHECKING:
    from dataservice.client.arguments import DistributeOptions


@given_to_functions
@refuse_foreign_arguments
class Dataset(SourceMethods, OperatorMethods, metaclass=HintingType):
    """A lazy, immutable description of rows with one schema; the from_* methods create one."""

    def __init__(self, node: Node) -> None:
        if not isinstance(node, Node):
            raise InvalidTypeError(
                "a Dataset is made by Dataset.range(), Dataset.from_numpy() and the like, not "
                f"from {node!r:.200}"
            )
        check_depth(node)
        super().__init__(node)
        self._passes = itertools.count()
        self._stats = StatsCounter()

    @property
    def node(self) -> Node:
        """The root node of the plan."""
        return self._node

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Dataset:
        """Takes each element from a dataset drawn at random, in proportion to `weights`.

        The draws depend on the seed alone, or with `rerandomize_each_iteration` on the seed and the
        epoch, as without a seed. A dataset that has ended is left out of the draws, or ends the
        result if `stop_on_empty_dataset`.
        """
        nodes = nodes_of(datasets, "sample_from_datasets")
        drawn = secrets.randbits(63) if seed is None else None
        return Dataset(
            ops.SampleFromDatasets(
                nodes,
                stop_on_empty_dataset,
                weights=weights,  # type: ignore[arg-type]
                seed=seed,
                drawn_seed=drawn,
                rerandomize_each_iteration=(
                    seed is None
                    if rerandomize_each_iteration is None
                    else rerandomize_each_iteration
                ),
            )
        )

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
    ) -> Dataset:
        """Takes each element from the dataset whose index is the next row of `choice_dataset`."""
        nodes = nodes_of(datasets, "choose_from_datasets")
        (choice,) = nodes_of([choice_dataset], "choose_from_datasets")
        return Dataset(ops.ChooseFromDatasets(nodes, stop_on_empty_dataset, choice=choice))

    def apply(self, fn: Callable[[Dataset], Dataset]) -> Dataset:
        """Returns `fn(self)`, which must be a Dataset."""
        if not callable(fn):
            raise InvalidTypeError(f"apply takes a function of a Dataset, got {fn!r}")
        result = fn(self)
        if not isinstance(result, Dataset):
            raise InvalidTypeError(
                f"the function given to apply must return a Dataset, it returned {result!r}"
            )
        return result

    def distribute(
        self,
        processing_mode: ShardingPolicy | str,
        service: str | tuple[str, str],
        *arguments: Any,
        **options: Unpack[DistributeOptions],
    ) -> Dataset:
        """Returns the same dataset, run by data workers of a service: `dataservice.distribute`."""
        distribute = resolve("distribute")
        return self.apply(distribute(processing_mode, service, *arguments, **options))

    @property
    def is_distributed(self) -> bool:
        """True if a part of the plan runs on the data service."""
        return any(node.kind == "service" for node in walk(self._node))

    @property
    def is_batched(self) -> bool:
        """True if an element is a record batch, as after `batch(n)`, rather than a row."""
        return self._node.batched

    @property
    def has_private_job(self) -> bool:
        """True if the plan reads a data service without a job name, so each pass is a new job."""
        jobs = [node for node in walk(self._node) if node.kind == "service"]
        return any(getattr(node, "job_name", None) is None for node in jobs)

    def shared(self, job_name: str) -> Dataset:
        """Returns the dataset with `job_name` for its private jobs, so that readers share them."""

        def name(node: Node) -> Node:
            private = node.kind == "service" and getattr(node, "job_name", None) is None
            return dataclasses.replace(node, job_name=job_name) if private else node  # type: ignore

        return Dataset(rewrite(self._node, name))

    def list_shares(self, policy: ShardingPolicy, count: int) -> str:
        """Returns a digest of the files that `count` readers divide, or "" if no files are divided.

        `policy` is FILE, DATA or FILE_OR_DATA. Raises NotFoundError if a source has no files under
        FILE, and InvalidArgumentError if a source has fewer files than there are readers.
        """
        return static_sharding.list_sources(self._node, policy, count)

    def share(self, policy: ShardingPolicy, count: int, index: int, *, listing: str = "") -> Self:
        """Returns what reader `index` of `count` reads: its files, or every `count`-th element.

        `listing` is the result of `list_shares`: raises FailedPreconditionError if the files have
        changed since then. Without it, the files that exist when this is called are divided.
        """
        share = static_sharding.Share(policy, index, count, listing)
        return type(self)(static_sharding.share_of(self._node, share))

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows.

        Found by reading file footers or first rows, and by running functions on those rows.
        """
        return self._node.sample(RunContext()).schema

    def cardinality(self) -> int:
        """Returns the number of elements, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self._node.cardinality()

    def __len__(self) -> int:
        """Returns `cardinality()`; raises TypeError if it is infinite or not known in advance."""
        elements = self.cardinality()
        if elements >= 0:
            return elements
        if elements == INFINITE_CARDINALITY:
            raise InvalidTypeError("an endless dataset has no length; put take(n) after it")
        raise InvalidTypeError(
            "the length of the dataset is not known before it is read; count as you read it, or "
            "ask cardinality(), which is UNKNOWN_CARDINALITY here"
        )

    def __bool__(self) -> bool:
        # Python would ask `__len__` otherwise, and finding the length may take reading files.
        return True

    @property
    def is_endless(self) -> bool:
        """True if the cardinality is INFINITE_CARDINALITY, unless all files turn out to be empty.

        Looks at no file.
        """
        return uncounted_cardinality(self._node) == INFINITE_CARDINALITY

    @property
    def is_repeatable(self) -> bool:
        """True if no operator or source of the plan was declared deterministic=False."""
        return not unrepeatable(self._node)

    @property
    def has_cache(self) -> bool:
        """True if the plan has a cache, which keeps elements once a pass was read to its end."""
        return any(isinstance(node, ops.Cache) for node in walk(self._node))

    def identity(self) -> dict[str, Any]:
        """Returns what a saved position says of the dataset, JSON-able: plan and drawn seeds."""
        return identity_of(self._node)

    def identified(self, identity: Mapping[str, Any]) -> Dataset:
        """Returns the dataset with the seeds of a saved `identity`, to yield the same elements.

        Raises InvalidArgumentError if the identity is of another plan.
        """
        return Dataset(node_of_identity(self._node, identity))

    def settled(self) -> Dataset:
        """Returns the dataset with fixed seeds in place of drawn ones, alike in all programs."""
        return Dataset(settle_seeds(self._node))

    def for_reader(self, index: int) -> Dataset:
        """Returns the dataset for one of several readers that each read all of it.

        Without a seed each reader shuffles in an order of its own, reader 0 in that of the dataset
        itself. What a data service reads stays as it is: its readers share the rows.
        """
        is_same = integer_at_least(index, 0, "index") == 0 or self.is_distributed
        return self if is_same else Dataset(varied_seeds(self._node, str(index)))

    def stats(self) -> DatasetStats:
        """Returns totals over all iterators of this object, with operator times and a verdict."""
        return self._stats.total()

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._node, next(self._passes), self._stats)

    def iterator(
        self, epoch: int, owner: str | None = None, *, restores: bool = False
    ) -> DatasetIterator:
        """Returns an iterator over pass `epoch`, which keys reshuffling and is a job's repetition.

        `iter` counts the passes of this object; processes that read together must agree on the
        number, and pass it here. With an `owner`, rows of a data service count as consumed when a
        `receipt()` of the iterator is acknowledged; if this process is lost, its rows wait for a
        call of `release_readers` for that owner. With `restores`, nothing is read before a position
        is loaded, so that a job which others have read to its end can be moved back to it.
        """
        receipt_sources = None if owner is None else ReceiptSources(owner)
        return DatasetIterator(self._node, epoch, self._stats, receipt_sources, restores=restores)

    def numpy(self) -> FormedIterator:
        """Iterates over one pass as dicts of arrays, without copies where the types allow it.

        The iterator has the methods `state_dict`, `load_state_dict`, `close` and `stats`, as that
        of `iter` has.
        """
        return FormedIterator(iter(self), NumpyViews().of)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterates over one pass, a dict per row: for looking at data, not for training on it."""
        with iter(self) as iterator:
            for batch in iterator:
                yield from to_rows(batch)

    def torch(self) -> Any:
        """Returns an IterableDataset of dicts of tensors with `state_dict` and `load_state_dict`.

        Each dict is a batch, so a loader needs no batch size of its own:
        `DataLoader(dataset.batch(32).torch(), batch_size=None)`. With one, it would stack whole
        batches, or fail if they differ in size or hold text. Raises FailedPreconditionError if the
        package torch is not installed.
        """
        try:
            home = importlib.import_module("dataservice.dataset.torch_dataset")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise FailedPreconditionError(
                "torch() needs the package torch, which is not installed; install pstrain[torch]"
            ) from error
        return home.TorchDataset(self)

    def to_table(self) -> pa.Table:
        """Reads one pass into a table; raises InvalidArgumentError for an endless dataset."""
        if self.is_endless:
            raise InvalidArgumentError("an endless dataset has no table; put take(n) before it")
        with iter(self) as iterator:
            batches = list(iterator)
        if not batches:
            return pa.Table.from_batches([], schema=self.schema)
        try:
            return pa.Table.from_batches(batches)
        except pa.ArrowException as error:
            raise SchemaError(f"the batches differ in their schema: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        homes = {type(node).__module__ for node in walk(self._node)}
        return _from_plan, (encode_plan(self._node), sorted(homes))

    if not TYPE_CHECKING:  # type checkers should still report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute(name, self)

    def __repr__(self) -> str:
        return f"Dataset({' > '.join(node.kind for node in walk(self._node))})"


def _from_plan(plan: bytes, homes: Sequence[str]) -> Dataset:
    # Importing the modules of the operators registers them, so that the plan can be decoded.
    for home in homes:
        importlib.import_module(home)
    return Dataset(decode_plan(plan))


# The names of tf.data.experimental.
sample_from_datasets = Dataset.sample_from_datasets
choose_from_datasets = Dataset.choose_from_datasets

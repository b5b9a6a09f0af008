"""Distributed datasets: each trainer reads a share of one dataset, or makes one of its own.

Knows policies, not how files are read: package ``dataservice`` divides a dataset. Invariant: under
every policy but OFF the trainers' shares are disjoint and together make up the whole dataset.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import dataservice
from dataservice import ShardingPolicy
from dataservice.runtime.arguments import HintingEnumType, nearest
from dataservice.runtime.identity import new_id
from pstrain.errors import InvalidArgumentError, NotFoundError
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.trainer.context import InputContext, call_with_context

logger = logging.getLogger(__name__)


class AutoShardPolicy(enum.IntEnum, metaclass=HintingEnumType):
    """How ``experimental_distribute_dataset`` divides a dataset among trainers.

    OFF: every trainer reads the whole dataset. FILE: trainer i of N reads files i, i + N, ... of
    every file source. DATA: every trainer reads everything and keeps elements i, i + N, ...
    (batches after ``batch``). AUTO: FILE, or DATA if a source has no files or fewer files than
    there are trainers. Under AUTO and DATA, a dataset that the data service reads is one job
    shared by all trainers.
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2


_STATIC = {AutoShardPolicy.FILE: ShardingPolicy.FILE, AutoShardPolicy.DATA: ShardingPolicy.DATA}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """The options of a distributed dataset."""

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO


# The dataclass decorator generates the constructor, so it can be wrapped only afterwards.
_refuse_foreign = refuse_arguments("InputOptions", foreign_arguments.INPUT_OPTIONS)
InputOptions.__init__ = _refuse_foreign(InputOptions.__init__)  # type: ignore[method-assign]


class DistributedDataset:
    """A dataset divided among trainers; ``create_per_worker_dataset`` makes one for each trainer.

    ``trainers``: their number, if it is known: a dataset that cannot be divided among so many
    raises at once, otherwise only on the trainers. Files must not change while it is in use.
    """

    def __init__(self, dataset: Any, options: Any = None, trainers: int | None = None) -> None:
        if not isinstance(dataset, dataservice.Dataset):
            raise InvalidArgumentError(
                f"a Dataset is what can be distributed, got {type(dataset).__name__}; for a "
                "function use distribute_datasets_from_function"
            )
        self.auto_shard_policy = policy_of(options)
        self._dataset = dataset
        self._listing = ""
        if dataset.is_distributed:
            self._dataset = self._one_job(dataset)
            self._policy = AutoShardPolicy.OFF
        elif trainers is None:
            self._policy = self.auto_shard_policy
        else:
            self._policy, self._listing = _division(dataset, self.auto_shard_policy, trainers)

    @property
    def divides_elements(self) -> bool:
        """True if each trainer reads everything and keeps its share; ``trainers`` must be known."""
        return self._policy is AutoShardPolicy.DATA

    @property
    def element_spec(self) -> Any:
        """The Arrow schema of the elements."""
        return self._dataset.schema

    def __call__(self, context: InputContext) -> dataservice.Dataset:
        """Returns the share of the trainer that ``context`` describes."""
        count, index = context.num_input_pipelines, context.input_pipeline_id
        policy, listing = self._policy, self._listing
        if not listing:
            policy, listing = _division(self._dataset, policy, count)
        if policy is AutoShardPolicy.OFF:
            return self._dataset.for_reader(index)
        return self._dataset.share(_STATIC[policy], count, index, listing=listing)

    def __iter__(self) -> NoReturn:
        raise InvalidArgumentError(_NOT_HERE)

    def _one_job(self, dataset: dataservice.Dataset) -> dataservice.Dataset:
        if self.auto_shard_policy is AutoShardPolicy.FILE:
            raise InvalidArgumentError(
                "AutoShardPolicy.FILE divides files, but the data service reads this dataset: use "
                "AUTO, and a ShardingPolicy where you distribute it"
            )
        off = self.auto_shard_policy is AutoShardPolicy.OFF
        return dataset if off else dataset.shared(new_id("distributed"))


def own_share(dataset: Any, options: Any, context: InputContext) -> dataservice.Dataset:
    """Returns one program's share of a dataset that several programs each make for themselves.

    The programs agree only on what is written in the dataset, not on values that each draws, such
    as seeds and job names. InvalidArgumentError if each would get a job, and all rows, of its own.
    """
    trainers = context.num_input_pipelines
    divided = DistributedDataset(dataset, options, trainers)
    is_off = divided.auto_shard_policy is AutoShardPolicy.OFF
    if trainers > 1 and not is_off and dataset.has_private_job:
        raise InvalidArgumentError(
            "each worker would have a job of its own and read all rows: give distribute() a "
            "job_name so that the workers share one job, or use AutoShardPolicy.OFF if each "
            "worker has to read all rows"
        )
    if trainers > 1 and divided.divides_elements:
        # Otherwise each program would shuffle by its own seed, and the shares would overlap.
        divided = DistributedDataset(dataset.settled(), AutoShardPolicy.DATA, trainers)
    return divided(context)


class DistributedDatasetFunction:
    """A function that makes a trainer's dataset from an InputContext."""

    def __init__(self, dataset_fn: Callable[..., Any]) -> None:
        if not callable(dataset_fn):
            raise InvalidArgumentError(
                "distribute_datasets_from_function needs a function of an InputContext, got "
                f"{type(dataset_fn).__name__}"
            )
        self._dataset_fn = dataset_fn

    @property
    def element_spec(self) -> Any:
        """The Arrow schema of the elements, taken from a dataset that the function makes here."""
        return self(InputContext()).schema

    def __call__(self, context: InputContext) -> Any:
        return call_with_context(self._dataset_fn, context)

    def __iter__(self) -> NoReturn:
        raise InvalidArgumentError(_NOT_HERE)


_NOT_HERE = (
    "a distributed dataset is read on the trainers: give it to "
    "coordinator.create_per_worker_dataset() and pass the iterator of that to schedule()"
)


def policy_of(options: Any) -> AutoShardPolicy:
    """Returns the policy that ``options`` names; AUTO for None.

    ``options``: an ``AutoShardPolicy``, its name, ``InputOptions``, or options with the attributes
    of ``tf.data.Options``. InvalidArgumentError for anything else.
    """
    found = options
    if options is None:
        found = AutoShardPolicy.AUTO
    elif hasattr(options, "auto_shard_policy"):
        found = options.auto_shard_policy
    elif hasattr(options, "experimental_distribute"):
        found = options.experimental_distribute.auto_shard_policy
    name = found if isinstance(found, str) else getattr(found, "name", None)
    if name is None or name.upper() not in AutoShardPolicy.__members__:
        raise InvalidArgumentError(
            f"options must be one of AutoShardPolicy.{', '.join(AutoShardPolicy.__members__)}, or "
            f"InputOptions(auto_shard_policy=...), got {options!r}"
            f"{nearest(name, AutoShardPolicy.__members__, 'AutoShardPolicy.{}')}"
        )
    return AutoShardPolicy[name.upper()]


def _division(
    dataset: dataservice.Dataset, policy: AutoShardPolicy, trainers: int
) -> tuple[AutoShardPolicy, str]:
    """Returns the policy to apply (FILE, DATA or OFF), and the listing of the divided files."""
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.DATA):
        return policy, ""
    try:
        return AutoShardPolicy.FILE, dataset.list_shares(ShardingPolicy.FILE, trainers)
    except (InvalidArgumentError, NotFoundError) as error:
        if policy is AutoShardPolicy.FILE:
            raise
        logger.info("files cannot be divided, so elements are: %s", error)
        return AutoShardPolicy.DATA, ""

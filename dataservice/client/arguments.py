"""What users pass to `distribute` and `from_dataset_id`, checked, as one value.

Reaches nothing. Invariant: whatever is known to fail later fails here, in the user's process, with
the argument, its value and the remedy.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Final

from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnimplementedError,
)
from dataservice.job_options import TARGETS, JobOptions
from dataservice.runtime.arguments import check_choice, in_words, nearest
from dataservice.vocabulary import (
    AUTOTUNE,
    DATA_TRANSFER_PROTOCOLS,
    INFINITE_CARDINALITY,
    LOCAL,
    ShardingPolicy,
)

# SNAPPY is what programs written for tf.data's service ask for. Arrow IPC has no such codec; LZ4 is
# the one of the same kind, fast rather than small.
_COMPRESSIONS = {
    "AUTO": "AUTO",
    "LZ4": "LZ4",
    "SNAPPY": "LZ4",
    "ZSTD": "ZSTD",
    "NONE": "NONE",
    None: "NONE",
}
_LEGACY_MODES = {
    "parallel_epochs": ShardingPolicy.OFF,
    "distributed_epoch": ShardingPolicy.DYNAMIC,
}
EXACTLY_ONCE: Final = "exactly_once"
AT_MOST_ONCE: Final = "at_most_once"
_DELIVERIES = (EXACTLY_ONCE, AT_MOST_ONCE)
_PROTOCOLS = (LOCAL, *DATA_TRANSFER_PROTOCOLS, None)
NO_CONSUMER: Final = -1


@dataclass(frozen=True, slots=True)
class CrossTrainerCache:
    """Lets trainers read the same elements of a job, each at its own pace, from a shared cache.

    Each data worker computes an element once and keeps the latest in a window. The fastest trainer
    drives production and is never held back; one that falls behind the window misses what fell out
    (`stats()["elements_missed"]`). Each element comes at most once. The dataset must be endless,
    the job named. `trainer_id` names the trainer; readers with the same id share what it gets.
    """

    trainer_id: str

    def __post_init__(self) -> None:
        if not isinstance(self.trainer_id, str) or not self.trainer_id:
            raise InvalidArgumentError(
                f"CrossTrainerCache requires a non-empty trainer ID, got {self.trainer_id!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArguments:
    """How a dataset is to be read; made by `check`. `delivery` None: as the dataset allows."""

    policy: ShardingPolicy
    job_name: str | None
    options: JobOptions
    consumer_index: int
    trainer_id: str
    max_elements: int
    protocol: str | None
    delivery: str | None
    timeout_s: float

    @classmethod
    def check(
        cls,
        *,
        processing_mode: object,
        job_name: object,
        consumer_index: object,
        num_consumers: object,
        max_outstanding_requests: object,
        data_transfer_protocol: object,
        cross_trainer_cache: object,
        target_workers: object,
        delivery: object,
        ordered: object,
        on_error: object,
        timeout_s: object,
    ) -> ReadArguments:
        """The checked arguments; InvalidArgumentError for the first that is wrong."""
        options = JobOptions(
            ordered=_ordered(ordered),
            num_consumers=_consumers(consumer_index, num_consumers),
            target_workers=_target(target_workers),
            cross_trainer_cache=cross_trainer_cache is not None,
            on_error=str(on_error),
        )
        arguments = cls(
            policy=_policy(processing_mode),
            job_name=_job_name(job_name),
            options=options,
            consumer_index=NO_CONSUMER if consumer_index is None else int(str(consumer_index)),
            trainer_id=_trainer_id(cross_trainer_cache),
            max_elements=_max_elements(max_outstanding_requests),
            protocol=_protocol(data_transfer_protocol),
            delivery=_delivery(delivery),
            timeout_s=_timeout_s(timeout_s),
        )
        _check_cache(arguments)
        _check_delivery(arguments)
        _check_ordered(arguments)
        _check_coordinated(arguments)
        return arguments


def check_dataset_id(dataset_id: str | int) -> str:
    """The id as it is registered."""
    if isinstance(dataset_id, bool) or not isinstance(dataset_id, str | int):
        raise InvalidTypeError(f"dataset_id must be a string or an int, got {dataset_id!r}")
    if dataset_id == "":
        raise InvalidArgumentError("dataset_id must not be empty; register_dataset returns one")
    return str(dataset_id)


def check_compression(compression: str | None) -> str:
    """The compression as it is registered, from either case; "SNAPPY" as "LZ4"."""
    chosen = compression.upper() if isinstance(compression, str) else compression
    if chosen not in _COMPRESSIONS:
        meant = nearest(compression, filter(None, _COMPRESSIONS))
        raise InvalidArgumentError(
            f"Invalid `compression` argument: {compression!r}; use 'AUTO', 'LZ4', 'ZSTD' or None"
            f"{meant}"
        )
    return _COMPRESSIONS[chosen]


def check_saved_compression(compression: str | None) -> str:
    """As `check_compression`; "GZIP", which tf.data writes too, is taken for "ZSTD"."""
    gzip = isinstance(compression, str) and compression.upper() == "GZIP"
    return check_compression("ZSTD" if gzip else compression)


def _check_delivery(arguments: ReadArguments) -> None:
    if arguments.delivery != AT_MOST_ONCE or arguments.policy is ShardingPolicy.DYNAMIC:
        return
    # A trainer that falls behind the cache misses elements, whatever the policy.
    if not arguments.options.cross_trainer_cache:
        raise InvalidArgumentError(
            f"delivery={AT_MOST_ONCE!r} needs ShardingPolicy.DYNAMIC, got "
            f"{arguments.policy.name}: only there is anything read again when a worker is lost; "
            "leave delivery out"
        )


def _check_ordered(arguments: ReadArguments) -> None:
    if not arguments.options.ordered:
        return
    if arguments.policy is not ShardingPolicy.DYNAMIC:
        raise InvalidArgumentError(
            f"ordered=True needs ShardingPolicy.DYNAMIC, got {arguments.policy.name}: only there "
            "the data is cut into parts that have an order"
        )
    if arguments.delivery == AT_MOST_ONCE:
        raise InvalidArgumentError(
            f"ordered=True needs delivery='exactly_once', got {arguments.delivery!r}: a sequence "
            "cannot leave out what a lost worker had"
        )
    if arguments.options.cross_trainer_cache:
        raise InvalidArgumentError(
            "ordered=True gives one reader a sequence, and cross_trainer_cache gives several "
            "trainers the same elements; use one of them"
        )
    if arguments.options.num_consumers:
        raise InvalidArgumentError(
            "ordered=True gives one reader a sequence, and num_consumers gives several one round "
            f"at a time; use one of them, got num_consumers={arguments.options.num_consumers}"
        )


def _check_cache(arguments: ReadArguments) -> None:
    options = arguments.options
    if not options.cross_trainer_cache:
        return
    if arguments.job_name is None:
        raise InvalidArgumentError(
            "cross_trainer_cache requires named jobs, got job_name=None; trainers that are to read "
            "the same elements name the same job"
        )
    if options.num_consumers:
        raise InvalidArgumentError(
            "cross_trainer_cache and coordinated reads exclude each other, got num_consumers="
            f"{options.num_consumers}; leave one of them out"
        )
    if options.ordered:
        raise InvalidArgumentError(
            "cross_trainer_cache and ordered=True exclude each other: a trainer that falls behind "
            "misses elements; leave one of them out"
        )


def _check_coordinated(arguments: ReadArguments) -> None:
    options = arguments.options
    if not options.num_consumers:
        return
    if arguments.job_name is None:
        raise InvalidArgumentError(
            f"num_consumers={options.num_consumers} needs a job_name, by which the consumers meet"
        )
    if arguments.policy is not ShardingPolicy.OFF:
        raise UnimplementedError(
            "coordinated reads (num_consumers) are offered with ShardingPolicy.OFF, got "
            f"{arguments.policy.name}; under OFF each worker runs the endless dataset, so shuffle "
            "it without a seed"
        )
    for name, is_given in (
        ("target_workers='LOCAL': Coordinated reads require non-local workers", _is_local(options)),
        ("cross_trainer_cache", options.cross_trainer_cache),
        ("ordered=True", options.ordered),
        ("on_error='skip': consumers would not learn what is left out", _skips(options)),
    ):
        if is_given:
            raise InvalidArgumentError(f"num_consumers does not go with {name}")


def _is_local(options: JobOptions) -> bool:
    return options.target_workers == "LOCAL"


def _skips(options: JobOptions) -> bool:
    return options.on_error == "skip"


def check_endless(arguments: ReadArguments, cardinality: int) -> None:
    """FailedPreconditionError for coordinated reads of a dataset that ends."""
    if arguments.options.num_consumers and cardinality != INFINITE_CARDINALITY:
        raise FailedPreconditionError(
            "Round robin reads require that the input dataset has infinite cardinality, but the "
            f"dataset has cardinality {cardinality}. Consider adding a `.repeat()` transformation "
            "to the dataset"
        )


def _policy(mode: Any) -> ShardingPolicy:
    chosen = _LEGACY_MODES.get(mode) if isinstance(mode, str) else mode
    if not isinstance(chosen, ShardingPolicy):
        policies, legacy = ", ".join(ShardingPolicy.__members__), in_words(_LEGACY_MODES)
        meant = nearest(mode, ShardingPolicy.__members__, "ShardingPolicy.{}")
        raise InvalidArgumentError(
            f"processing_mode must be a ShardingPolicy ({policies}), {legacy}, got {mode!r}"
            f"{meant or nearest(mode, _LEGACY_MODES)}"
        )
    return chosen


def _job_name(job_name: object) -> str | None:
    if job_name is None:
        return None
    if not isinstance(job_name, str):
        raise InvalidTypeError(f"`job_name` must be a string, got {job_name!r}")
    if not job_name:
        raise InvalidArgumentError("`job_name` must not be empty; leave it out for a private job")
    return job_name


def _consumers(index: object, count: object) -> int:
    if (index is None) != (count is None):
        raise InvalidArgumentError(
            "consumer_index and num_consumers go together, got "
            f"consumer_index={index!r} and num_consumers={count!r}"
        )
    if count is None:
        return 0
    if not _is_integer(count) or not _is_integer(index):
        raise InvalidArgumentError(
            f"consumer_index and num_consumers must be integers, got {index!r} and {count!r}"
        )
    consumers, consumer = int(str(count)), int(str(index))
    if not 0 <= consumer < consumers:
        raise InvalidArgumentError(
            f"consumer_index must be from 0 to num_consumers - 1, got consumer_index={consumer} "
            f"and num_consumers={consumers}"
        )
    return consumers


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _ordered(ordered: object) -> bool:
    if not isinstance(ordered, bool):
        raise InvalidArgumentError(f"ordered must be True or False, got {ordered!r}")
    return ordered


def _target(target_workers: object) -> str:
    if not isinstance(target_workers, str) or target_workers.upper() not in TARGETS:
        raise InvalidArgumentError(
            f"Unrecognized target workers {target_workers!r}; use {in_words(TARGETS)}"
            f"{nearest(target_workers, TARGETS)}"
        )
    return target_workers.upper()


def _trainer_id(cache: object) -> str:
    if cache is None:
        return ""
    if not isinstance(cache, CrossTrainerCache):
        raise InvalidTypeError(
            f"cross_trainer_cache must be a CrossTrainerCache, got {cache!r} of type "
            f"{type(cache).__name__}"
        )
    return cache.trainer_id


def _protocol(protocol: object) -> str | None:
    check_choice("data_transfer_protocol", protocol, _PROTOCOLS)
    return None if protocol is None else str(protocol)


def _delivery(delivery: object) -> str | None:
    if delivery is None:
        return None
    check_choice("delivery", delivery, _DELIVERIES)
    return str(delivery)


def _timeout_s(timeout_s: object) -> float:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise InvalidTypeError(f"timeout_s is a number of seconds, got {timeout_s!r}")
    seconds = float(timeout_s)
    if not seconds > 0:
        raise InvalidArgumentError(f"timeout_s must be positive, got {timeout_s!r}")
    return seconds


def _max_elements(max_outstanding_requests: object) -> int:
    if max_outstanding_requests in (None, AUTOTUNE):
        return DEFAULT_BUFFERED_ELEMENTS
    wanted = max_outstanding_requests
    if not _is_integer(wanted) or int(str(wanted)) < 1:
        raise InvalidArgumentError(
            f"max_outstanding_requests must be positive or AUTOTUNE (-1), got {wanted!r}"
        )
    return int(str(wanted))

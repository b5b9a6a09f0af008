"""Checks of the arguments of the data service's functions, each argument by itself.

Responsible for which values an argument may have and for converting them to internal values. Knows
no combinations of arguments: see read_arguments. Invariant: every error names the argument, its
value and the remedy.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, TypedDict

from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.job_options import TARGETS
from dataservice.runtime.arguments import as_float, check_choice, in_words, is_integer, nearest
from dataservice.vocabulary import (
    AT_MOST_ONCE,
    AUTOTUNE,
    DATA_TRANSFER_PROTOCOLS,
    EXACTLY_ONCE,
    LOCAL,
    ShardingPolicy,
)

# Programs written for tf.data's service ask for SNAPPY. Arrow IPC has no such codec; LZ4 is of the
# same kind, fast rather than small.
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
_DELIVERIES = (EXACTLY_ONCE, AT_MOST_ONCE)
_PROTOCOLS = (LOCAL, *DATA_TRANSFER_PROTOCOLS, None)


@dataclass(frozen=True, slots=True)
class CrossTrainerCache:
    """A shared cache from which trainers read the same elements of a job, each at its own pace.

    Each data worker computes an element once and caches the latest elements in a sliding window.
    The fastest trainer drives production and is never held back. A trainer that falls behind the
    window misses the elements that were evicted (`stats()["elements_missed"]`). Each trainer gets
    an element at most once. The dataset must be endless and the job must have a name. Readers with
    the same `trainer_id` share the elements of that trainer.
    """

    trainer_id: str

    def __post_init__(self) -> None:
        if not isinstance(self.trainer_id, str) or not self.trainer_id:
            raise InvalidArgumentError(
                f"CrossTrainerCache requires a non-empty trainer ID, got {self.trainer_id!r}"
            )


class DistributeOptions(TypedDict, total=False):
    """The keyword arguments of `dataservice.distribute`, for type checkers and editors."""

    job_name: str | None
    consumer_index: int | None
    num_consumers: int | None
    max_outstanding_requests: int | None
    data_transfer_protocol: str | None
    compression: str | None
    cross_trainer_cache: CrossTrainerCache | None
    target_workers: str
    delivery: str | None
    ordered: bool
    on_error: str
    timeout_s: float


def check_dataset_id(dataset_id: str | int) -> str:
    """Returns the id in the form in which it is registered, a string."""
    if isinstance(dataset_id, bool) or not isinstance(dataset_id, str | int):
        raise InvalidTypeError(f"dataset_id must be a string or an int, got {dataset_id!r}")
    if dataset_id == "":
        raise InvalidArgumentError(
            "dataset_id must not be empty; register_dataset, called without one, returns one"
        )
    return str(dataset_id)


def check_compression(compression: str | None) -> str:
    """Returns the name under which a compression is registered; accepts any case.

    "SNAPPY" becomes "LZ4".
    """
    chosen = compression.upper() if isinstance(compression, str) else compression
    if not isinstance(chosen, str | None) or chosen not in _COMPRESSIONS:
        meant = nearest(compression, filter(None, _COMPRESSIONS))
        raise InvalidArgumentError(
            f"Invalid `compression` argument: {compression!r}; use 'AUTO', 'LZ4', 'ZSTD' or None"
            f"{meant}"
        )
    return _COMPRESSIONS[chosen]


def check_saved_compression(compression: str | None) -> str:
    """Does the same as `check_compression`, for files, where "GZIP" is accepted too.

    It becomes "ZSTD", which also favours small files over speed.
    """
    is_gzip = isinstance(compression, str) and compression.upper() == "GZIP"
    return check_compression("ZSTD" if is_gzip else compression)


def checked_policy(mode: Any) -> ShardingPolicy:
    """Returns the policy; also accepts the older names that tf.data has for two of them."""
    chosen = _LEGACY_MODES.get(mode) if isinstance(mode, str) else mode
    if not isinstance(chosen, ShardingPolicy):
        policies, legacy = ", ".join(ShardingPolicy.__members__), in_words(_LEGACY_MODES)
        meant = nearest(mode, ShardingPolicy.__members__, "ShardingPolicy.{}")
        raise InvalidArgumentError(
            f"processing_mode must be a ShardingPolicy ({policies}), {legacy}, got {mode!r}"
            f"{meant or nearest(mode, _LEGACY_MODES)}"
        )
    return chosen


def checked_job_name(job_name: object) -> str | None:
    """Returns the name of a job, None for a private job."""
    if job_name is None:
        return None
    if not isinstance(job_name, str):
        raise InvalidTypeError(f"`job_name` must be a string, got {job_name!r}")
    if not job_name:
        raise InvalidArgumentError("`job_name` must not be empty; leave it out for a private job")
    return job_name


def checked_consumers(index: object, count: object) -> int:
    """Returns the number of consumers, 0 if reads are not coordinated; checks `index` too."""
    if (index is None) != (count is None):
        raise InvalidArgumentError(
            "consumer_index and num_consumers go together, got "
            f"consumer_index={index!r} and num_consumers={count!r}"
        )
    if count is None:
        return 0
    if not is_integer(count) or not is_integer(index):
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


def checked_target(target_workers: object) -> str:
    """Returns which workers to read from, in upper case."""
    if not isinstance(target_workers, str) or target_workers.upper() not in TARGETS:
        raise InvalidArgumentError(
            f"Unrecognized target workers {target_workers!r}; use {in_words(TARGETS)}"
            f"{nearest(target_workers, TARGETS)}"
        )
    return target_workers.upper()


def checked_trainer_id(cache: object) -> str:
    """Returns the id of the trainer that reads through a cache, "" without a cache."""
    if cache is None:
        return ""
    if not isinstance(cache, CrossTrainerCache):
        raise InvalidTypeError(
            f"cross_trainer_cache must be a CrossTrainerCache, got {cache!r} of type "
            f"{type(cache).__name__}"
        )
    return cache.trainer_id


def checked_protocol(protocol: object) -> str | None:
    """Returns the protocol by which elements travel, None for the fastest to each worker."""
    check_choice("data_transfer_protocol", protocol, _PROTOCOLS)
    return None if protocol is None else str(protocol)


def checked_delivery(delivery: object) -> str | None:
    """Returns the delivery that was asked for, None for the strictest that the dataset allows."""
    if delivery is None:
        return None
    check_choice("delivery", delivery, _DELIVERIES)
    return str(delivery)


def checked_timeout_s(timeout_s: object) -> float:
    """Returns the time-out as a positive number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real):
        raise InvalidTypeError(f"timeout_s is a number of seconds, got {timeout_s!r}")
    seconds = as_float(timeout_s)
    if not seconds > 0:
        raise InvalidArgumentError(f"timeout_s must be positive, got {timeout_s!r}")
    return seconds


def checked_max_elements(max_outstanding_requests: object) -> int:
    """Returns how many elements a reader buffers."""
    wanted = max_outstanding_requests
    if wanted is None or (is_integer(wanted) and wanted == AUTOTUNE):
        return DEFAULT_BUFFERED_ELEMENTS
    if not is_integer(wanted) or int(str(wanted)) < 1:
        raise InvalidArgumentError(
            f"max_outstanding_requests must be positive or AUTOTUNE (-1), got {wanted!r}"
        )
    return int(str(wanted))

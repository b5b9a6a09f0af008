"""The arguments of `distribute` and `from_dataset_id`, checked and combined into one value.

Responsible for which arguments may be combined; `arguments` checks each of them by itself. Knows no
network and no dispatcher. Invariant: an error that can be foreseen is raised here, in the user's
process, and names the argument, its value and the remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dataservice.client.arguments import (
    checked_consumers,
    checked_delivery,
    checked_job_name,
    checked_max_elements,
    checked_policy,
    checked_protocol,
    checked_target,
    checked_timeout_s,
    checked_trainer_id,
)
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dataservice.job_options import JobOptions
from dataservice.runtime.arguments import check_true_or_false
from dataservice.vocabulary import AT_MOST_ONCE, INFINITE_CARDINALITY, ShardingPolicy

NO_CONSUMER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArguments:
    """The way a dataset is to be read; made by `check`.

    `delivery` None stands for the strictest delivery that the dataset allows.
    """

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
        """Returns the checked arguments; raises InvalidArgumentError for the first wrong one."""
        check_true_or_false(ordered=ordered)
        options = JobOptions(
            ordered=bool(ordered),
            num_consumers=checked_consumers(consumer_index, num_consumers),
            target_workers=checked_target(target_workers),
            cross_trainer_cache=cross_trainer_cache is not None,
            on_error=str(on_error),
        )
        arguments = cls(
            policy=checked_policy(processing_mode),
            job_name=checked_job_name(job_name),
            options=options,
            consumer_index=NO_CONSUMER if consumer_index is None else int(str(consumer_index)),
            trainer_id=checked_trainer_id(cross_trainer_cache),
            max_elements=checked_max_elements(max_outstanding_requests),
            protocol=checked_protocol(data_transfer_protocol),
            delivery=checked_delivery(delivery),
            timeout_s=checked_timeout_s(timeout_s),
        )
        _check_cache(arguments)
        _check_delivery(arguments)
        _check_ordered(arguments)
        _check_coordinated(arguments)
        return arguments


def _check_delivery(arguments: ReadArguments) -> None:
    if arguments.delivery != AT_MOST_ONCE or arguments.policy is ShardingPolicy.DYNAMIC:
        return
    # A trainer that falls behind the cache misses elements, whatever the policy.
    if not arguments.options.cross_trainer_cache:
        raise InvalidArgumentError(
            f"delivery={AT_MOST_ONCE!r} needs ShardingPolicy.DYNAMIC, got "
            f"{arguments.policy.name}: under other policies nothing is read again when a "
            "worker is lost; leave delivery out"
        )


def _check_ordered(arguments: ReadArguments) -> None:
    if not arguments.options.ordered:
        return
    if arguments.policy is not ShardingPolicy.DYNAMIC:
        raise InvalidArgumentError(
            f"ordered=True needs ShardingPolicy.DYNAMIC, got {arguments.policy.name}: only "
            "DYNAMIC divides the data into parts that have an order"
        )
    if arguments.delivery == AT_MOST_ONCE:
        raise InvalidArgumentError(
            f"ordered=True needs delivery='exactly_once', got {arguments.delivery!r}: a "
            "sequence must not lack the rows that a lost worker had in flight"
        )
    if arguments.options.num_consumers:
        raise InvalidArgumentError(
            "ordered=True gives a sequence to one reader, and num_consumers gives rounds to "
            f"several; use one of them, got num_consumers={arguments.options.num_consumers}"
        )


def _check_cache(arguments: ReadArguments) -> None:
    options = arguments.options
    if not options.cross_trainer_cache:
        return
    if arguments.job_name is None:
        raise InvalidArgumentError(
            "cross_trainer_cache requires named jobs, got job_name=None; give the trainers "
            "that read the same elements the same job_name"
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
            "coordinated reads (num_consumers) need ShardingPolicy.OFF, got "
            f"{arguments.policy.name}; under OFF each worker runs the endless dataset, so "
            "shuffle it without a seed"
        )
    for name, value, reason in (
        ("target_workers", "LOCAL", "Coordinated reads require non-local workers"),
        ("on_error", "skip", "consumers would not learn what is left out"),
    ):
        if getattr(options, name) == value:
            raise InvalidArgumentError(
                f"num_consumers cannot be combined with {name}={value!r}: {reason}"
            )


def check_endless(arguments: ReadArguments, cardinality: int) -> None:
    """Raises FailedPreconditionError for coordinated reads of a dataset that ends."""
    if arguments.options.num_consumers and cardinality != INFINITE_CARDINALITY:
        raise FailedPreconditionError(
            "Round robin reads require that the input dataset has infinite cardinality, but the "
            f"dataset has cardinality {cardinality}. Consider adding a `.repeat()` transformation "
            "to the dataset"
        )

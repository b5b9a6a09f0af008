"""Registering datasets and reading them through the data service.

Checks what users pass, registers plans, and builds the dataset that reads a job. The names and
their arguments are those of tf.data's service. Nothing here streams data. Invariant: what is known
to fail later fails here, in the user's process, with the remedy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dataservice.client.connection import DEFAULT_TIMEOUT_S, Connection
from dataservice.client.reader import DEFAULT_BUFFERED_ELEMENTS
from dataservice.client.source import ServiceSource
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.node import Node, walk
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint, freeze_schemas
from dataservice.dataset.splits import linearise
from dataservice.dataset.static_sharding import check_policy
from dataservice.errors import InvalidArgumentError, SchemaError, UnimplementedError
from dataservice.runtime.frames import decode_schema, encode_schema
from dataservice.vocabulary import AUTOTUNE, ShardingPolicy, parse_target
from dataservice.wire import dispatcher_pb2 as pb

_COMPRESSIONS = {"AUTO": "AUTO", "LZ4": "LZ4", "ZSTD": "ZSTD", "NONE": "NONE", None: "NONE"}
_LEGACY_MODES = {
    "parallel_epochs": ShardingPolicy.OFF,
    "distributed_epoch": ShardingPolicy.DYNAMIC,
}
_DELIVERIES = ("exactly_once", "at_most_once")
_PROTOCOLS = (None, "grpc", "flight")
_TARGETS = ("AUTO", "ANY")

Service = str | tuple[str, str]


def register_dataset(
    service: Service,
    dataset: Dataset,
    compression: str | None = "AUTO",
    dataset_id: str | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> str:
    """Registers a dataset with the dispatcher at `service` and returns its id.

    Infers what schemas are not given, which reads the beginning of the sources. Waits up to
    `timeout_s` for the dispatcher: UnavailableError then. `compression`: "AUTO" (none), "LZ4",
    "ZSTD", or None.
    """
    target = parse_target(service)
    if not isinstance(dataset, Dataset):
        raise InvalidArgumentError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    if any(isinstance(node, ServiceSource) for node in walk(dataset.node)):
        raise InvalidArgumentError(
            "the dataset reads the data service already; distribute it once, before or after which "
            "operators run where they are written"
        )
    node = freeze_schemas(dataset.node)
    request = pb.RegisterDatasetRequest(
        plan=encode_plan(node),
        schema=encode_schema(dataset.schema),
        cardinality=node.cardinality(),
        compression=_compression(compression),
        dataset_id=None if dataset_id is None else str(dataset_id),
        fingerprint=fingerprint(node),
    )
    with Connection(target) as connection:
        return connection.register_dataset(request, timeout_s=timeout_s)


def from_dataset_id(
    processing_mode: ShardingPolicy | str,
    service: Service,
    dataset_id: str | int,
    element_spec: pa.Schema | None = None,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    cross_trainer_cache: object | None = None,
    target_workers: str = "AUTO",
    *,
    delivery: str = "exactly_once",
    ordered: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Dataset:
    """A dataset that reads a registered one through the data service.

    Every `iter()` is one repetition of the job. Readers with the same `job_name` and repetition
    share its rows; without a name each iterator has a job of its own. `max_outstanding_requests`
    bounds the elements buffered here. NotFoundError for an unknown id.

    Static policies (FILE, DATA, FILE_OR_DATA, HINT) read from the dispatcher's `worker_addresses`.
    Every element comes once; that of a worker that is restarted before its share was read, which
    it begins anew, may come again. A worker that is missing for `timeout_s` is an error.
    """
    target = parse_target(service)
    policy = _policy(processing_mode)
    _check_job_name(job_name)
    _check_unoffered(consumer_index, num_consumers, cross_trainer_cache, ordered)
    _check_choices(data_transfer_protocol, target_workers, delivery)
    with Connection(target) as connection:
        registered = connection.get_dataset(str(dataset_id), timeout_s=timeout_s)
    schema = decode_schema(registered.schema)
    if element_spec is not None and element_spec != schema:
        raise SchemaError(
            f"element_spec differs from the schema of dataset {dataset_id}:\n{element_spec}\n"
            f"is not\n{schema}"
        )
    node = decode_plan(registered.plan)
    _check_divisible(node, policy)
    name = None if job_name is None else f"dataset_id={dataset_id}/{job_name}"
    source = ServiceSource(
        target=target,
        dataset_id=str(dataset_id),
        policy=int(policy),
        schema=schema,
        elements=registered.cardinality,
        is_batched=node.batched,
        job_name=name,
        delivery=delivery,
        max_elements=_max_elements(max_outstanding_requests),
        timeout_s=timeout_s,
    )
    return Dataset(source)


def distribute(
    processing_mode: ShardingPolicy | str,
    service: Service,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: object | None = None,
    target_workers: str = "AUTO",
    *,
    delivery: str = "exactly_once",
    ordered: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Callable[[Dataset], Dataset]:
    """For `dataset.apply`: runs everything before it on the data service.

    Registers the dataset when applied. Arguments as for `from_dataset_id` and `register_dataset`;
    readers that name the same job share it, whatever id their own registration got. A job of that
    name with another plan, policy or delivery is an InvalidArgumentError when reading begins.
    """
    target = parse_target(service)
    policy = _policy(processing_mode)
    _check_job_name(job_name)
    _check_unoffered(consumer_index, num_consumers, cross_trainer_cache, ordered)
    _check_choices(data_transfer_protocol, target_workers, delivery)
    _compression(compression)
    max_elements = _max_elements(max_outstanding_requests)

    def apply(dataset: Dataset) -> Dataset:
        _check_divisible(dataset.node, policy)
        dataset_id = register_dataset(target, dataset, compression, timeout_s=timeout_s)
        source = ServiceSource(
            target=target,
            dataset_id=dataset_id,
            policy=int(policy),
            schema=dataset.schema,
            elements=dataset.node.cardinality(),
            is_batched=dataset.node.batched,
            job_name=job_name,
            delivery=delivery,
            max_elements=max_elements,
            timeout_s=timeout_s,
        )
        return Dataset(source)

    return apply


def _policy(mode: Any) -> ShardingPolicy:
    chosen = _LEGACY_MODES.get(mode) if isinstance(mode, str) else mode
    if not isinstance(chosen, ShardingPolicy):
        raise InvalidArgumentError(
            f"processing_mode must be a ShardingPolicy, {' or '.join(map(repr, _LEGACY_MODES))}, "
            f"got {mode!r}"
        )
    return chosen


def _check_divisible(node: Node, policy: ShardingPolicy) -> None:
    """Raises, naming operator or source, for a plan that the policy cannot divide."""
    check_policy(node, policy)
    if policy is ShardingPolicy.DYNAMIC:
        linearise(node)


def _check_job_name(job_name: object) -> None:
    if job_name is None:
        return
    if not isinstance(job_name, str):
        raise InvalidArgumentError(f"`job_name` must be a string, got {job_name!r}")
    if not job_name:
        raise InvalidArgumentError("`job_name` must not be empty; leave it out for a private job")


def _check_unoffered(
    consumer_index: object, num_consumers: object, cross_trainer_cache: object, ordered: object
) -> None:
    if (consumer_index is None) != (num_consumers is None):
        raise InvalidArgumentError(
            "consumer_index and num_consumers go together, got "
            f"consumer_index={consumer_index!r} and num_consumers={num_consumers!r}"
        )
    if num_consumers is not None:
        raise UnimplementedError("coordinated reads (num_consumers) are not implemented")
    if cross_trainer_cache is not None:
        raise UnimplementedError(
            "cross_trainer_cache is not implemented; use a job_name of its own for each trainer"
        )
    if ordered:
        raise UnimplementedError(
            "ordered=True is not implemented; read with one worker for a fixed order"
        )


def _check_choices(protocol: object, target_workers: object, delivery: object) -> None:
    if protocol not in _PROTOCOLS:
        raise InvalidArgumentError(
            f"data_transfer_protocol must be one of {_PROTOCOLS}, got {protocol!r}"
        )
    if not isinstance(target_workers, str) or target_workers.upper() not in _TARGETS:
        raise InvalidArgumentError(
            f"Unrecognized target workers {target_workers!r}; use one of {_TARGETS}"
        )
    if delivery not in _DELIVERIES:
        raise InvalidArgumentError(f"delivery must be one of {_DELIVERIES}, got {delivery!r}")


def _compression(compression: str | None) -> str:
    if compression not in _COMPRESSIONS:
        raise InvalidArgumentError(
            f"Invalid `compression` argument: {compression!r}; use 'AUTO', 'LZ4', 'ZSTD' or None"
        )
    return _COMPRESSIONS[compression]


def _max_elements(max_outstanding_requests: object) -> int:
    if max_outstanding_requests in (None, AUTOTUNE):
        return DEFAULT_BUFFERED_ELEMENTS
    wanted = max_outstanding_requests
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise InvalidArgumentError(
            f"max_outstanding_requests must be positive or AUTOTUNE (-1), got {wanted!r}"
        )
    return wanted

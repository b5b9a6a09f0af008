"""Reading datasets through the data service, under tf.data service's names and arguments.

Responsible for building the `Dataset` that reads a job, either of a plan that is registered already
(`from_dataset_id`) or of one that is registered here (`distribute`). Streams no data. Invariant: an
error that can be foreseen is raised here, in the user's process, and names the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from dataservice.client.arguments import (
    CrossTrainerCache,
    check_compression,
    check_dataset_id,
    checked_timeout_s,
)
from dataservice.client.connection import DEFAULT_TIMEOUT_S, DispatcherConnection
from dataservice.client.delivery_guarantee import with_delivery
from dataservice.client.read_arguments import ReadArguments, check_endless
from dataservice.client.registration import Service, check_registrable, register_plan
from dataservice.client.source import ServiceSource
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linear import with_tail, without_tail
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.static_sharding import check_policy
from dataservice.dataset.node import INFINITE_CARDINALITY, Node, freeze_schemas, unrepeatable
from dataservice.dataset.plan import decode_plan, fingerprint
from dataservice.dataset.seeds import drawn_seeds
from dataservice.dataset.tolerance import as_run
from dataservice.dataset.uncounted import uncounted_cardinality
from dataservice.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
    UnsplittableError,
)
from dataservice.runtime.frames import decode_schema
from dataservice.runtime.refused_timeouts import refuse_timeout
from dataservice.vocabulary import EXACTLY_ONCE, ShardingPolicy, parse_target
from dataservice.wire import dispatcher_pb2 as pb


@refuse_timeout("from_dataset_id")
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
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    *,
    compression: str | None = "AUTO",
    delivery: str | None = None,
    ordered: bool = False,
    on_error: str = "raise",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Dataset:
    """Returns a dataset that reads a registered dataset through the data service.

    Every `iter()` reads one repetition of the job. Readers with the same `job_name` and repetition
    share its rows; without a name each iterator has a job of its own. `max_outstanding_requests`
    bounds the elements that are buffered in this process. `target_workers`: "LOCAL" reads only from
    workers on this host and raises UnavailableError if there is none for `timeout_s`; "AUTO" and
    "ANY" read from all workers. With `consumer_index` and `num_consumers` (named job, OFF, endless
    data) all consumers get elements of the same worker's round in each step; reading fails if a
    consumer is missing for `timeout_s`. Raises UnknownDatasetError for an unknown id. A
    `compression` other than "AUTO" must be the one that the dataset was registered with.

    `data_transfer_protocol`: None passes rows by reference from workers in this process, through
    shared memory from workers of this user on this host, and through Flight from all others.
    "local" is the same but fails where Flight would be needed; "shared_memory" uses only shared
    memory, "flight" and "grpc" use only Flight. `stats()["protocols"]` tells what is used.

    Static policies (FILE, DATA, FILE_OR_DATA, HINT) read from the dispatcher's `worker_addresses`.
    Every element comes once, except that in a shared job (`job_name`) elements of a worker that was
    restarted before its share was read may come again. Reading fails if one of these workers is
    missing for `timeout_s`. For `ordered` and `delivery` see `distribute`.
    """
    target, dataset_id = parse_target(service), check_dataset_id(dataset_id)
    _check_element_spec(element_spec)
    codec = check_compression(compression)
    arguments = ReadArguments.check(
        processing_mode=processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        delivery=delivery,
        ordered=ordered,
        on_error=on_error,
        timeout_s=timeout_s,
    )
    with DispatcherConnection(target) as connection:
        registered = connection.get_dataset(dataset_id, timeout_s=timeout_s)
    schema = decode_schema(registered.schema)
    _check_same(dataset_id, element_spec, schema, codec, registered.compression)
    node = as_run(decode_plan(registered.plan), on_error)
    arguments = with_delivery(arguments, node)
    _check_divisible(node, arguments)
    name = None if job_name is None else f"dataset_id={dataset_id}/{job_name}"
    named = replace(arguments, job_name=name)
    if arguments.options.ordered:
        known = (dataset_id, registered.fingerprint)
        return _in_order(target, Dataset(node), registered.compression, named, known)
    return Dataset(_source(target, dataset_id, node, schema, named, registered.fingerprint))


def _check_element_spec(element_spec: object) -> None:
    if not isinstance(element_spec, pa.Schema | None):
        raise InvalidTypeError(
            f"element_spec must be a pyarrow.Schema, got {element_spec!r:.200}; a job is named by "
            'job_name="..."'
        )


def _check_same(
    dataset_id: str,
    element_spec: pa.Schema | None,
    schema: pa.Schema,
    codec: str,
    registered_as: str,
) -> None:
    if element_spec is not None and element_spec != schema:
        raise SchemaError(
            f"element_spec differs from the schema of dataset {dataset_id}:\n{element_spec}\n"
            f"is not\n{schema}"
        )
    # "AUTO" compresses nothing.
    is_same = codec in ("AUTO", registered_as) or {codec, registered_as} == {"AUTO", "NONE"}
    if not is_same:
        raise InvalidArgumentError(
            f"dataset {dataset_id} was registered with compression {registered_as}, got {codec}; "
            "leave compression out, or register the dataset with it"
        )


@refuse_timeout("distribute")
def distribute(
    processing_mode: ShardingPolicy | str,
    service: Service,
    job_name: str | None = None,
    consumer_index: int | None = None,
    num_consumers: int | None = None,
    max_outstanding_requests: int | None = None,
    data_transfer_protocol: str | None = None,
    compression: str | None = "AUTO",
    cross_trainer_cache: CrossTrainerCache | None = None,
    target_workers: str = "AUTO",
    *,
    delivery: str | None = None,
    ordered: bool = False,
    on_error: str = "raise",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Callable[[Dataset], Dataset]:
    """Returns a function for `dataset.apply` that runs all operators before it on the data service.

    The dataset is registered when the function is applied. The arguments are those of
    `from_dataset_id` and `register_dataset`. Readers that name the same job share it, whatever id
    their own registration got. If a job of that name has another plan, policy or delivery,
    InvalidArgumentError is raised when reading begins.

    With ordered=True one reader gets the rows of a DYNAMIC job in an order that depends on the seed
    alone, whatever workers there are. `batch` and the operators after it then run in the reading
    process, where up to eight windows per worker wait in memory for their turn.

    `delivery` applies to DYNAMIC. The default is "exactly_once", unless a part of the dataset was
    declared deterministic=False. For such a dataset, asking for "exactly_once" raises
    InvalidArgumentError and the default is "at_most_once", with a DataServiceWarning if it was not
    asked for; rows that a data worker had in flight when it was lost are then not read again.
    """
    target = parse_target(service)
    checked = ReadArguments.check(
        processing_mode=processing_mode,
        job_name=job_name,
        consumer_index=consumer_index,
        num_consumers=num_consumers,
        max_outstanding_requests=max_outstanding_requests,
        data_transfer_protocol=data_transfer_protocol,
        cross_trainer_cache=cross_trainer_cache,
        target_workers=target_workers,
        delivery=delivery,
        ordered=ordered,
        on_error=on_error,
        timeout_s=timeout_s,
    )
    check_compression(compression)

    def apply(dataset: Dataset) -> Dataset:
        dataset = check_registrable(dataset)
        dataset = Dataset(as_run(dataset.node, on_error))
        arguments = with_delivery(checked, dataset.node)
        _check_divisible(dataset.node, arguments)
        if arguments.options.ordered:
            return _in_order(target, dataset, compression, arguments)
        frozen = freeze_schemas(dataset.node)
        # Inferred once, from the frozen plan, so that no user function is run a second time.
        schema = Dataset(frozen).schema
        dataset_id = register_plan(target, frozen, schema, compression, None, timeout_s)
        registered = fingerprint(frozen)
        return Dataset(_source(target, dataset_id, frozen, schema, arguments, registered))

    return apply


@refuse_timeout("release_readers")
def release_readers(
    service: Service,
    owner: str,
    consumed: Mapping[str, Sequence[Sequence[int]]] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Tells the dispatcher that all readers of an owner died with their process; returns how many.

    `consumed` maps reader ids to marks, as in `Receipt.marks()`, of rows that count as consumed
    although the reader may not have reported them. All other rows go to other readers. Final: every
    later attempt of the owner to open a reader is refused, also one that is already in flight.
    """
    timeout_s = checked_timeout_s(timeout_s)
    message = pb.ReleaseOwnedRequest(owner=owner)
    for reader_id, marks in (consumed or {}).items():
        reader = message.readers.add(reader_id=reader_id)
        for window, generation, row, final in marks:
            reader.consumed.add(window=window, generation=generation, row=row, final=bool(final))
    with DispatcherConnection(parse_target(service)) as connection:
        return connection.release_owned(message, timeout_s=timeout_s)


def _in_order(
    target: str,
    dataset: Dataset,
    compression: str | None,
    arguments: ReadArguments,
    known: tuple[str, str] | None = None,
) -> Dataset:
    """Returns a dataset that reads rows in order and forms batches in the reading process.

    Workers cannot form these batches, since they do not know which rows come before theirs.
    Registers the part of the plan that yields the rows, unless the whole plan is registered already
    as `known` (id, fingerprint) and forms no batches.
    """
    head, tail = without_tail(freeze_schemas(dataset.node))
    if head.batched:
        remedy = (
            f"apply {head.kind} to rows, and batch after it, or distribute each dataset and apply "
            f"{head.kind} to the distributed ones"
            if head.inputs
            else "write load(path).unbatch().batch(n), or read it without distribute()"
        )
        raise UnsplittableError(
            f"{head.kind} of batches cannot be read with ordered=True, which forms batches in the "
            f"reading process: {remedy}"
        )
    schema = Dataset(head).schema
    if tail or known is None:
        dataset_id = register_plan(target, head, schema, compression, None, arguments.timeout_s)
        known = (dataset_id, fingerprint(head))
    source = _source(target, known[0], head, schema, arguments, known[1])
    return Dataset(with_tail(source, tail))


def _source(
    target: str,
    dataset_id: str,
    node: Node,
    schema: pa.Schema,
    arguments: ReadArguments,
    registered: str,
) -> ServiceSource:
    options = arguments.options
    return ServiceSource(
        target=target,
        dataset_id=dataset_id,
        registered=registered,
        policy=int(arguments.policy),
        schema=schema,
        elements=uncounted_cardinality(node),
        is_batched=node.batched,
        plan=fingerprint(node),
        seeds=tuple(drawn_seeds(node)),
        declared=unrepeatable(node),
        job_name=arguments.job_name,
        delivery=arguments.delivery or EXACTLY_ONCE,
        ordered=options.ordered,
        num_consumers=options.num_consumers,
        consumer_index=arguments.consumer_index,
        target_workers=options.target_workers,
        trainer_id=arguments.trainer_id,
        on_error=options.on_error,
        protocol=arguments.protocol,
        max_elements=arguments.max_elements,
        timeout_s=arguments.timeout_s,
    )


def _check_divisible(node: Node, arguments: ReadArguments) -> None:
    """Raises an error that names the operator or source if the plan cannot be read this way."""
    check_policy(node, arguments.policy)
    if arguments.policy is ShardingPolicy.DYNAMIC:
        linearise(node)
    elements = uncounted_cardinality(node)
    if arguments.options.cross_trainer_cache and elements != INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            "a cross_trainer_cache requires the input dataset to be infinite, got one of "
            f"cardinality {elements}; end it with repeat(), where only batch() and "
            "prefetch() may follow"
        )
    check_endless(arguments, elements)

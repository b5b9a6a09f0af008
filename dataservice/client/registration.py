"""Registering datasets with a dispatcher, under tf.data service's name and arguments.

Responsible for what is sent: a plan with all of its schemas, its size and its fingerprint. Knows
nothing of how it will be read. Invariant: what is known to fail later fails here, in the user's
process, with the remedy.
"""

from __future__ import annotations

import pyarrow as pa

from dataservice.client.arguments import check_compression, check_dataset_id, checked_timeout_s
from dataservice.client.connection import DEFAULT_TIMEOUT_S, Connection
from dataservice.client.replay import warn_of_registered
from dataservice.client.source import ServiceSource
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.node import Node, walk
from dataservice.dataset.plan import encode_plan, fingerprint, freeze_schemas
from dataservice.dataset.tolerance import check_on_error, tolerant
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.frames import encode_schema
from dataservice.vocabulary import parse_target
from dataservice.wire import dispatcher_pb2 as pb

Service = str | tuple[str, str]


def register_dataset(
    service: Service,
    dataset: Dataset,
    compression: str | None = "AUTO",
    dataset_id: str | None = None,
    *,
    on_error: str = "raise",
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> str:
    """Registers a dataset with the dispatcher at `service` and returns its id.

    Infers what schemas are not given, which reads the beginning of the sources. Waits up to
    `timeout_s` for the dispatcher: UnavailableError then. `compression`: "AUTO" (none), "LZ4",
    "ZSTD", or None; "SNAPPY", which tf.data has, is taken for "LZ4". With on_error="skip" it is
    registered although some of its files cannot be read, and is always read that way. Warns of a
    dataset that cannot be replayed; see `distribute`.
    """
    target = parse_target(service)
    dataset = unread(dataset)
    check_on_error(on_error)
    check_compression(compression)
    timeout_s = checked_timeout_s(timeout_s)
    if dataset_id is not None:
        dataset_id = check_dataset_id(dataset_id)
    if on_error == "skip":
        dataset = Dataset(tolerant(dataset.node))
    warn_of_registered(dataset.node)
    return register_quietly(target, dataset, compression, dataset_id, timeout_s)


def register_quietly(
    target: str,
    dataset: Dataset,
    compression: str | None,
    dataset_id: str | None,
    timeout_s: float,
) -> str:
    """As `register_dataset` for a target that was checked, without what readers should know."""
    node = freeze_schemas(unread(dataset).node)
    schema = Dataset(node).schema
    return register_plan(target, node, schema, compression, dataset_id, timeout_s)


def register_plan(
    target: str,
    node: Node,
    schema: pa.Schema,
    compression: str | None,
    dataset_id: str | None,
    timeout_s: float,
) -> str:
    """As `register_quietly` of a plan whose schemas are filled in, with rows of `schema`."""
    request = pb.RegisterDatasetRequest(
        plan=encode_plan(node),
        schema=encode_schema(schema),
        cardinality=node.cardinality(),
        compression=check_compression(compression),
        dataset_id=dataset_id,
        fingerprint=fingerprint(node),
    )
    with Connection(target) as connection:
        return connection.register_dataset(request, timeout_s=timeout_s)


def unread(dataset: Dataset) -> Dataset:
    """The dataset, when it is one and does not read a data service itself."""
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    if any(isinstance(node, ServiceSource) for node in walk(dataset.node)):
        raise InvalidArgumentError(
            "the dataset already reads from the data service; call distribute() only once: "
            "operators before it run on the data workers, operators after it in the reading "
            "process"
        )
    return dataset

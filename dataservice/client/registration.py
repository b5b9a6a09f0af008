"""Registering datasets with a dispatcher, under tf.data service's name and arguments.

Responsible for what is sent: a plan with all of its schemas, its cardinality and its fingerprint.
Knows nothing of how the dataset will be read. Invariant: an error that can be foreseen is raised
here, in the user's process, and names the remedy.
"""

from __future__ import annotations

import pyarrow as pa

from dataservice.client.arguments import check_compression, check_dataset_id, checked_timeout_s
from dataservice.client.connection import DEFAULT_TIMEOUT_S, DispatcherConnection
from dataservice.client.delivery_guarantee import warn_of_registered
from dataservice.client.source import ServiceSource
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.node import Node, freeze_schemas, walk
from dataservice.dataset.plan import encode_plan, fingerprint
from dataservice.dataset.tolerance import as_run
from dataservice.dataset.uncounted import uncounted_cardinality
from dataservice.errors import InvalidTypeError, UnsplittableError
from dataservice.job_options import ON_ERROR
from dataservice.runtime.arguments import check_choice
from dataservice.runtime.frames import encode_schema
from dataservice.runtime.refused_timeouts import refuse_timeout
from dataservice.vocabulary import parse_target
from dataservice.wire import dispatcher_pb2 as pb

Service = str | tuple[str, str]


@refuse_timeout("register_dataset")
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

    Infers schemas that are not given, for which it reads the beginning of the sources. Raises
    UnavailableError if the dispatcher cannot be reached for `timeout_s`. `compression` is "AUTO"
    (none), "LZ4", "ZSTD", or None; "SNAPPY", which tf.data has, is taken as "LZ4". With
    on_error="skip" the dataset is registered even if some of its files cannot be read, and is
    always read that way. Warns if the dataset cannot be replayed; see `distribute`.
    """
    target = parse_target(service)
    dataset = check_registrable(dataset)
    check_choice("on_error", on_error, ON_ERROR)
    check_compression(compression)
    timeout_s = checked_timeout_s(timeout_s)
    if dataset_id is not None:
        dataset_id = check_dataset_id(dataset_id)
    dataset = Dataset(as_run(dataset.node, on_error))
    warn_of_registered(dataset.node)
    return register_quietly(target, dataset, compression, dataset_id, timeout_s)


def register_quietly(
    target: str,
    dataset: Dataset,
    compression: str | None,
    dataset_id: str | None,
    timeout_s: float,
) -> str:
    """Registers a dataset like `register_dataset`, for a checked target and without the warning."""
    node = freeze_schemas(check_registrable(dataset).node)
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
    """Registers a plan whose schemas are filled in and whose rows have `schema`; returns its id."""
    request = pb.RegisterDatasetRequest(
        plan=encode_plan(node),
        schema=encode_schema(schema),
        cardinality=uncounted_cardinality(node),
        compression=check_compression(compression),
        dataset_id=dataset_id,
        fingerprint=fingerprint(node),
    )
    with DispatcherConnection(target) as connection:
        return connection.register_dataset(request, timeout_s=timeout_s)


def check_registrable(dataset: Dataset) -> Dataset:
    """Returns the dataset; raises if it is no `Dataset` or reads the data service itself."""
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"dataset must be a Dataset, got {type(dataset).__name__}")
    if any(isinstance(node, ServiceSource) for node in walk(dataset.node)):
        raise UnsplittableError(
            "the dataset already reads from the data service; call distribute() only once: "
            "operators before it run on the data workers, operators after it in the reading "
            "process"
        )
    return dataset

"""Arguments of distribute and from_dataset_id: errors are raised before any server is contacted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataservice as ds
from dataservice.client.arguments import check_compression, check_saved_compression
from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS, open_request
from dataservice.client.source import ServiceSource
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

TARGET = "127.0.0.1:5050"


def distribute(**arguments: Any) -> Any:
    return ds.distribute(
        **{"processing_mode": ds.ShardingPolicy.DYNAMIC, "service": TARGET, **arguments}
    )


def test_string_given_as_schema_is_refused_suggesting_job_name() -> None:
    with pytest.raises(InvalidTypeError, match=r"pyarrow.Schema, got 'train'; .* job_name="):
        ds.from_dataset_id(ds.ShardingPolicy.OFF, TARGET, "1000", "train")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processing_mode": "sometimes"}, "'sometimes'"),
        ({"processing_mode": 1}, "processing_mode must be a ShardingPolicy"),
        ({"service": 5050}, "must be a string"),
        ({"service": ""}, "must not be empty"),
        ({"service": "a://b://c"}, "Malformed"),
        ({"job_name": ""}, "`job_name` must not be empty"),
        ({"job_name": 3}, "`job_name` must be a string"),
        ({"consumer_index": 0}, "go together"),
        ({"max_outstanding_requests": 0}, "must be positive or AUTOTUNE"),
        ({"max_outstanding_requests": True}, "must be positive or AUTOTUNE"),
        ({"max_outstanding_requests": np.array([1, 2])}, "must be positive or AUTOTUNE"),
        ({"max_outstanding_requests": -2}, "must be positive or AUTOTUNE"),
        ({"compression": "GZIP"}, "Invalid `compression` argument: 'GZIP'; use 'AUTO', 'LZ4'"),
        ({"target_workers": "NEAR"}, "Unrecognized target workers 'NEAR'"),
        ({"data_transfer_protocol": "pigeon"}, "'pigeon'"),
        ({"delivery": "perhaps"}, "'perhaps'"),
        ({"ordered": "yes"}, "ordered must be True or False, got 'yes'"),
        ({"on_error": "ignore"}, "'ignore'"),
        ({"cross_trainer_cache": "trainer"}, "must be a CrossTrainerCache"),
        ({"consumer_index": 2, "num_consumers": 2}, "from 0 to num_consumers - 1"),
        ({"consumer_index": 0, "num_consumers": True}, "must be integers"),
        ({"cross_trainer_cache": ds.CrossTrainerCache("a")}, "requires named jobs"),
    ],
)
def test_invalid_distribute_argument_is_refused_naming_it(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        distribute(**arguments)


def test_coordinated_reads_with_dynamic_sharding_are_unimplemented() -> None:
    with pytest.raises(UnimplementedError, match="coordinated reads"):
        distribute(consumer_index=0, num_consumers=2, job_name="j")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"processing_mode": "distributed_epoch"},
        {"processing_mode": "parallel_epochs"},
        {"service": ("grpc", TARGET)},
        {"service": f"grpc://{TARGET}"},
        {"max_outstanding_requests": -1},
        {"max_outstanding_requests": 4, "target_workers": "any", "compression": None},
        {"data_transfer_protocol": "grpc", "delivery": "at_most_once"},
        {"data_transfer_protocol": "shared_memory"},
        {"data_transfer_protocol": "local"},
        {"max_outstanding_requests": np.int64(4)},
    ],
)
def test_distribute_contacts_no_server_before_it_is_applied(
    arguments: dict[str, Any],
) -> None:
    assert callable(distribute(**arguments))


def test_dataset_distribute_takes_arguments_named_as_in_tf_data() -> None:
    with pytest.raises(InvalidArgumentError, match="processing_mode must be"):
        ds.Dataset.range(3).distribute(processing_mode="all", service="localhost:1")
    with pytest.raises(InvalidArgumentError, match="`job_name` must not be empty"):
        ds.Dataset.range(3).distribute(ds.ShardingPolicy.DYNAMIC, "localhost:1", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset_id": b"clicks"}, "dataset_id must be a string or an int, got b'clicks'"),
        ({"dataset_id": True}, "dataset_id must be a string or an int, got True"),
        ({"dataset_id": ""}, "dataset_id must not be empty"),
        ({"compression": "GZIP"}, "Invalid `compression` argument: 'GZIP'"),
        ({"compression": ["LZ4"]}, r"Invalid `compression` argument: \['LZ4'\]"),
    ],
)
def test_register_dataset_checks_arguments_before_reading_dataset(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ds.register_dataset(TARGET, ds.Dataset.from_csv("/no/such/file"), **arguments)


@pytest.mark.parametrize("timeout_s", ["5", float("nan"), -1])
@pytest.mark.parametrize(
    "call",
    [
        lambda **more: ds.register_dataset(TARGET, ds.Dataset.range(3), **more),
        lambda **more: ds.release_readers(TARGET, "trainer", **more),
        lambda **more: ds.save(ds.Dataset.range(3), "/no/such/folder", TARGET, **more),
        lambda **more: ds.Dataset.load("/no/such/folder", wait=True, **more),
    ],
)
def test_invalid_timeout_is_refused_at_once(call: Any, timeout_s: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"timeout_s .* got '?{timeout_s}"):
        call(timeout_s=timeout_s)


def test_from_dataset_id_checks_arguments_before_contacting_dispatcher() -> None:
    with pytest.raises(InvalidArgumentError, match="job_name"):
        ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, TARGET, "1000", job_name="")
    with pytest.raises(TypeError, match="dataset_id must be a string or an int, got None"):
        ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, TARGET, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset_id must not be empty"):
        ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, TARGET, "")


def test_from_dataset_id_checks_compression_before_contacting_dispatcher() -> None:
    with pytest.raises(InvalidArgumentError, match="Invalid `compression` argument: 'GZIP'"):
        ds.from_dataset_id(ds.ShardingPolicy.OFF, TARGET, "1000", compression="GZIP")


def test_non_dataset_cannot_be_distributed_or_registered() -> None:
    for register in (distribute(), lambda data: ds.register_dataset(TARGET, data)):
        with pytest.raises(InvalidArgumentError, match="got list"):
            register([1, 2, 3])


def test_tf_data_compression_names_map_to_lz4_and_zstd() -> None:
    assert check_compression("SNAPPY") == check_compression("lz4") == "LZ4"
    assert check_saved_compression("gzip") == check_saved_compression("ZSTD") == "ZSTD"
    assert check_saved_compression(None) == "NONE"
    assert check_compression(None) == "NONE"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"ordered": True},
        {"on_error": "skip"},
        {"processing_mode": ds.ShardingPolicy.OFF, "num_consumers": 2, "consumer_index": 0},
    ],
)
def test_distributed_dataset_cannot_be_distributed_or_registered_again(
    arguments: dict[str, Any],
) -> None:
    remote = ds.Dataset(source()).shuffle(3).batch(2).shuffle(2)
    with pytest.raises(
        InvalidArgumentError, match="already reads from the data service; call distribute"
    ):
        distribute(**{"job_name": "j", **arguments})(remote)
    with pytest.raises(
        InvalidArgumentError, match="already reads from the data service; call distribute"
    ):
        ds.register_dataset(TARGET, remote)


def source(**fields: Any) -> ServiceSource:
    schema = ds.Dataset.range(1).schema
    return ServiceSource(
        **{"target": TARGET, "dataset_id": "1000", "policy": 1, "schema": schema, **fields}
    )


def test_service_source_survives_plan_encoding() -> None:
    decoded = decode_plan(encode_plan(source(job_name="train", is_batched=True)))
    assert isinstance(decoded, ServiceSource)
    assert decoded.job_name == "train"
    assert decoded.batched
    assert decoded.max_elements == DEFAULT_BUFFERED_ELEMENTS


def test_open_request_states_fingerprint_of_registered_plan() -> None:
    assert open_request(source(registered="abc").spec(0)).fingerprint == "abc"


def test_cardinality_of_service_source_is_known_only_if_zero_or_infinite() -> None:
    assert source(elements=0).cardinality() == 0
    assert source(elements=-1).cardinality() == ds.INFINITE_CARDINALITY
    assert source(elements=10).cardinality() == ds.UNKNOWN_CARDINALITY

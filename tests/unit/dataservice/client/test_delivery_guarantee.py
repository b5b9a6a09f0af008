"""Delivery of datasets declared nondeterministic: the guarantee that applies, and its warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.delivery_guarantee import warn_of_registered, with_delivery
from dataservice.client.read_arguments import ReadArguments
from dataservice.dataset.node import unrepeatable
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint
from dataservice.errors import DataServiceWarning, InvalidArgumentError, UnimplementedError

SCHEMA = pa.schema([("id", pa.int64())])


def same(columns: dict[str, Any]) -> dict[str, Any]:
    return columns


def rows() -> Iterator[dict[str, int]]:
    yield {"id": 1}


def every(columns: dict[str, Any]) -> Any:
    return columns["id"] >= 0


def nested(row: dict[str, int]) -> ds.Dataset:
    return ds.Dataset.range(row["id"])


DECLARED: dict[str, Callable[[bool], ds.Dataset]] = {
    "from_generator(": lambda d: ds.Dataset.from_generator(rows, SCHEMA, deterministic=d),
    "map(": lambda d: ds.Dataset.range(3).map(same, deterministic=d),
    "flat_map(": lambda d: ds.Dataset.range(3).flat_map(same, deterministic=d),
    "filter(": lambda d: ds.Dataset.range(3).filter(every, deterministic=d),
    "with_column(": lambda d: ds.Dataset.range(3).with_column("id", every, deterministic=d),
    "interleave(": lambda d: ds.Dataset.range(3).interleave(nested, deterministic=d),
}


def arguments(**given: Any) -> ReadArguments:
    plain: dict[str, Any] = {
        "processing_mode": ds.ShardingPolicy.DYNAMIC,
        "job_name": None,
        "consumer_index": None,
        "num_consumers": None,
        "max_outstanding_requests": None,
        "data_transfer_protocol": None,
        "cross_trainer_cache": None,
        "target_workers": "AUTO",
        "delivery": None,
        "ordered": False,
        "on_error": "raise",
        "timeout_s": 1.0,
    }
    return ReadArguments.check(**{**plain, **given})


@pytest.mark.parametrize("name", DECLARED)
def test_unrepeatable_operator_is_named_and_its_position_refused(name: str) -> None:
    declared, plain = DECLARED[name](False), DECLARED[name](True)
    assert unrepeatable(plain.node) == ""
    assert unrepeatable(decode_plan(encode_plan(declared.node))).startswith(name)
    assert fingerprint(declared.node) == fingerprint(plain.node)
    with iter(plain) as iterator:
        iterator.state_dict()
    with (
        iter(declared.shuffle(3, seed=1).batch(2)) as iterator,
        pytest.raises(UnimplementedError, match=rf"cannot be saved: {name[:-1]}\(.*deterministic="),
    ):
        iterator.state_dict()


@pytest.mark.parametrize("name", DECLARED)
def test_deterministic_argument_other_than_bool_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="deterministic must be True or False, got 1"):
        DECLARED[name](1)  # type: ignore[arg-type]


def test_unrepeatable_dataset_falls_back_to_at_most_once_with_warning() -> None:
    declared, plain = DECLARED["map("](False).batch(2), DECLARED["map("](True).batch(2)
    assert with_delivery(arguments(), plain.node).delivery == "exactly_once"
    assert with_delivery(arguments(delivery="at_most_once"), plain.node).delivery == "at_most_once"
    wanted = arguments(delivery="at_most_once")
    assert with_delivery(wanted, declared.node).delivery == "at_most_once", "without a warning"
    with pytest.warns(
        DataServiceWarning, match=r"map\(.*same\) was declared.*at_most_once"
    ) as told:
        assert with_delivery(arguments(), declared.node).delivery == "at_most_once"
    assert len(told) == 1
    assert told[0].filename == __file__, "it shows the user's line"
    with pytest.warns(DataServiceWarning, match=r"will be read with delivery='at_most_once': map"):
        warn_of_registered(declared.node)
    warn_of_registered(plain.node)


def test_unrepeatable_dataset_under_off_is_read_without_warning() -> None:
    declared = DECLARED["from_generator("](False)
    off = arguments(processing_mode=ds.ShardingPolicy.OFF)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_delivery(off, declared.node)
    exactly = arguments(processing_mode=ds.ShardingPolicy.OFF, delivery="exactly_once")
    with pytest.raises(InvalidArgumentError, match="deterministic=False; leave delivery out"):
        with_delivery(exactly, declared.node)


@pytest.mark.parametrize("policy", [p for p in ds.ShardingPolicy if p.name != "DYNAMIC"])
def test_at_most_once_without_dynamic_sharding_is_refused(policy: ds.ShardingPolicy) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {policy.name}: .*leave delivery out"):
        arguments(processing_mode=policy, delivery="at_most_once")
    cache = ds.CrossTrainerCache("a")
    shared = {"cross_trainer_cache": cache, "job_name": "job", "delivery": "at_most_once"}
    assert arguments(processing_mode=policy, **shared).delivery == "at_most_once", "as it is there"


@pytest.mark.parametrize("given", [{"delivery": "exactly_once"}, {"ordered": True}])
def test_exactly_once_or_ordered_read_of_unrepeatable_dataset_is_refused(
    given: dict[str, Any],
) -> None:
    distributed = ds.distribute(ds.ShardingPolicy.DYNAMIC, "127.0.0.1:1", **given)
    for build in (DECLARED["from_generator("], DECLARED["map("]):
        with pytest.raises(InvalidArgumentError, match="needs a dataset that can be replayed"):
            distributed(build(False))

"""Sharding policies, the targets of services, and addresses, as users write them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dataservice.errors import InvalidArgumentError
from dataservice.runtime.addresses import format_address, split_address
from dataservice.vocabulary import ShardingPolicy, parse_target


def test_sharding_policies_have_numbers_of_tf_data() -> None:
    assert [(policy.name, policy.value) for policy in ShardingPolicy] == [
        ("OFF", 0),
        ("DYNAMIC", 1),
        ("FILE", 2),
        ("DATA", 3),
        ("FILE_OR_DATA", 4),
        ("HINT", 5),
    ]


@pytest.mark.parametrize(
    ("service", "target"),
    [
        ("localhost:5050", "localhost:5050"),
        ("grpc://10.0.0.1:1", "10.0.0.1:1"),
        (("grpc", "host:65535"), "host:65535"),
        ("grpc://[::1]:5050", "[::1]:5050"),
        ("dispatcher-0.data:05050", "dispatcher-0.data:5050"),
    ],
)
def test_service_target_is_parsed(service: Any, target: str) -> None:
    assert parse_target(service) == target


@pytest.mark.parametrize(
    ("service", "message"),
    [
        (5050, "must be a string"),
        (None, "must be a string"),
        (b"host:1", "must be a string"),
        (("grpc",), "must be a string"),
        (("grpc", 5050), "must be a string"),
        (SimpleNamespace(target="grpc://host:1"), r"give its target, 'grpc://host:1'"),
        ("", "must not be empty"),
        ("grpc://", "must not be empty|HOST:PORT"),
        (("grpc", ""), "must not be empty"),
        ("grpc://a://b:1", "Malformed"),
        ("http://a:1", "'http' is not supported"),
        (("local", "a:1"), "'local' is not supported"),
        ("host", "HOST:PORT"),
        (":5050", "HOST:PORT"),
        ("::1:5050", "brackets"),
        ("[]:5050", "HOST:PORT"),
        ("host/path:1", "HOST:PORT"),
        ("host:", "from 1 to 65535"),
        ("host:0", "from 1 to 65535"),
        ("host:65536", "from 1 to 65535"),
        ("host:-1", "from 1 to 65535"),
        ("host:٣", "from 1 to 65535"),
        ("host:%port%", "from 1 to 65535"),
    ],
)
def test_invalid_service_target_is_refused(service: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_target(service)


@pytest.mark.parametrize(("host", "port"), [("host", 1), ("::1", 5050), ("127.0.0.1", 65_535)])
def test_formatted_address_splits_into_host_and_port(host: str, port: int) -> None:
    assert split_address(format_address(host, port)) == (host, port)


def test_address_with_any_port_accepts_zero_and_needs_brackets() -> None:
    assert split_address("[::1]:0", any_port=True) == ("::1", 0)
    for address, message in (("host:", "from 0 to 65535"), ("::1:0", "brackets")):
        with pytest.raises(InvalidArgumentError, match=message):
            split_address(address, any_port=True)

"""Settings of dispatchers and workers: defaults, refusals, and addresses open to the network."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

import dataservice
from dataservice.config import DispatcherConfig, WorkerConfig
from dataservice.dispatcher.server import DispatchServer
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.listening import is_loopback
from dataservice.runtime.machine.cores import available_cores
from dataservice.worker.server import WorkerServer


def worker(**settings: Any) -> WorkerConfig:
    return WorkerConfig("127.0.0.1:5050", **settings)


def test_config_has_documented_defaults() -> None:
    dispatcher = DispatcherConfig()
    assert (dispatcher.port, dispatcher.host) == (0, "127.0.0.1")
    assert dispatcher.worker_timeout_s == 10.0
    assert dispatcher.client_timeout_s == 60.0
    assert dispatcher.job_gc_check_interval_s == 600.0
    assert dispatcher.job_gc_timeout_s == 300.0
    assert worker().heartbeat_interval_s == 1.0
    assert worker().dispatcher_timeout_s == 3_600.0
    assert worker().pipeline_threads == available_cores() >= 1
    assert worker().buffer_bytes == 64 << 20


def test_reader_waits_longer_than_the_silence_of_the_one_it_takes_over_from() -> None:
    waits = inspect.signature(dataservice.distribute).parameters["timeout_s"].default
    assert waits >= DispatcherConfig().client_timeout_s + 20.0


def test_settings_replace_defaults() -> None:
    dispatcher = DispatcherConfig(worker_timeout_ms=1, client_timeout_ms=2_500)
    assert (dispatcher.worker_timeout_s, dispatcher.client_timeout_s) == (0.001, 2.5)
    chosen = worker(heartbeat_interval_ms=50, dispatcher_timeout_ms=1_000, threads=3)
    assert chosen.heartbeat_interval_s == 0.05
    assert chosen.dispatcher_timeout_s == 1.0
    assert chosen.pipeline_threads == 3


def test_config_fields_may_be_given_by_position_as_in_tf_data() -> None:
    config = DispatcherConfig(5050, "grpc", "journal", True, ["a:1", "b"], 10, 20)
    assert config.work_dir == "journal"
    assert config.worker_addresses == ("a:1", "b")
    assert config.job_gc_timeout_s == 0.02


def test_gc_interval_of_zero_is_minimal_and_timeout_of_minus_one_is_never() -> None:
    config = DispatcherConfig(job_gc_check_interval_ms=0, job_gc_timeout_ms=-1)
    assert config.job_gc_check_interval_s == 0.001
    assert config.job_gc_timeout_s is None
    assert DispatcherConfig(job_gc_timeout_ms=0).job_gc_timeout_s == 0.001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": -1}, "port must be an integer from 0 to 65535, got -1"),
        ({"port": 65_536}, "got 65536"),
        ({"port": "5050"}, "got '5050'"),
        ({"port": True}, "got True"),
        ({"protocol": "http"}, "'http'"),
        ({"host": ""}, "host must be a non-empty string"),
        ({"fault_tolerant_mode": True}, "needs a work_dir"),
        ({"fault_tolerant_mode": True, "work_dir": ""}, "needs a work_dir"),
        ({"work_dir": []}, r"work_dir must be a path.* got \[\]"),
        ({"work_dir": 0, "fault_tolerant_mode": True}, "work_dir must be a path.* got 0"),
        ({"fault_tolerant_mode": 1}, "True or False, got 1"),
        ({"job_gc_timeout_ms": -2}, "job_gc_timeout_ms must be an integer >= -1, got -2"),
        ({"job_gc_check_interval_ms": -1}, "job_gc_check_interval_ms"),
        ({"worker_timeout_ms": 0}, "worker_timeout_ms must be an integer >= 1, got 0"),
        ({"client_timeout_ms": 1.5}, "client_timeout_ms must be an integer >= 1, got 1.5"),
        ({"worker_max_concurrent_snapshots": -1}, "worker_max_concurrent_snapshots"),
        ({"worker_addresses": "a:1"}, "worker_addresses"),
        ({"worker_addresses": 3}, "worker_addresses must be a sequence .*, got 3"),
        ({"worker_addresses": ["a:1", ""]}, "worker_addresses"),
        ({"tls_cert_path": "c.pem"}, "tls_cert_path and tls_key_path go together"),
        ({"insecure_network": None}, "insecure_network"),
        ({"token": 3}, "token must be None or text, got int"),
        ({"tls_cert_path": 3, "tls_key_path": 4}, "tls_cert_path must be a path"),
    ],
)
def test_invalid_dispatcher_setting_is_refused_naming_field_and_value(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        DispatcherConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 1.0}, "got 1.0"),
        ({"worker_address": ""}, "worker_address"),
        ({"worker_address": "host"}, "worker_address must be HOST:PORT.*%port%.*got 'host'"),
        ({"worker_address": "http://host:%port%"}, "worker_address must be HOST:PORT"),
        ({"data_transfer_address": "host:%port"}, "data_transfer_address must be HOST:PORT"),
        ({"data_transfer_address": 3}, "data_transfer_address"),
        ({"data_transfer_protocol": "carrier-pigeon"}, "carrier-pigeon"),
        ({"heartbeat_interval_ms": 0}, "heartbeat_interval_ms"),
        ({"dispatcher_timeout_ms": -1}, "dispatcher_timeout_ms"),
        ({"threads": 0}, "threads must be an integer >= 1, got 0"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"allow_functions": "no"}, "allow_functions must be True or False, got 'no'"),
        ({"host": "0.0.0.0"}, "--insecure-network"),
    ],
)
def test_invalid_worker_setting_is_refused_naming_field_and_value(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        worker(**settings)


def test_worker_config_without_dispatcher_address_is_refused() -> None:
    with pytest.raises(ValueError, match="dispatcher_address must be set"):
        WorkerConfig(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="HOST:PORT"):
        WorkerConfig("dispatcher")
    with pytest.raises(ValueError, match="dispatcher_address must not be empty"):
        WorkerConfig("")
    with pytest.raises(TypeError, match=r"dispatcher_address must be a string .* got 3"):
        WorkerConfig(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be a WorkerConfig, got 'localhost:5050'"):
        WorkerServer("localhost:5050")  # type: ignore[arg-type]
    assert WorkerConfig("grpc://localhost:5050").dispatcher_target == "localhost:5050"


def test_arguments_of_servers_are_checked_by_type() -> None:
    with pytest.raises(InvalidTypeError, match="a DispatcherConfig or None, got 5050"):
        DispatchServer(5050)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="start must be True or False, got 'no'"):
        DispatchServer(start="no")  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="start must be True or False, got None"):
        WorkerServer(worker(), start=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_loopback_host_needs_neither_tls_nor_consent(host: str) -> None:
    assert is_loopback(host)
    DispatcherConfig(host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.evil"])
def test_network_host_without_tls_or_consent_is_refused(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(InvalidArgumentError, match=r"tls_cert_path.*insecure_network=True"):
        DispatcherConfig(host=host)
    assert DispatcherConfig(host=host, insecure_network=True).host == host
    assert DispatcherConfig(host=host, tls_cert_path="c", tls_key_path="k").host == host


def test_network_host_with_ca_only_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="insecure_network"):
        DispatcherConfig(host="0.0.0.0", tls_ca_path="ca.pem")


def test_config_is_frozen_and_its_repr_hides_token() -> None:
    config = DispatcherConfig(token="hush")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.port = 1  # type: ignore[misc]
    assert "hush" not in repr(config)
    assert "hush" not in repr(worker(token="hush"))

"""The address that a worker gives readers to connect to."""

from __future__ import annotations

import socket

import pytest

from dataservice import WorkerConfig
from dataservice.worker.server import _announced


def config(host: str, **settings: str) -> WorkerConfig:
    return WorkerConfig("d:1", host=host, insecure_network=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("full_name", "address"),
    [("node7.rack.example", "node7.rack.example:5051"), ("localhost", "node7:5051")],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_worker_bound_to_all_addresses_announces_the_name_of_its_host(
    monkeypatch: pytest.MonkeyPatch, host: str, full_name: str, address: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getfqdn", lambda: full_name)
    assert _announced(config(host), 5051) == address


def test_other_workers_announce_what_they_are_bound_to_or_told() -> None:
    assert _announced(config("10.0.0.7"), 5051) == "10.0.0.7:5051"
    assert _announced(config("::1"), 5051) == "[::1]:5051"
    told = config("0.0.0.0", worker_address="outside.example:%port%")
    assert _announced(told, 5051) == "outside.example:5051"

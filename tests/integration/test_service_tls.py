"""A data service over TLS: its workers and readers trust the CA that the environment names."""

from __future__ import annotations

import pathlib

import pytest

import dataservice as ds
from dataservice.errors import MissingFileError, UnauthenticatedError
from tests.certificates import new_certificate
from tests.integration.service_cluster import read_ids

ROWS = 1_000


@pytest.fixture
def pem(tmp_path: pathlib.Path) -> dict[str, str]:
    """Returns the settings of a server that presents a certificate."""
    made = new_certificate(tmp_path / "tls")
    return {"tls_cert_path": made.cert_path, "tls_key_path": made.key_path, "ca": made.ca_path}


@pytest.mark.parametrize("protocol", [None, "flight"])
def test_workers_and_readers_trust_the_ca_in_the_environment(
    pem: dict[str, str], monkeypatch: pytest.MonkeyPatch, protocol: str | None
) -> None:
    monkeypatch.setenv("DATASERVICE_TLS_CA", pem.pop("ca"))
    with ds.DispatchServer(ds.DispatcherConfig(**pem)) as dispatcher:
        target = dispatcher.target
        config = ds.WorkerConfig(target, data_transfer_protocol=protocol, **pem)
        with ds.WorkerServer(config):
            data = ds.Dataset.range(ROWS).batch(100).distribute(ds.ShardingPolicy.DYNAMIC, target)
            assert sorted(read_ids(data)) == list(range(ROWS))


def test_ca_that_a_worker_is_given_goes_before_the_one_in_the_environment(
    pem: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    ca, other = pem.pop("ca"), new_certificate(tmp_path / "other").ca_path
    with ds.DispatchServer(ds.DispatcherConfig(**pem)) as dispatcher:
        monkeypatch.setenv("DATASERVICE_TLS_CA", other)
        with ds.WorkerServer(ds.WorkerConfig(dispatcher.target, tls_ca_path=ca, **pem)):
            pass
        refused = ds.WorkerServer(ds.WorkerConfig(dispatcher.target, **pem), start=False)
        with pytest.raises(UnauthenticatedError, match=r"other/ca\.pem"):
            refused.start()
        monkeypatch.setenv("DATASERVICE_TLS_CA", "no-such.pem")
        missing = ds.WorkerServer(ds.WorkerConfig(dispatcher.target, **pem), start=False)
        with pytest.raises(MissingFileError, match=r"DATASERVICE_TLS_CA names 'no-such.pem'"):
            missing.start()

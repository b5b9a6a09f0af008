"""Training over TLS: with the right certificates, and the errors without them."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.__main__ import main
from pstrain.config import ParameterConfig
from pstrain.errors import InvalidArgumentError, UnauthenticatedError
from tests.certificates import new_certificate

DEADLINE_S = 60.0
SHORT = ParameterConfig(start_timeout_s=1.0, share_memory=False)
# Far longer than a test may take: a connection that can never succeed must not be retried.
WAITING = ParameterConfig(start_timeout_s=600.0, share_memory=False)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Writes certificates; returns the arguments of servers that name them."""
    tls = new_certificate(tmp_path_factory.mktemp("tls"))
    return {f"tls_{name}": path for name, path in dataclasses.asdict(tls).items()}


@pytest.fixture(scope="module")
def resolver(pem: dict[str, str]) -> Iterator[ps.SimpleClusterResolver]:
    """Runs a trainer and a parameter server with TLS in this process; yields their resolver."""
    with contextlib.ExitStack() as stack:
        addresses = {}
        for job in ("ps", "worker"):
            spec = ps.ClusterSpec({job: ["localhost:0"]})
            server = stack.enter_context(ps.Server(spec, **pem))
            addresses[job] = [server.address]
        yield ps.SimpleClusterResolver(ps.ClusterSpec(addresses))


def test_coordinator_trainer_and_server_speak_tls(
    resolver: ps.SimpleClusterResolver, pem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSTRAIN_TLS_CA", pem["tls_ca_path"])
    # Without shared memory, over which there is nothing to encrypt.
    monkeypatch.setattr("pstrain.trainer.server_session.ParameterConfig", lambda: SHORT)
    strategy = ps.ParameterServerStrategy(resolver, config=ParameterConfig(share_memory=False))
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        total = ps.Variable(np.zeros(3))

    def add() -> list[float]:
        total.assign_add(np.ones(3))
        return list(total.numpy())

    assert coordinator.schedule(add).fetch(DEADLINE_S) == [1.0] * 3
    assert total.numpy().tolist() == [1.0] * 3
    coordinator.close()


def test_untrusted_certificate_is_refused_without_retries(
    resolver: ps.SimpleClusterResolver, tmp_path: pathlib.Path
) -> None:
    other = new_certificate(tmp_path)
    for path, reason in ((other.ca_path, "name the CA"), (None, "PSTRAIN_TLS_CA")):
        with pytest.raises(UnauthenticatedError, match=reason):
            ps.ParameterServerStrategy(resolver, config=WAITING, tls_ca_path=path)


def test_v1_strategy_speaks_tls(resolver: ps.SimpleClusterResolver, pem: dict[str, str]) -> None:
    own = ps.SimpleClusterResolver(resolver.cluster_spec(), "", "worker", 0)
    strategy = ps.v1.ParameterServerStrategy(own, config=SHORT, tls_ca_path=pem["tls_ca_path"])
    with strategy.scope():
        assert ps.Variable(3.0).numpy() == 3.0
    strategy.close()


def test_incomplete_or_missing_certificate_paths_are_named(
    resolver: ps.SimpleClusterResolver, pem: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"ps": ["localhost:0"]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tls_cert_path": pem["tls_cert_path"]}, "both a certificate and its key"),
        ({"tls_ca_path": pem["tls_ca_path"]}, "needs a certificate of its own"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            ps.Server(spec, **options)
    with pytest.raises(InvalidArgumentError, match=r"--insecure-network .*--tls-cert .*leave one"):
        ps.Server(spec, insecure_network=True, **pem)
    monkeypatch.setenv("PSTRAIN_TLS_CA", "no-such.pem")
    with pytest.raises(FileNotFoundError, match=r"PSTRAIN_TLS_CA names 'no-such.pem'"):
        ps.ParameterServerStrategy(resolver)
    with pytest.raises(FileNotFoundError, match=r"tls_ca_path names 'absent.pem'"):
        ps.ParameterServerStrategy(resolver, tls_ca_path="absent.pem")


def test_listening_on_all_addresses_needs_tls_or_insecure_network_option(
    pem: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--job", "ps", "--host", "0.0.0.0", "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert "--tls-cert, --tls-key" in told
    assert "--insecure-network" in told
    server = ps.Server({"ps": ["0.0.0.0:0"]}, start=False, **pem)
    assert server.job_name == "ps"

"""The command and the environment of each task of a launched cluster."""

from __future__ import annotations

import json

import pytest

from pstrain.cluster import ClusterSpec
from pstrain.errors import InvalidArgumentError
from pstrain.launch.layout import Exposure, Layout
from pstrain.resolvers.tf_config import TFConfigClusterResolver
from pstrain.security import may_expose

LAYOUT = Layout(program=("train.py", "--fast"), workers=2, ps=1, data_workers=1)
ADDRESSES = {
    "chief": ["h0:1"],
    "ps": ["h0:2"],
    "worker": ["h1:3", "h1:4"],
    "dispatcher": ["h0:5"],
    "data_worker": ["[::1]:6"],
}


def test_environment_gives_each_task_its_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    for job, index in LAYOUT.tasks():
        told = LAYOUT.environment(job, index, ADDRESSES)
        if job in ("dispatcher", "data_worker"):
            assert told == {}
            continue
        assert LAYOUT.command(job, index, ADDRESSES, "python3") == ["python3", "train.py", "--fast"]
        assert told["DATASERVICE_DISPATCHER"] == "grpc://h0:5"
        monkeypatch.setenv("TF_CONFIG", told["TF_CONFIG"])
        resolver = TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == (job, index)
        jobs = {name: ADDRESSES[name] for name in ("chief", "ps", "worker")}
        assert resolver.cluster_spec() == ClusterSpec(jobs)


def test_data_service_commands_carry_their_addresses() -> None:
    common = ["python3", "-m", "dataservice"]
    assert LAYOUT.command("dispatcher", 0, ADDRESSES, "python3") == [
        *common, "dispatcher", "--host", "h0", "--port", "5"
    ]  # fmt: skip
    assert LAYOUT.command("data_worker", 0, ADDRESSES, "python3") == [
        *common, "worker", "--host", "::1", "--port", "6", "--dispatcher", "h0:5"
    ]  # fmt: skip


def test_layout_without_data_workers_has_no_data_service() -> None:
    layout = Layout(program=("train",), workers=1, ps=1, data_workers=0)
    assert layout.tasks() == [("chief", 0), ("ps", 0), ("worker", 0)]
    assert "DATASERVICE_DISPATCHER" not in layout.environment("chief", 0, ADDRESSES)
    assert layout.command("chief", 0, ADDRESSES, "python3") == ["train"]


def test_certificates_are_passed_to_servers_and_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    exposure = Exposure(tls_cert="c.pem", tls_key="k.pem", tls_ca="ca.pem")
    exposure.require("slurm")
    layout = Layout(program=("t.py",), exposure=exposure)
    told = layout.environment("worker", 0, ADDRESSES)
    assert {name: told[name] for name in told if "TLS" in name} == {
        "PSTRAIN_TLS_CERT": "c.pem",
        "PSTRAIN_TLS_KEY": "k.pem",
        "PSTRAIN_TLS_CA": "ca.pem",
        "DATASERVICE_TLS_CA": "ca.pem",
    }
    wanted = ["--tls-cert", "c.pem", "--tls-key", "k.pem", "--tls-ca", "ca.pem"]
    assert layout.command("dispatcher", 0, ADDRESSES, "python3")[-6:] == wanted
    monkeypatch.delenv("PSTRAIN_INSECURE_NETWORK", raising=False)
    assert not may_expose(False)


def test_open_network_requires_explicit_option(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"on slurm .*--insecure-network"):
        Exposure().require("slurm")
    exposure = Exposure(insecure_network=True)
    exposure.require("slurm")
    layout = Layout(program=("t.py",), exposure=exposure)
    assert layout.command("dispatcher", 0, ADDRESSES, "p")[-1] == "--insecure-network"
    for name, value in layout.environment("ps", 0, ADDRESSES).items():
        monkeypatch.setenv(name, value)
    assert may_expose(False)


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_ca"])
def test_insecure_network_together_with_tls_option_is_refused(name: str) -> None:
    option = f"--{name.replace('_', '-')} x.pem"
    with pytest.raises(InvalidArgumentError, match=rf"--insecure-network .*{option} .*leave one"):
        Exposure(insecure_network=True, **{name: "x.pem"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"program": ()}, "which program"),
        ({"program": ("t.py",), "workers": 0}, "--workers must be at least 1, got 0"),
        ({"program": ("t.py",), "data_workers": -1}, "--data-workers must be at least 0, got -1"),
    ],
)
def test_invalid_layout_values_are_refused_by_option(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Layout(**values)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="both --tls-cert and --tls-key"):
        Exposure(tls_cert="c.pem")


def test_layout_survives_json() -> None:
    layout = Layout(program=("t.py", 'a "b" $c'), exposure=Exposure(insecure_network=True))
    assert Layout.from_json(layout.to_json()) == layout
    assert json.loads(layout.to_json())["workers"] == 2

"""A server made as programs for TensorFlow make theirs."""

from __future__ import annotations

import pytest

import pstrain as ps


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_server_takes_what_a_tensorflow_program_gives_it(job: str) -> None:
    spec = ps.ClusterSpec({job: ["localhost:0"]})
    resolver = ps.SimpleClusterResolver(spec, rpc_layer="grpc")
    with ps.Server(
        resolver.cluster_spec(),
        job_name=job,
        task_index=0,
        protocol=resolver.rpc_layer or "grpc",
        config=None,
        start=True,
    ) as server:
        assert server.target == f"grpc://{server.address}"
        assert repr(server) == f"<Server {job}:0 at {server.address}>"
    assert repr(server) == f"<Server {job}:0 stopped>"


def test_what_it_cannot_take_it_names() -> None:
    spec = ps.ClusterSpec({"ps": ["localhost:0"]})
    with pytest.raises(
        ValueError, match=r"protocol must be 'grpc', got 'grpc\+tls'.*tls_cert_path"
    ):
        ps.Server(spec, protocol="grpc+tls")
    with pytest.raises(ValueError, match=r"config must be None.*NUMBA_NUM_THREADS"):
        ps.Server(spec, config=object())  # type: ignore[arg-type]

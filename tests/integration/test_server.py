"""A server that is made in the way TensorFlow programs make theirs."""

from __future__ import annotations

import pytest

import pstrain as ps
from tests.programs import said_by


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_server_takes_the_arguments_of_tensorflow_programs(job: str) -> None:
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


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_second_start_changes_nothing_and_a_stopped_server_cannot_start_again(job: str) -> None:
    server = ps.Server({job: ["localhost:0"]}, start=False)
    server.start()
    address = server.address
    server.start()
    assert server.address == address
    server.stop()
    with pytest.raises(RuntimeError, match="make a new Server"):
        server.start()


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_context_starts_server_whose_join_was_refused_before(job: str) -> None:
    server = ps.Server({job: ["localhost:0"]}, start=False)
    assert repr(server) == f"<Server {job}:0 not started>"
    with pytest.raises(RuntimeError, match=r"before start\(\)"):
        server.join()
    with server:
        assert not server.address.endswith(":0")
    server.join()


def test_local_server_is_a_cluster_of_one_trainer() -> None:
    with ps.Server.create_local_server() as server:
        assert (server.job_name, server.task_index) == ("worker", 0)
        assert server.address.startswith("127.0.0.1:")
        assert not server.address.endswith(":0")


@pytest.mark.parametrize(("job", "other"), [("worker", "paramserver"), ("ps", "trainer")])
def test_server_process_does_not_import_the_other_kind_of_server(job: str, other: str) -> None:
    program = (
        "import sys\nimport pstrain as ps\n"
        f"ps.Server({{'{job}': ['localhost:0']}}, start=False)\n"
        f"print('pstrain.{other}.server' in sys.modules)\n"
    )
    assert said_by(program) == "False\n"


def test_trainer_has_imported_what_closures_are_made_of_before_it_serves() -> None:
    program = (
        "import sys\nimport pstrain as ps\n"
        "with ps.Server({'worker': ['localhost:0']}):\n"
        "    loaded = set(sys.modules)\n"
        "from pstrain import layers, losses, metrics, models, optimizers\n"
        "print([name for name in set(sys.modules) - loaded if name.startswith('pstrain.')])\n"
    )
    assert said_by(program) == "[]\n"


def test_trainer_does_not_import_the_coordinator() -> None:
    program = (
        "import sys\n"
        "import pstrain.trainer.server, pstrain.execution.on_trainers\n"
        "import pstrain.training, pstrain.evaluation, pstrain.models\n"
        "print('pstrain.coordinator.client' in sys.modules)\n"
    )
    assert said_by(program) == "False\n"


def test_unsupported_protocol_or_config_is_refused() -> None:
    spec = ps.ClusterSpec({"ps": ["localhost:0"]})
    with pytest.raises(
        ValueError, match=r"protocol must be 'grpc', got 'grpc\+tls'.*tls_cert_path"
    ):
        ps.Server(spec, protocol="grpc+tls")
    with pytest.raises(ValueError, match=r"config must be None.*NUMBA_NUM_THREADS"):
        ps.Server(spec, config=object())  # type: ignore[arg-type]

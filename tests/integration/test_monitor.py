"""Monitors over real sockets: of a data service, of a training cluster, in a real browser."""

from __future__ import annotations

import http.client
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dataservice as ds
import pstrain as ps
from dataservice.errors import AddressInUseError, DataServiceError, InvalidTypeError
from dataservice.runtime.auth import resolve_token
from dataservice.runtime.process.children import spawn_module
from dataservice.vocabulary import parse_target
from tests.certificates import new_certificate
from tests.integration.service_cluster import LocalService, local_service
from tests.waiting import wait_until

READY_S = 60.0
ROWS = 64
JOB = "<b>train</b>"


def get(
    url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, str]:
    """Returns the status and the body of a GET, with the token of this user unless one is given."""
    token = resolve_token() if token is None else token
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=READY_S, context=tls) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figures(url: str) -> dict[tuple[str, ...], float]:
    """Returns what ``/metrics`` says: values by name and labels."""
    code, text = get(f"{url}metrics")
    assert code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def threads() -> str:
    """Returns the names of this program's threads."""
    return " ".join(each.name for each in threading.enumerate())


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """A service whose one job was read to its end."""
    with local_service() as service:
        data = ds.Dataset.range(ROWS).batch(8)
        remote = data.distribute(ds.ShardingPolicy.DYNAMIC, service.target, job_name=JOB)
        assert sum(len(batch) for batch in remote) == ROWS
        yield service


@pytest.fixture(scope="module")
def monitor(service: LocalService) -> Iterator[ds.MonitorServer]:
    with ds.MonitorServer(service.target) as monitor:
        yield monitor


def test_metrics_follow_the_dispatcher(monitor: ds.MonitorServer, service: LocalService) -> None:
    def has_told_all() -> bool:
        return figures(monitor.url).get(
            ("dataservice_worker_rows_sent_total", service.workers[0].address)
        ) == float(ROWS)

    wait_until(has_told_all, "the worker's rows")
    told = figures(monitor.url)
    assert told["dataservice_dispatcher_up",] == told["dataservice_workers",] == 1.0
    rows = {key[2:]: value for key, value in told.items() if "job_rows_consumed" in key[0]}
    assert rows == {(JOB, "0"): ROWS}


def test_metrics_tell_of_a_job_without_a_name() -> None:
    with local_service() as service, ds.MonitorServer(service.target) as monitor:
        data = ds.Dataset.range(ROWS).batch(8)
        reader = iter(data.distribute(ds.ShardingPolicy.DYNAMIC, service.target))
        next(reader)
        told = figures(monitor.url)
        names = [labels for name, *labels in told if name == "dataservice_job_readers"]
        assert [labels[1:] for labels in names] == [["", "0"]]
        reader.close()


def test_json_is_what_the_status_command_prints(
    monitor: ds.MonitorServer, service: LocalService
) -> None:
    code, text = get(f"{monitor.url}status.json")
    (job,) = json.loads(text)["jobs"]
    assert (code, job["name"]) == (200, JOB)
    assert json.loads(text)["workers"][0]["address"] == service.workers[0].address


def test_wrong_token_reads_nothing(monitor: ds.MonitorServer) -> None:
    for page in ("", "metrics", "status.json"):
        code, text = get(f"{monitor.url}{page}", token="wrong")
        assert code == 401
        assert "dataservice_workers" not in text
        assert "train" not in text
    assert get(f"{monitor.url}healthz", token="wrong") == (200, "ok\n")


def test_nothing_can_be_sent_to_a_monitor(monitor: ds.MonitorServer) -> None:
    for method in ("POST", "PUT", "DELETE"):
        connection = http.client.HTTPConnection(monitor.address, timeout=READY_S)
        connection.request(method, "/", headers={"Authorization": f"Bearer {resolve_token()}"})
        assert connection.getresponse().status == 501
        connection.close()


def test_silent_clients_keep_nobody_waiting(monitor: ds.MonitorServer) -> None:
    host, port = monitor.address.split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(8)]
    assert get(f"{monitor.url}healthz")[0] == 200
    for each in silent:
        each.close()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the browser chromium")
def test_browser_shows_the_page_after_the_token_was_given_once(
    monitor: ds.MonitorServer, tmp_path: pathlib.Path
) -> None:
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}", f"{monitor.url}?token={resolve_token()}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=True)
    assert "1 worker, 1 job, 1 dataset" in shown.stdout
    assert "<td>&lt;b&gt;train&lt;/b&gt;</td>" in shown.stdout


def test_monitor_of_lost_dispatcher_says_so_and_goes_on(tmp_path: pathlib.Path) -> None:
    dispatcher = ds.DispatchServer(ds.DispatcherConfig(work_dir=tmp_path, fault_tolerant_mode=True))
    port = int(parse_target(dispatcher.target).split(":")[1])
    with ds.MonitorServer(dispatcher.target) as monitor:
        assert get(f"{monitor.url}healthz")[0] == 200
        dispatcher.stop()
        wait_until(lambda: get(f"{monitor.url}healthz")[0] == 503, "the loss of the dispatcher")
        code, page = get(monitor.url)
        assert code == 503
        assert "cannot reach the dispatcher" in page
        assert figures(monitor.url) == {("dataservice_dispatcher_up",): 0.0}
        again = ds.DispatcherConfig(port=port, work_dir=tmp_path, fault_tolerant_mode=True)
        with ds.DispatchServer(again):
            wait_until(lambda: get(f"{monitor.url}healthz")[0] == 200, "its return")


def test_command_serves_until_it_is_told_to_end(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    arguments = ["monitor", parse_target(service.target), "--ready-json"]
    child = spawn_module("dataservice", arguments, log_path=tmp_path / "monitor.log")
    try:
        url = child.wait_ready(READY_S)["address"]
        assert "1 worker, 1 job, 1 dataset" in get(url)[1]
        child.request_stop()
        assert child.wait(READY_S) == 0
    finally:
        child.kill()


def test_port_in_use_is_refused_and_a_stopped_monitor_frees_it(service: LocalService) -> None:
    first = ds.MonitorServer(service.target)
    port = int(first.address.split(":")[1])
    with pytest.raises(AddressInUseError, match=f"port {port}"):
        ds.MonitorServer(service.target, port=port)
    first.stop()
    first.stop()
    with ds.MonitorServer(service.target, port=port) as second:
        assert get(f"{second.url}healthz")[0] == 200


def test_monitor_that_is_not_stopped_ends_with_its_program(service: LocalService) -> None:
    program = (
        "import sys; import dataservice as ds\n"
        "class Monitor(ds.MonitorServer):\n"
        "    def stop(self): super().stop(); print('stopped', flush=True)\n"
        "kept = Monitor(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", program, service.target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=True)
    assert (ended.stdout, ended.stderr) == ("stopped\n", "")


def test_monitor_speaks_tls(service: LocalService, tmp_path: pathlib.Path) -> None:
    tls = new_certificate(tmp_path)
    settings = {"tls_cert_path": tls.cert_path, "tls_key_path": tls.key_path}
    with ds.MonitorServer(service.target, **settings) as monitor:
        assert monitor.url.startswith("https://")
        assert get(f"{monitor.url}healthz", tls=tls.client_context()) == (200, "ok\n")
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
            get(monitor.url.replace("https", "http"))
        assert get(f"{monitor.url}healthz", tls=tls.client_context()) == (200, "ok\n")


def test_training_cluster_is_shown_with_closures_trainers_and_lost_servers(
    breakable: ps.LocalCluster,
) -> None:
    strategy = ps.ParameterServerStrategy(breakable.resolver)
    with ps.MonitorServer(strategy) as monitor:
        assert "no coordinator yet" in get(monitor.url)[1]
        with strategy.scope():
            count = ps.Variable(0, name="count")
        coordinator = ps.ClusterCoordinator(strategy)
        for _ in range(5):
            coordinator.schedule(lambda: count.assign_add(1))
        coordinator.join()
        finished = ("pstrain_closures_finished_total",)
        wait_until(lambda: figures(monitor.url).get(finished) == 5.0, "the ends of closures")
        told = figures(monitor.url)
        assert told["pstrain_trainers",] == 2.0
        assert told["pstrain_ps_up", "0"] == told["pstrain_ps_shards", "0"] == 1.0
        assert "5 finished" in get(monitor.url)[1]
        assert json.loads(get(f"{monitor.url}status.json")[1])["closures"]["finished"] == 5
        breakable.kill("ps")
        wait_until(lambda: figures(monitor.url)["pstrain_ps_up", "0"] == 0.0, "a lost server")
        assert "parameter server 0" in get(monitor.url)[1]
        coordinator.close()


def test_stop_waits_for_no_dispatcher_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        monitor = ds.MonitorServer(f"127.0.0.1:{frozen.getsockname()[1]}")
        host, port = monitor.address.split(":")
        with socket.create_connection((host, int(port)), timeout=READY_S) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            wait_until(lambda: "process_request" in threads(), "a request under way")
            monitor.stop()
        wait_until(lambda: "process_request" not in threads(), "the end of the request")


def test_monitor_names_a_file_of_certificates_that_is_missing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataServiceError, match=r"missing\.pem"):
        ds.MonitorServer("127.0.0.1:1", tls_ca_path=str(tmp_path / "missing.pem"))


def test_monitor_of_training_asks_for_the_token_of_the_cluster(
    breakable: ps.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = ps.ParameterServerStrategy(breakable.resolver)
    monkeypatch.setattr(breakable.resolver, "token", "of-the-cluster", raising=False)
    with ps.MonitorServer(strategy) as monitor:
        assert get(f"{monitor.url}status.json")[0] == 401
        assert get(f"{monitor.url}status.json", token="of-the-cluster")[0] == 200


def test_monitor_of_training_needs_a_strategy() -> None:
    with pytest.raises(InvalidTypeError, match="ParameterServerStrategy, got str"):
        ps.MonitorServer("localhost:1")  # type: ignore[arg-type]

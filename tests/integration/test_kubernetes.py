"""The Kubernetes resolver against an HTTP server with the API's form."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

import pstrain as ps


class Api:
    """A server of the list of pods as the Kubernetes API gives it, in pages of two."""

    def __init__(self) -> None:
        self.pods: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.instead: object = None
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query))
                api.asked.append(url.path)
                if self.headers["Authorization"] != "Bearer secret":
                    self.send_error(403, "Forbidden")
                    return
                start = int(query.get("continue", 0))
                pods = api.pods.get(query["labelSelector"], [])
                more = {"continue": str(start + 2)} if start + 2 < len(pods) else {}
                page = {"kind": "PodList", "metadata": more, "items": pods[start : start + 2]}
                body = json.dumps(api.instead or page).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, selector: str, name: str, ip: str | None, phase: str = "Running") -> None:
        self.pods.setdefault(selector, []).append(
            {"metadata": {"name": name}, "status": {"phase": phase, "podIP": ip}}
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


def test_running_pods_become_the_cluster_spec(
    api: Api, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "w-2")
    (tmp_path / "namespace").write_text("ml\n")
    (tmp_path / "token").write_text("secret\n")
    for number in (10, 2, 1):
        api.add("role=worker", f"w-{number}", f"10.0.0.{number}")
    api.add("role=ps", "p-0", "fd00::1")
    resolver = ps.KubernetesClusterResolver(
        {"worker": ["role=worker"], "ps": ["role=ps"]},
        api_server=api.url,
        service_account=str(tmp_path),
    )
    assert resolver.cluster_spec().as_dict() == {
        "worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.10:8470"],
        "ps": ["[fd00::1]:8470"],
    }
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "grpc://10.0.0.2:8470"
    assert set(api.asked) == {"/api/v1/namespaces/ml/pods"}
    api.add("role=ps", "p-1", None, "Pending")
    with pytest.raises(RuntimeError, match=r"'p-1'.*Pending"):
        resolver.cluster_spec()


def test_refused_or_unconfigured_api_is_an_error(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="403"):
        ps.KubernetesClusterResolver(
            api_server=api.url, token="wrong", task_type="ps", task_id=0
        ).cluster_spec()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(RuntimeError, match="from_stateful_sets"):
        ps.KubernetesClusterResolver(task_type="ps", task_id=0).cluster_spec()


@pytest.mark.parametrize("reply", [[1, 2], {"kind": "Status", "status": "Failure"}])
def test_reply_without_list_of_pods_is_an_error(api: Api, reply: object) -> None:
    api.instead = reply
    resolver = ps.KubernetesClusterResolver(
        api_server=api.url, token="secret", task_type="ps", task_id=0
    )
    with pytest.raises(ConnectionError, match="a list of pods was asked for"):
        resolver.cluster_spec()
    api.instead = {"kind": "PodList", "items": None}
    assert resolver.cluster_spec().as_dict() == {"worker": []}

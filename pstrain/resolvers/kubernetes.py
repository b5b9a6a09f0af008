"""Resolves the cluster of a Kubernetes deployment, by names of stateful sets or from the API.

Needs no Kubernetes package. Names (:meth:`KubernetesClusterResolver.from_stateful_sets`) need no
request, so they are valid before any pod runs and after pods have moved. The API is asked over
HTTPS, with what every pod has: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, and the files
``token``, ``ca.crt`` and ``namespace`` of its service account, which must be allowed to list pods.
The name of this process's own pod is in POD_NAME, which the downward API sets from
``metadata.name``, else in HOSTNAME. Invariant: pods are numbered in the natural order of their
names.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from dataservice.runtime.addresses import LAST_PORT
from pstrain.cluster import ClusterResolver, ClusterSpec, SimpleClusterResolver
from pstrain.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    UnavailableError,
)

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TIMEOUT_S = 10.0


class _Pod(NamedTuple):
    name: str
    phase: str
    address: str | None


class KubernetesClusterResolver(ClusterResolver):
    """A resolver that asks the API for the running pods that the labels of each job select.

    ``job_to_label_mapping``: ``{"worker": ["app=train,role=worker"], "ps": [...]}``.
    ``cluster_spec`` asks the API each time; a selected pod that is not Running raises
    FailedPreconditionError (a RuntimeError). This process's own task is found by its pod's name
    unless ``task_type`` or ``task_id`` is given. ``api_server``, ``namespace``, ``token`` and
    ``service_account`` (a folder) replace what the pod has; ``override_client`` may be a
    ``kubernetes.client.CoreV1Api``.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        *,
        task_type: str | None = None,
        task_id: int | None = None,
        api_server: str | None = None,
        namespace: str | None = None,
        token: str | None = None,
        service_account: str = SERVICE_ACCOUNT,
    ) -> None:
        self._labels = _selectors(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        if not isinstance(tf_server_port, int) or not 0 < tf_server_port <= LAST_PORT:
            raise InvalidArgumentError(f"tf_server_port is not a port: {tf_server_port!r}")
        self._port = tf_server_port
        self._client = override_client
        self._api_server = api_server
        self._namespace = namespace
        self._api_token = token
        self._account = service_account
        super().__init__(ClusterSpec({}), task_type, task_id, rpc_layer)
        self.environment = ""
        if task_type is None and task_id is None:
            self.task_type, self.task_id = self._own_task()

    @classmethod
    def from_stateful_sets(
        cls,
        jobs: Mapping[str, int | tuple[str, int]],
        *,
        service: str,
        namespace: str | None = None,
        port: int = 8470,
        cluster_domain: str = "cluster.local",
    ) -> SimpleClusterResolver:
        """Returns the cluster of stateful sets behind headless ``service``, by DNS names alone.

        ``jobs``: the replicas of each job, or the name of its stateful set and the replicas:
        ``{"worker": 4, "ps": ("train-ps", 2)}``; without a name the set is called as the job.
        ``namespace`` None: the pod's own (POD_NAMESPACE, else the service account's).
        """
        space = (
            namespace
            or os.environ.get("POD_NAMESPACE")
            or _account_file("namespace", SERVICE_ACCOUNT)
        )
        if not space:
            raise FailedPreconditionError(
                "which namespace? pass namespace=, or set POD_NAMESPACE by the downward API"
            )
        sets = {job: _stateful_set(job, replicas) for job, replicas in jobs.items()}
        host = f"{service}.{space}.svc.{cluster_domain}:{port}"
        spec = {j: [f"{name}-{i}.{host}" for i in range(n)] for j, (name, n) in sets.items()}
        own = _pod_name()
        for job, (name, replicas) in sets.items():
            for index in range(replicas):
                if own == f"{name}-{index}":
                    return SimpleClusterResolver(ClusterSpec(spec), task_type=job, task_id=index)
        return SimpleClusterResolver(ClusterSpec(spec))

    def cluster_spec(self) -> ClusterSpec:
        """Returns the selected pods' addresses; FailedPreconditionError unless all of them run."""
        spec = {}
        for job, selectors in self._labels.items():
            pods = [pod for selector in selectors for pod in self._pods(selector)]
            for pod in pods:
                if pod.phase != "Running" or not pod.address:
                    raise FailedPreconditionError(
                        f"pod {pod.name!r} of job {job!r} is not running, or has no address yet; "
                        f"its phase is {pod.phase}"
                    )
            spec[job] = [f"{_bracketed(str(pod.address))}:{self._port}" for pod in pods]
        return ClusterSpec(spec)

    def _own_task(self) -> tuple[str | None, int | None]:
        own = _pod_name()
        if own:
            for job, selectors in self._labels.items():
                pods = [pod.name for selector in selectors for pod in self._pods(selector)]
                if own in pods:
                    return job, pods.index(own)
        return None, None

    def _pods(self, selector: str) -> list[_Pod]:
        if self._client is None:
            pods = [_from_json(item) for item in self._list_pods(selector)]
        elif self._namespace:
            found = self._client.list_namespaced_pod(self._namespace, label_selector=selector)
            pods = [_from_client(item) for item in found.items]
        else:
            found = self._client.list_pod_for_all_namespaces(label_selector=selector)
            pods = [_from_client(item) for item in found.items]
        return sorted(pods, key=lambda pod: _natural(pod.name))

    def _list_pods(self, selector: str) -> list[dict[str, Any]]:
        """Returns all selected pods, which the API delivers page by page."""
        items: list[dict[str, Any]] = []
        token = ""
        while True:
            query = {"labelSelector": selector, **({"continue": token} if token else {})}
            page = self._get(urllib.parse.urlencode(query))
            items += page["items"] or []
            token = (page.get("metadata") or {}).get("continue", "")
            if not token:
                return items

    def _get(self, query: str) -> dict[str, Any]:
        server = self._api_server or _api_server()
        space = self._namespace or _account_file("namespace", self._account) or "default"
        url = f"{server}/api/v1/namespaces/{urllib.parse.quote(space)}/pods?{query}"
        if not url.startswith(("https://", "http://")):
            raise InvalidArgumentError(f"api_server is an http(s) URL, got {server!r}")
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        token = self._api_token or _account_file("token", self._account)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._tls()) as reply:
                return _pod_list(json.load(reply))
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(url, error) from error
        except (OSError, ValueError) as error:
            raise UnavailableError(
                f"the Kubernetes API at {server} gave no answer: {error}"
            ) from error

    def _tls(self) -> ssl.SSLContext:
        authority = os.path.join(self._account, "ca.crt")
        if not os.path.exists(authority):
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=authority)
        except ssl.SSLError as error:
            raise InvalidArgumentError(f"{authority} holds no certificate: {error}") from error


def _stateful_set(job: str, replicas: Any) -> tuple[str, int]:
    """Returns the name of a job's stateful set and the number of its pods."""
    name, count = replicas if isinstance(replicas, tuple) else (job, replicas)
    if not isinstance(count, int) or count < 0:
        raise InvalidArgumentError(
            f"the stateful set of job {job!r} is its number of replicas, or (name, replicas); got "
            f"{replicas!r}"
        )
    return name, count


def _selectors(mapping: Any) -> dict[str, Sequence[str]]:
    """Returns the selectors of each job; InvalidTypeError unless each job has a list of them.

    A plain string would be taken for a sequence of one-letter selectors.
    """
    if isinstance(mapping, Mapping):
        wrong = [job for job, labels in mapping.items() if not isinstance(labels, list | tuple)]
        if not wrong:
            return dict(mapping)
    raise InvalidTypeError(
        'job_to_label_mapping is a dict such as {"worker": ["app=train,role=worker"]}, got '
        f"{mapping!r}"
    )


def _pod_list(reply: Any) -> dict[str, Any]:
    """Returns ``reply`` if it is a page of pods, a PodList of the API; else raises ValueError."""
    if not isinstance(reply, dict) or "items" not in reply:
        raise ValueError(f"a list of pods was asked for, got {json.dumps(reply)[:200]}")
    return reply


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    text = f"the Kubernetes API refused {url}: {error.code} {error.reason}"
    if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return UnavailableError(text)
    return FailedPreconditionError(f"{text}; may this pod's service account list pods?")


def _api_server() -> str:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise FailedPreconditionError(
            "KUBERNETES_SERVICE_HOST is not set: this process runs in no pod; pass api_server=, or "
            "use KubernetesClusterResolver.from_stateful_sets, which asks no API"
        )
    return f"https://{_bracketed(host)}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"


def _account_file(name: str, folder: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as stream:
            return stream.read().strip()
    except FileNotFoundError:
        return ""


def _pod_name() -> str:
    return os.environ.get("POD_NAME") or os.environ.get("HOSTNAME", "")


def _from_json(item: Mapping[str, Any]) -> _Pod:
    status = item.get("status", {})
    return _Pod(item["metadata"]["name"], status.get("phase", "Unknown"), status.get("podIP"))


def _from_client(item: Any) -> _Pod:
    addresses = [getattr(item.status, name, None) for name in ("pod_ip", "host_ip")]
    address = next((value for value in addresses if isinstance(value, str)), None)
    return _Pod(item.metadata.name, item.status.phase, address)


def _natural(name: str) -> list[Any]:
    """Returns a sort key by which ``ps-10`` comes after ``ps-2``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host

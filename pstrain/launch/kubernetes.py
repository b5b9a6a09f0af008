"""``pstrain launch --engine k8s``: a JobSet manifest, and the Secret with the cluster's token.

Pure. Each job of the cluster is a replicated job of the JobSet, with one pod per task; the pods'
DNS names are known before any pod runs. The JobSet ends with the chief. Invariant: addresses are
those that ``KubernetesClusterResolver.from_stateful_sets`` gives for the same names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pstrain.errors import InvalidArgumentError
from pstrain.launch.layout import PROGRAM_JOBS, Exposure, Layout
from pstrain.resolvers.kubernetes import KubernetesClusterResolver
from pstrain.security import check_one_way

_INDEX: Final = "PSTRAIN_TASK_INDEX"
_INDEX_FIELD: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_TLS_FOLDER: Final = "/etc/pstrain/tls"
# How often the pods of one job may fail; each restarts under its name while the others go on.
_RESTARTS: Final = 100
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MAX_LABEL: Final = 63
# A pod is called NAME-data-worker-0-INDEX, and a DNS label has at most 63 characters.
_MAX_NAME: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """The settings of the pods. ``resources``: amounts by name, such as cpu.

    The amounts are both requests and limits. ``token_secret`` and ``tls_secret`` name existing
    Secrets; without ``token_secret`` the manifest contains a new one.
    """

    image: str
    name: str = "pstrain"
    namespace: str = "default"
    port: int = 8470
    resources: Mapping[str, str] | None = None
    token_secret: str | None = None
    tls_secret: str | None = None
    python: str = "python3"

    def __post_init__(self) -> None:
        if not self.image:
            raise InvalidArgumentError("which image? give --image NAME:TAG")
        # The name is a service's too, which begins with a letter.
        if not (_is_label(self.name, _MAX_NAME) and self.name[0].isalpha()):
            raise InvalidArgumentError(
                f"--name must be at most {_MAX_NAME} small letters, digits and dashes, beginning "
                f"with a letter, got {self.name!r}"
            )
        if not _is_label(self.namespace, _MAX_LABEL):
            raise InvalidArgumentError(
                f"--namespace must be at most {_MAX_LABEL} small letters, digits and dashes, got "
                f"{self.namespace!r}"
            )


def _is_label(text: str, longest: int) -> bool:
    return len(text) <= longest and _LABEL.fullmatch(text) is not None


def exposure_of_pods(exposure: Exposure, tls_secret: str | None) -> Exposure:
    """Returns ``exposure``, or one with a Secret's certificates (tls.crt, tls.key, ca.crt)."""
    if tls_secret is None:
        return exposure
    check_one_way(exposure.insecure_network, {"--tls-secret": tls_secret})
    return Exposure(
        tls_cert=f"{_TLS_FOLDER}/tls.crt",
        tls_key=f"{_TLS_FOLDER}/tls.key",
        tls_ca=f"{_TLS_FOLDER}/ca.crt",
    )


def manifest(layout: Layout, options: KubernetesOptions, token: str) -> str:
    """Returns YAML for ``kubectl apply -f``; InvalidArgumentError if tasks may not be exposed."""
    layout.exposure.require("k8s")
    documents = [_job_set(layout, options)]
    if options.token_secret is None:
        documents.insert(0, _token_secret(options, token))
    return "".join("---\n" + "\n".join(_yaml(document, 0)) + "\n" for document in documents)


def addresses(layout: Layout, options: KubernetesOptions) -> dict[str, list[str]]:
    """Returns the addresses of all tasks by job, made of the pods' DNS names."""
    sets = {job: (_set_name(options, job), count) for job, count in layout.jobs.items()}
    resolver = KubernetesClusterResolver.from_stateful_sets(
        sets, service=options.name, namespace=options.namespace, port=options.port
    )
    spec = resolver.cluster_spec()
    return {job: [spec.task_address(job, i) for i in spec.task_indices(job)] for job in spec.jobs}


def _part(job: str) -> str:
    return job.replace("_", "-")


def _set_name(options: KubernetesOptions, job: str) -> str:
    """Returns the prefix of the names of a job's pods; 0 is its only replica in the JobSet."""
    return f"{options.name}-{_part(job)}-0"


def _metadata(options: KubernetesOptions, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": options.namespace}


def _secret_name(options: KubernetesOptions) -> str:
    return options.token_secret or f"{options.name}-token"


def _token_secret(options: KubernetesOptions, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(options, _secret_name(options)),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def _job_set(layout: Layout, options: KubernetesOptions) -> dict[str, Any]:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(options, options.name),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": options.name},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["chief"]},
            # Pods restart one by one; restarting the JobSet would lose what the servers hold.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [_replicated(layout, options, job) for job in layout.jobs],
        },
    }


def _replicated(layout: Layout, options: KubernetesOptions, job: str) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never" if job == "chief" else "OnFailure",
        "containers": [_container(layout, options, job)],
    }
    if options.tls_secret:
        pod["volumes"] = [{"name": "tls", "secret": {"secretName": options.tls_secret}}]
    return {
        "name": _part(job),
        "replicas": 1,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "completions": layout.jobs[job],
                "parallelism": layout.jobs[job],
                "backoffLimit": 0 if job == "chief" else _RESTARTS,
                "template": {"spec": pod},
            }
        },
    }


def _container(layout: Layout, options: KubernetesOptions, job: str) -> dict[str, Any]:
    all_addresses = addresses(layout, options)
    variables = layout.environment(job, f"$({_INDEX})", all_addresses)
    secret = {"name": _secret_name(options), "key": "token"}
    container: dict[str, Any] = {
        "name": _part(job),
        "image": options.image,
        "command": _command(layout, options, job, all_addresses),
        "ports": [{"containerPort": options.port}],
        "env": [
            {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "DATASERVICE_TOKEN", "valueFrom": {"secretKeyRef": secret}},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            *({"name": name, "value": value} for name, value in variables.items()),
        ],
    }
    if options.resources:
        amounts = dict(options.resources)
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    if options.tls_secret:
        container["volumeMounts"] = [{"name": "tls", "mountPath": _TLS_FOLDER, "readOnly": True}]
    return container


def _command(
    layout: Layout, options: KubernetesOptions, job: str, all_addresses: Mapping[str, list[str]]
) -> list[str]:
    if job in PROGRAM_JOBS:
        # Kubernetes expands $(NAME) as a variable and reads every $$ as a single $.
        command = layout.command(job, 0, all_addresses, options.python)
        return [part.replace("$", "$$") for part in command]
    # When a server starts, DNS may not know its pod's name yet, so it listens at the pod's IP.
    addresses_here = {**all_addresses, job: [f"$(POD_IP):{options.port}"]}
    return layout.command(job, 0, addresses_here, options.python)


def _yaml(value: Any, indent: int) -> Iterator[str]:
    """Yields lines in block style; scalars are JSON, which YAML reads as the same values."""
    margin = "  " * indent
    items: Any = value.items() if isinstance(value, Mapping) else ((None, each) for each in value)
    for name, each in items:
        mark = "-" if name is None else f"{_key(name)}:"
        if isinstance(each, Mapping | list) and each:
            yield margin + mark
            yield from _yaml(each, indent + 1)
        else:
            yield f"{margin}{mark} {json.dumps(each)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name) else json.dumps(name)

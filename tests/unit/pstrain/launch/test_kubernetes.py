"""The JobSet manifest: valid YAML, names that the pods have, a token that only a Secret holds."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.launch.kubernetes import KubernetesOptions, addresses, exposure_of_pods, manifest
from pstrain.launch.layout import Exposure, Layout
from pstrain.resolvers.kubernetes import KubernetesClusterResolver

yaml = pytest.importorskip("yaml", reason="pip install 'pstrain[test]'")

OPEN = Exposure(insecure_network=True)
ARGUMENTS = ("t.py", "$(PWD)", "a$$b", "$$(PWD)", "5 $", "$x", 'a "b": {c} # d', "yes", "é")
LAYOUT = Layout(program=ARGUMENTS, workers=3, ps=2, data_workers=1, exposure=OPEN)
OPTIONS = KubernetesOptions(image="repo/me:1", name="clicks", namespace="ml")
TOKEN = "the-token"


def documents(layout: Layout = LAYOUT, options: KubernetesOptions = OPTIONS) -> list[Any]:
    return list(yaml.safe_load_all(manifest(layout, options, TOKEN)))


def parts(job_set: dict[str, Any]) -> dict[str, Any]:
    return {part["name"]: part["template"]["spec"] for part in job_set["spec"]["replicatedJobs"]}


def container(part: dict[str, Any]) -> dict[str, Any]:
    (only,) = part["template"]["spec"]["containers"]
    return dict(only)


def expanded(text: str) -> str:
    """Expands an argument as Kubernetes does: $$ to $, $(NAME) to the value, here ``<NAME>``."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda m: "$" if m[1] == "$" else f"<{m[2]}>", text)


def test_job_set_has_job_per_part_and_succeeds_with_chief() -> None:
    secret, job_set = documents()
    assert (secret["kind"], secret["stringData"]) == ("Secret", {"token": TOKEN})
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job_set["metadata"] == {"name": "clicks", "namespace": "ml"}
    assert job_set["spec"]["successPolicy"]["targetReplicatedJobs"] == ["chief"]
    assert job_set["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": "clicks"}
    found = parts(job_set)
    assert {name: part["completions"] for name, part in found.items()} == {
        "chief": 1, "ps": 2, "worker": 3, "dispatcher": 1, "data-worker": 1
    }  # fmt: skip
    assert found["chief"]["backoffLimit"] == 0
    # One pod that restarts does not reset the others.
    assert found["ps"]["backoffLimit"] > 0
    assert found["ps"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_tf_config_names_pods_like_kubernetes_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job_set = documents()
    worker = container(parts(job_set)["worker"])
    told = {entry["name"]: entry for entry in worker["env"]}
    config = json.loads(told["TF_CONFIG"]["value"])
    assert config["task"] == {"type": "worker", "index": "$(PSTRAIN_TASK_INDEX)"}
    # Kubernetes expands only variables that are defined before the entry that names them.
    names = [entry["name"] for entry in worker["env"]]
    assert names.index("PSTRAIN_TASK_INDEX") < names.index("TF_CONFIG")
    assert config["cluster"]["ps"][1] == "clicks-ps-0-1.clicks.ml.svc.cluster.local:8470"
    monkeypatch.setenv("POD_NAME", "clicks-worker-0-2")
    resolver = KubernetesClusterResolver.from_stateful_sets(
        {"ps": ("clicks-ps-0", 2), "worker": ("clicks-worker-0", 3)},
        service="clicks",
        namespace="ml",
    )
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.cluster_spec().as_dict() == {
        job: config["cluster"][job] for job in ("ps", "worker")
    }
    dispatcher = addresses(LAYOUT, OPTIONS)["dispatcher"][0]
    assert told["DATASERVICE_DISPATCHER"]["value"] == f"grpc://{dispatcher}"


def test_program_arguments_survive_kubernetes_expansion() -> None:
    _, job_set = documents()
    command = container(parts(job_set)["chief"])["command"]
    assert [expanded(part) for part in command] == ["python3", *ARGUMENTS]
    served = container(parts(job_set)["data-worker"])["command"]
    assert served[:4] == ["python3", "-m", "dataservice", "worker"]
    assert served[served.index("--host") + 1] == "$(POD_IP)"
    assert served[-1] == "--insecure-network"


def test_token_appears_only_in_secret() -> None:
    text = manifest(LAYOUT, OPTIONS, TOKEN)
    assert text.count(TOKEN) == 1
    own = KubernetesOptions(image="i", token_secret="mine")
    (job_set,) = documents(options=own)
    told = {entry["name"]: entry for entry in container(parts(job_set)["ps"])["env"]}
    secret = told["DATASERVICE_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "mine", "key": "token"}


def test_resources_and_tls_secret_are_set_on_containers() -> None:
    options = KubernetesOptions(image="i", resources={"cpu": "2"}, tls_secret="certificates")
    exposure = exposure_of_pods(Exposure(), options.tls_secret)
    layout = Layout(program=("t.py",), exposure=exposure)
    part = parts(documents(layout, options)[1])["ps"]
    assert container(part)["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    (mount,) = container(part)["volumeMounts"]
    (volume,) = part["template"]["spec"]["volumes"]
    assert volume == {"name": mount["name"], "secret": {"secretName": "certificates"}}
    told = {entry["name"]: entry.get("value") for entry in container(part)["env"]}
    assert told["PSTRAIN_TLS_CERT"] == f"{mount['mountPath']}/tls.crt"
    assert exposure_of_pods(OPEN, None) is OPEN


def test_namespaces_may_be_longer_than_names_and_begin_with_a_digit() -> None:
    namespace = "2024-" + "x" * 58
    options = KubernetesOptions(image="i", namespace=namespace)
    assert f".{namespace}.svc" in addresses(Layout(program=("t.py",)), options)["ps"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": ""}, "--image"),
        ({"image": "i", "name": "Clicks"}, "--name must be .*'Clicks'"),
        ({"image": "i", "namespace": "a_b"}, "--namespace must be .*'a_b'"),
        ({"image": "i", "name": "1clicks"}, "beginning with a letter"),
        ({"image": "i", "name": "x" * 41}, "at most 40"),
        ({"image": "i", "namespace": "x" * 64}, "at most 63"),
    ],
)
def test_invalid_kubernetes_options_are_refused_by_name(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        KubernetesOptions(**options)
    with pytest.raises(InvalidArgumentError, match="--insecure-network"):
        manifest(Layout(program=("t.py",)), OPTIONS, TOKEN)
    with pytest.raises(InvalidArgumentError, match=r"--insecure-network .*--tls-secret mine"):
        exposure_of_pods(OPEN, "mine")

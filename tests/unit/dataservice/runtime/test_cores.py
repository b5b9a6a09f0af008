"""Quotas of CPU time are found in the control groups' files as containers see them."""

from __future__ import annotations

import pytest

from dataservice.runtime.machine import cores
from dataservice.runtime.machine.control_groups import groups
from dataservice.runtime.machine.cores import available_cores, limit_libraries, quota_cores

V2 = "35 24 0:30 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 {root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
)
V1_MEMBER = "4:cpuset:{path}\n3:memory:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:/\n0::/\n"


def quota_v2(path: str, files: dict[str, str], root: str = "/") -> int | None:
    return quota_cores(groups("cpu", f"0::{path}\n", V2.format(root=root)), files.get)


def quota_v1(path: str, files: dict[str, str], root: str = "/") -> int | None:
    return quota_cores(groups("cpu", V1_MEMBER.format(path=path), V1.format(root=root)), files.get)


def test_quota_of_container_is_read_from_root_group() -> None:
    assert quota_v2("/", {"/sys/fs/cgroup/cpu.max": "200000 100000\n"}) == 2


def test_smallest_quota_among_ancestor_groups_applies() -> None:
    files = {
        "/sys/fs/cgroup/pods/pod7/app/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/pods/pod7/cpu.max": "300000 100000\n",
        "/sys/fs/cgroup/pods/cpu.max": "1600000 100000\n",
    }
    assert quota_v2("/pods/pod7/app", files) == 3
    files["/sys/fs/cgroup/pods/cpu.max"] = "50000 50000\n"
    assert quota_v2("/pods/pod7/app", files) == 1


@pytest.mark.parametrize(
    ("quota", "whole"),
    [("150000 100000", 2), ("10000 100000", 1), ("200000", 2), ("800000 200000", 4)],
)
def test_fractional_quota_is_rounded_up_to_whole_cores(quota: str, whole: int) -> None:
    assert quota_v2("/", {"/sys/fs/cgroup/cpu.max": quota}) == whole


@pytest.mark.parametrize("text", ["max 100000", "", "-1 100000", "many 100000", "200000 0"])
def test_missing_or_invalid_quota_file_means_no_quota(text: str) -> None:
    assert quota_v2("/", {"/sys/fs/cgroup/cpu.max": text}) is None
    assert quota_v2("/", {}) is None
    assert quota_cores(groups("cpu", "", ""), {}.get) is None
    assert quota_cores(groups("cpu", "not a line\n0::/\n", "neither - \n35 24\n"), {}.get) is None


def test_quota_in_mounted_subtree_is_found_without_cgroup_namespace() -> None:
    """Without a namespace, Docker shows the whole path but mounts only the container's part."""
    group = {"/sys/fs/cgroup/cpu.max": "200000 100000"}
    assert quota_v2("/docker/1f", group, root="/docker/1f") == 2
    inner = {"/sys/fs/cgroup/job/cpu.max": "100000 100000", **group}
    assert quota_v2("/docker/1f/job", inner, root="/docker/1f") == 1


def test_group_path_outside_mounted_subtree_is_read_as_its_root() -> None:
    group = {"/sys/fs/cgroup/cpu.max": "200000 100000"}
    assert quota_v2("/../../elsewhere", group) == 2
    assert quota_v2("/user.slice", group, root="/docker/1f") == 2


def test_cgroup_v1_quota_is_read_from_quota_and_period_files() -> None:
    folder = "/sys/fs/cgroup/cpu,cpuacct/docker/1f"
    files = {f"{folder}/cpu.cfs_quota_us": "250000\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert quota_v1("/docker/1f", files) == 3
    files[f"{folder}/cpu.cfs_quota_us"] = "-1\n"
    assert quota_v1("/docker/1f", files) is None
    above = folder.removesuffix("/1f")
    files |= {f"{above}/cpu.cfs_quota_us": "100000", f"{above}/cpu.cfs_period_us": "50000"}
    assert quota_v1("/docker/1f", files) == 2


def test_quota_lookup_reads_only_files_of_cpu_controller() -> None:
    asked: list[str] = []
    quota_cores(groups("cpu", V1_MEMBER.format(path="/a"), V1.format(root="/")), asked.append)  # type: ignore
    assert {path.rpartition("/")[0] for path in asked} == {
        "/sys/fs/cgroup/cpu,cpuacct/a",
        "/sys/fs/cgroup/cpu,cpuacct",
    }


def test_quota_limits_available_cores_and_threads_of_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "_runnable", lambda: 64)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it
        monkeypatch.delenv(name)
    monkeypatch.setattr(cores, "_quota", lambda: None)
    limit_libraries()
    assert available_cores() == 64
    assert "OMP_NUM_THREADS" not in cores.os.environ
    monkeypatch.setattr(cores, "_quota", lambda: 2)
    limit_libraries()
    assert available_cores() == 2
    assert cores.os.environ["OMP_NUM_THREADS"] == cores.os.environ["NUMBA_NUM_THREADS"] == "2"
    assert cores.os.environ["OPENBLAS_NUM_THREADS"] == "7"
    monkeypatch.setattr(cores, "_quota", lambda: 128)
    assert available_cores() == 64


def test_omp_num_threads_of_user_is_not_overridden_for_blas_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "_runnable", lambda: 64)
    monkeypatch.setattr(cores, "_quota", lambda: 2)
    monkeypatch.setattr(cores.os, "environ", environment := {"OMP_NUM_THREADS": "1"})
    limit_libraries()
    assert environment == {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2"}

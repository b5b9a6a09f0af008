"""Limits of memory are found in the files of control groups; a cache must fit into them."""

from __future__ import annotations

import pytest

import dataservice as ds
from dataservice.runtime.machine.control_groups import Group
from dataservice.runtime.machine.memory import available_memory_bytes, memory_limit_bytes

V2 = [Group("/sys/fs/cgroup/pod/app", True), Group("/sys/fs/cgroup/pod", True)]
V1 = [Group("/sys/fs/cgroup/memory", False)]


def test_smallest_limit_among_ancestor_groups_applies() -> None:
    files = {
        "/sys/fs/cgroup/pod/app/memory.max": "max\n",
        "/sys/fs/cgroup/pod/memory.max": "2048\n",
    }
    assert memory_limit_bytes(V2, files.get) == 2048
    files[f"{V2[0].folder}/memory.max"] = "1024\n"
    assert memory_limit_bytes(V2, files.get) == 1024


def test_cgroup_v1_limit_is_read_from_limit_in_bytes_file() -> None:
    files = {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"}
    assert memory_limit_bytes(V1, files.get) == 4096


@pytest.mark.parametrize("text", ["max", "", "0", "-1", "lots"])
def test_missing_or_invalid_limit_file_means_no_limit(text: str) -> None:
    assert memory_limit_bytes(V2, {"/sys/fs/cgroup/pod/memory.max": text}.get) is None
    assert memory_limit_bytes([], {}.get) is None


def test_default_cache_is_quarter_of_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_memory_bytes() > 0
    monkeypatch.setattr("dataservice.config.available_memory_bytes", lambda: 2 << 30)
    assert ds.WorkerConfig("127.0.0.1:5050").cache_bytes == 512 << 20

"""Limits of memory are found in the files of control groups; a cache must fit into them."""

from __future__ import annotations

import pytest

import dataservice as ds
from dataservice.runtime.control_groups import Group
from dataservice.runtime.memory import available_memory_bytes, memory_limit_bytes

V2 = [Group("/sys/fs/cgroup/pod/app", True), Group("/sys/fs/cgroup/pod", True)]
V1 = [Group("/sys/fs/cgroup/memory", False)]


def test_the_smallest_limit_up_the_tree_counts() -> None:
    files = {
        "/sys/fs/cgroup/pod/app/memory.max": "max\n",
        "/sys/fs/cgroup/pod/memory.max": "2048\n",
    }
    assert memory_limit_bytes(V2, files.get) == 2048
    files[f"{V2[0].folder}/memory.max"] = "1024\n"
    assert memory_limit_bytes(V2, files.get) == 1024


def test_the_first_version_has_another_file() -> None:
    files = {"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096\n"}
    assert memory_limit_bytes(V1, files.get) == 4096


@pytest.mark.parametrize("text", ["max", "", "0", "-1", "lots"])
def test_what_says_nothing_is_no_limit(text: str) -> None:
    assert memory_limit_bytes(V2, {"/sys/fs/cgroup/pod/memory.max": text}.get) is None
    assert memory_limit_bytes([], {}.get) is None


def test_a_cache_is_a_quarter_of_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_memory_bytes() > 0
    monkeypatch.setattr("dataservice.config.available_memory_bytes", lambda: 2 << 30)
    assert ds.WorkerConfig("127.0.0.1:5050").cache_bytes == 512 << 20

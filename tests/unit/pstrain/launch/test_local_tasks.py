"""The tasks of a LocalCluster, by role and index."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pstrain as ps


@pytest.mark.parametrize(
    ("role", "index", "named"),
    [("trainer", 0, "trainer:0"), ("worker", 2, "worker:2"), ("worker", "0", "worker:'0'")],
)
@pytest.mark.parametrize("action", ["kill", "restart", "suspend", "resume"])
def test_unknown_task_is_refused_naming_those_that_there_are(
    action: str, role: str, index: Any, named: str
) -> None:
    cluster: Any = object.__new__(ps.LocalCluster)
    cluster._changing, cluster._closing = threading.Lock(), threading.Event()
    cluster._tasks = {("ps", 0): None, ("worker", 0): None}
    with pytest.raises(KeyError, match=f"no {named} in this cluster; it has ps:0, worker:0"):
        getattr(cluster, action)(role, index)

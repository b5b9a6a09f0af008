"""A training cluster whose processes tests may kill: one for a module, whole for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pstrain as ps


@pytest.fixture(scope="module")
def _fragile() -> Iterator[ps.LocalCluster]:
    with ps.LocalCluster(workers=2, ps=1, data_workers=0) as cluster:
        yield cluster


@pytest.fixture
def breakable(_fragile: ps.LocalCluster) -> ps.LocalCluster:
    """Returns a cluster that tests may harm; starts again what an earlier test has killed."""
    for task in _fragile.status():
        if not task["alive"]:
            _fragile.restart(task["role"], task["index"])
    return _fragile

"""Training clusters that modules share: one that their tests leave whole, and one to be harmed.

A process of the tests starts each at most once: its servers take longer to start, and to load their
kernels, than most modules need. Invariant: both are whole when a module, or a test that may harm,
gets them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pstrain as ps


@pytest.fixture(scope="session")
def _lasting() -> Iterator[ps.LocalCluster]:
    with ps.LocalCluster(workers=2, ps=2, data_workers=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(_lasting: ps.LocalCluster) -> Iterator[ps.LocalCluster]:
    """Yields a cluster of two trainers, two servers and a data worker, for one module at a time.

    Variables and jobs of earlier modules may still be on it; their coordinators are closed.
    """
    yield _whole(_lasting)
    _close_coordinators(_lasting)


@pytest.fixture(scope="session")
def _fragile() -> Iterator[ps.LocalCluster]:
    with ps.LocalCluster(workers=2, ps=1, data_workers=0) as cluster:
        yield cluster


@pytest.fixture
def breakable(_fragile: ps.LocalCluster) -> Iterator[ps.LocalCluster]:
    """Yields a cluster that tests may harm."""
    yield _whole(_fragile)
    _close_coordinators(_fragile)


def _whole(cluster: ps.LocalCluster) -> ps.LocalCluster:
    """Starts again what an earlier test has killed, and lets go on what it has frozen."""
    for task in cluster.status():
        change = cluster.resume if task["alive"] else cluster.restart
        change(task["role"], task["index"])
    return cluster


def _close_coordinators(cluster: ps.LocalCluster) -> None:
    for strategy in list(cluster._strategies):
        if strategy.coordinator is not None:
            strategy.coordinator.close()

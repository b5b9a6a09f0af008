"""Gives the chaos tests as many random schedules as `--chaos-seeds` asks for, 0 by default."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chaos_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--chaos-first")
        seeds = range(first, first + metafunc.config.getoption("--chaos-seeds"))
        metafunc.parametrize("chaos_seed", seeds)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the test of random schedules if there are no seeds, rather than skipping it."""
    absent = [item for item in items if item.name.endswith("[NOTSET]")]
    if absent and not config.getoption("--chaos-seeds"):
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]

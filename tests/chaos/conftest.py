"""The long set: as many random schedules as `--chaos-seeds` asks for, none by default."""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chaos_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--chaos-first")
        seeds = range(first, first + metafunc.config.getoption("--chaos-seeds"))
        metafunc.parametrize("chaos_seed", seeds)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without seeds the test of them is not there, rather than skipped."""
    absent = [item for item in items if item.name.endswith("[NOTSET]")]
    if absent and not config.getoption("--chaos-seeds"):
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]

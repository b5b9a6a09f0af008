"""Tests simulated threads and their clock: real waits are noticed, virtual waits end."""

from __future__ import annotations

import threading

import pytest

from tests.simulation import fibers
from tests.simulation.world import World


def test_thread_that_waits_in_real_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fibers, "_REAL_WAIT_MAX_S", 0.2)
    real = threading.Event()
    carrier = fibers._Carrier()
    fiber = fibers.Fiber(real.wait, node=_SingleThreadProcess())
    fiber._carrier, carrier.job = carrier, fiber._main
    with pytest.raises(RuntimeError, match=r"waits in real time: .*threading\.py:\d+ in "):
        fiber._run()
    real.set()


def test_wait_shorter_than_the_clock_resolution_ends() -> None:
    world = World(0)
    node = fibers.Process(world, "alone")
    world.now_s, node.offset_s = 0.20087230310915077, -0.2036184508315273
    due_s = -0.00274614772237651
    left_s = due_s - node.now_s()
    assert left_s > 0
    assert world.now_s + left_s == world.now_s

    def wait_until_due() -> None:
        while (left_s := due_s - node.now_s()) > 0:
            fibers.wait(left_s)

    node.spawn(wait_until_due)
    world.run(1.0, lambda: False)
    assert not node.fibers
    assert node.now_s() >= due_s


def test_events_after_the_end_of_a_run_happen_in_the_next_run() -> None:
    world, happened = World(0), []
    world.at(1.0, None, happened.append, "sooner")
    world.at(3.0, None, happened.append, "later")
    world.run(2.0, lambda: False)
    assert happened == ["sooner"]
    world.run(4.0, lambda: False)
    assert happened == ["sooner", "later"]


class _SingleThreadProcess:
    """A process with a single thread."""

    fibers: list[fibers.Fiber]

    def __init__(self) -> None:
        self.fibers = []

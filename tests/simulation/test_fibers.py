"""A simulated thread that waits in real time, because some name was not replaced, is noticed."""

from __future__ import annotations

import threading

import pytest

from tests.simulation import fibers


def test_a_thread_that_waits_for_something_real_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fibers, "_REAL_WAIT_MAX_S", 0.2)
    real = threading.Event()
    carrier = fibers._Carrier()
    fiber = fibers.Fiber(real.wait, node=_Alone())
    fiber._carrier, carrier.job = carrier, fiber._main
    with pytest.raises(RuntimeError, match=r"waits in real time: .*threading\.py:\d+ in "):
        fiber._run()
    real.set()


class _Alone:
    """A process of a single thread."""

    fibers: list[fibers.Fiber]

    def __init__(self) -> None:
        self.fibers = []

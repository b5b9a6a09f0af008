"""The queue of orders to one trainer."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pstrain.coordinator.orders import DropResource, Outbox

ORDER = DropResource("an-iterator")


def test_order_wakes_who_listens() -> None:
    outbox, woken = Outbox(), []
    outbox.put(ORDER)
    outbox.listen(lambda: woken.append(outbox.qsize()))
    outbox.put(ORDER)
    assert woken == [1, 2]


def test_interrupt_does_not_leave_an_order_without_a_wake() -> None:
    """Ctrl-C may end the call between its two steps, and the order is in the queue already."""

    def interrupt(_frame: Any, event: str, called: Any) -> None:
        if event == "c_return" and called.__name__ == "put":
            sys.setprofile(None)
            raise KeyboardInterrupt

    outbox, woken = Outbox(), []
    outbox.listen(lambda: woken.append(outbox.qsize()))
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            outbox.put(ORDER)
    finally:
        sys.setprofile(None)
    assert woken == [0, 1]

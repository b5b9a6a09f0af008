"""Functions of a coordinator that its parameters call do not keep the coordinator alive."""

from __future__ import annotations

import gc
import weakref

from pstrain.coordinator.client import _while_alive


class _Coordinator:
    def double(self, value: int) -> int:
        return 2 * value


def test_while_alive_calls_method_while_object_lives_without_keeping_it_alive() -> None:
    coordinator = _Coordinator()
    called = _while_alive(coordinator.double, lambda value: -value)
    assert called(3) == 6
    reference = weakref.ref(coordinator)
    del coordinator
    gc.collect()
    assert reference() is None
    assert called(3) == -3

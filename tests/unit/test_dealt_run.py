"""A run over data that are dealt: each element once, and who is late holds up nobody."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

import dataservice as ds
from pstrain import element_ranges
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.element_ranges import Bookmark, RangeReader
from pstrain.execution.cluster import ClusterExecutor
from pstrain.execution.dealing import DealtDataset, DealtPass

DATA = ds.Dataset.range(1_000).shuffle(64, seed=3).batch(4)  # 250 elements
LATE, UNTIL = 2, 40


class NoWait(threading.Condition):
    """Nobody would end a wait here."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        assert predicate(), f"the run waits for closure {LATE}, which is late"
        return super().wait_for(predicate, timeout)


class Coordinator:
    """Runs each closure as it is scheduled, but for one that is late; also its values' owner."""

    num_trainers = 2

    def __init__(self) -> None:
        self.near: list[tuple[int, Bookmark | None]] = []
        self._reader = RangeReader(DATA)
        self._changed = NoWait()
        self._late: Callable[[], None] | None = None

    def schedule(self, function: Any, args: tuple[Any, ...]) -> RemoteValue:
        _, start, count, near = args
        number = len(self.near)
        value = RemoteValue(number, self._changed, self)
        self.near.append((start, near))

        def run() -> None:
            value._set(function(self._reader, start, count, near), None)

        if number == LATE:
            self._late = run
            return value
        run()
        if number == UNTIL:
            assert self._late is not None
            self._late()
        return value

    def has_ready_trainer(self) -> bool:
        return True

    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None: ...

    def describe(self, closure: int) -> str:
        return str(closure)

    def define_resource(self, resource_id: str, source: tuple[Any, ...]) -> None: ...

    def drop_resource(self, resource_id: str) -> None: ...

    def note_iterator(self, iterator: object) -> None: ...


def step(elements: Any, count: int) -> dict[str, Any]:
    rows = [batch["id"].to_pylist() for batch in elements]
    return {"steps": len(rows), "ended": len(rows) < count, "rows": [*itertools.chain(*rows)]}


def test_one_range_that_is_late_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(element_ranges, "_BOOKMARK_EVERY_S", 0.0)
    monkeypatch.setattr(element_ranges, "_BOOKMARK_SHARE", 0)
    coordinator: Any = Coordinator()
    elements: DealtPass = iter(DealtDataset(DATA, coordinator))
    reports = list(ClusterExecutor(coordinator).run(step, elements, None, 2))
    expected = [row for batch in DATA.iterator(0) for row in batch["id"].to_pylist()]
    assert [row for report in reports for row in report["rows"]] == expected
    nearest = [start - near.at for start, near in coordinator.near[20:] if near is not None]
    assert max(nearest) <= 8 * 2  # as many ranges as there is room for
    assert len(nearest) == len(coordinator.near) - 20
    assert len(coordinator.near) <= 125 + 8 + 1  # the end is not run past

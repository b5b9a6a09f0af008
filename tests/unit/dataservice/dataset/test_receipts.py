"""Receipts: rows count as consumed once acknowledged; a source stays known while it may go on."""

from __future__ import annotations

from typing import Any

from dataservice.dataset.receipts import HeldPosition, HeldSource, ReceiptSources


class Source(HeldSource):
    """A source whose end the test sets, and which records acknowledgement and closing."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.has_come_to_end = self.is_acknowledged = self.is_closed = False

    @property
    def has_ended(self) -> bool:
        return self.has_come_to_end

    def state(self) -> Any:
        return Position(self)

    def is_settled(self) -> bool:
        return self.is_acknowledged

    def abandon(self) -> None:
        self.is_closed = True


class Position(HeldPosition):
    """The position after all rows that a source has given."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def source(self) -> HeldSource:
        return self._source

    def acknowledge(self) -> None:
        self._source.is_acknowledged = True

    def marks(self) -> dict[str, Any] | None:
        return None


def test_ended_source_stays_known_while_it_may_continue() -> None:
    """It may give out rows that a lost reader of its job left; these wait for receipts too."""
    first, second = Source("first"), Source("second")
    sources = ReceiptSources("owner")
    sources.add(first)
    first.has_come_to_end = True
    for _ in range(2):
        sources.receipt([first.state()]).acknowledge()
        assert sources.services == ["first"]
    first.has_come_to_end = first.is_acknowledged = False
    sources.receipt([first.state()])
    assert sources.services == ["first"]
    first.has_come_to_end = True
    sources.add(second)
    for known in (["first", "second"], ["second"]):
        receipt = sources.receipt([second.state()])
        assert sources.services == known
        receipt.acknowledge()
    assert first.is_acknowledged
    assert sources.receipt([]).is_empty
    sources.abandon()
    assert (first.is_closed, second.is_closed) == (False, True)

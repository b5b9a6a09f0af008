"""Readers with an owner: their windows wait a limited time for its report, also over a restart."""

from __future__ import annotations

import logging

import pytest

from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.requests import LeaseWindows
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.service import DispatcherService
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.vocabulary import ANY_DIVISION
from tests.unit.dataservice.dispatcher.dispatcher_services import (
    ListJournal,
    add_worker,
    open_reader,
    register,
    service_of,
    sync,
)
from tests.unit.manual_clock import ManualClock

TIMES = {"client_timeout_s": 10.0, "worker_timeout_s": 1_000.0, "owner_timeout_s": 30.0}


def lease(service: DispatcherService, reader: str) -> list[tuple[int, int]]:
    request = LeaseWindows(worker_id="w1", iteration_id="i1", reader_id=reader, count=4)
    return [(each.window_index, each.start_row) for each in service.lease_windows(request).leases]


def service_with_readers(journal: ListJournal, clock: ManualClock) -> DispatcherService:
    """Returns a service: reader r1 of owner "t" holds all windows, r2 without an owner none."""
    service = service_of(journal, clock, **TIMES)
    register(service)
    add_worker(service)
    open_reader(service, "r1", owner="t")
    while lease(service, "r1"):
        pass
    open_reader(service, "r2")
    return service


def pass_time(service: DispatcherService, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1.0)
        sync(service, "r2")
        service.tick()


def test_windows_of_lost_reader_wait_for_report_of_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    service = service_with_readers(ListJournal(), clock)
    sync(service, "r1", consumed=(RowMark(0, 0, 1, True),))
    pass_time(service, clock, 20)
    assert lease(service, "r2") == []
    count = service.owners.release("t", {"r1": (RowMark(0, 0, 1, True), RowMark(2, 0, 1, True))})
    assert count == 1
    check_invariants(service._state)
    assert sorted(lease(service, "r2") + lease(service, "r2")) == [(1, 0), (3, 0)]
    with pytest.raises(FailedPreconditionError, match="its process has ended or was lost"):
        sync(service, "r1")
    assert service.owners.release("t", {}) == 0
    pass_time(service, clock, 40)
    assert "did not report" not in caplog.text


def test_silent_owner_times_out_with_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    service = service_with_readers(ListJournal(), clock)
    pass_time(service, clock, 39)
    assert lease(service, "r2") == []
    with caplog.at_level(logging.WARNING):
        pass_time(service, clock, 3)
    assert "r1 was lost, and its owner t did not report within 30 s" in caplog.text
    assert lease(service, "r2")


def test_training_goes_back_to_position_as_soon_as_all_its_readers_are_lost() -> None:
    clock = ManualClock()
    service = service_with_readers(ListJournal(), clock)
    sync(service, "r1", consumed=(RowMark(0, 0, 1, True),))
    position = SavedPosition(
        consumed=Consumed(Ranges([(0, 2)])), origins=("r1",), peers=("r1",), division=ANY_DIVISION
    )
    again = {"owner": "u", "iteration_id": "i2", "position": position}
    with pytest.raises(UnavailableError, match="still read by r1"):
        open_reader(service, "r3", **again)
    pass_time(service, clock, 12)
    with pytest.raises(UnavailableError, match="still read by r1"):
        open_reader(service, "r3", **again)
    assert lease(service, "r2") == [], "others read on, so r1's owner may yet report"
    service.release_reader("r2", ())
    with pytest.raises(InvalidArgumentError, match="Tried to create job"):
        open_reader(service, "r3", **{**again, "delivery": "at_most_once"})
    assert "r1" in service._state.iteration_of_reader
    assert open_reader(service, "r3", **again) == "i2"
    check_invariants(service._state)
    assert list(service._state.iteration_of_reader) == ["r3"]


def test_owned_reader_heard_again_keeps_its_windows() -> None:
    clock = ManualClock()
    service = service_with_readers(ListJournal(), clock)
    pass_time(service, clock, 20)
    for _ in range(10):
        sync(service, "r1")
        pass_time(service, clock, 5)
    assert lease(service, "r2") == []


def test_standstill_of_dispatcher_does_not_count_for_owners() -> None:
    clock = ManualClock()
    service = service_with_readers(ListJournal(), clock)
    pass_time(service, clock, 20)
    clock.advance(60.0)
    service.tick()
    pass_time(service, clock, 28)
    assert lease(service, "r2") == []
    pass_time(service, clock, 4)
    assert lease(service, "r2")


def test_owners_survive_restart_from_compacted_journal() -> None:
    clock, journal = ManualClock(), ListJournal()
    before = service_with_readers(journal, clock)
    before._store._shorten_at = 0
    pass_time(before, clock, 1)
    after = service_of(ListJournal(journal.frames), clock, **TIMES)
    assert after._state == before._state
    pass_time(after, clock, 20)
    assert lease(after, "r2") == []
    assert after.owners.release("t", {}) == 1


def test_release_of_empty_owner_spares_readers_without_owner() -> None:
    service = service_with_readers(ListJournal(), ManualClock())
    assert service.owners.release("", {}) == 0
    sync(service, "r2")
    open_reader(service, "r3")


def test_released_owner_can_open_no_reader_even_after_restart() -> None:
    clock, journal = ManualClock(), ListJournal()
    service = service_with_readers(journal, clock)
    # Nothing is known of "u" yet: its reader's request is on its way.
    assert [service.owners.release(owner, {}) for owner in ("t", "u", "u")] == [1, 0, 0]
    service._store._shorten_at = 0
    pass_time(service, clock, 1)
    after = service_of(ListJournal(journal.frames), clock, **TIMES)
    assert after._state == service._state
    for each in (service, after):
        with pytest.raises(FailedPreconditionError, match="readers of u were declared lost"):
            open_reader(each, "r3", owner="u")
    open_reader(after, "r3", owner="v")
    assert lease(after, "r3")


def test_kept_released_owners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.dispatcher.state.RELEASED_OWNERS_KEPT", 2)
    service = service_with_readers(ListJournal(), ManualClock())
    for owner in ("a", "b", "c"):
        service.owners.release(owner, {})
    assert list(service._state.released_owners) == ["b", "c"]

"""Requests are answered in order of arrival, a few at once; slow ones hold up nobody."""

from __future__ import annotations

from dataservice.runtime.exchanges.admission import Admission


def admitted(admission: Admission[str], now_s: float) -> list[str]:
    return list(iter(lambda: admission.admit(now_s), None))


def waiting_for(*clients: str, at_once: int) -> Admission[str]:
    admission: Admission[str] = Admission(at_once, slow_s=1.0)
    for client in clients:
        admission.add(client)
    return admission


def test_so_many_at_once_are_admitted_in_order_of_arrival() -> None:
    admission = waiting_for("a", "b", "c", "d", at_once=2)
    assert admitted(admission, 0.0) == ["a", "b"]
    admission.end("b")
    assert admitted(admission, 0.0) == ["c"]
    admission.end("a")
    admission.add("a")
    assert admitted(admission, 0.0) == ["d"]
    assert admission.has_waiting
    admission.end("c")
    assert admitted(admission, 0.0) == ["a"]
    assert not admission.has_waiting


def test_one_that_is_answered_slowly_does_not_count() -> None:
    admission = waiting_for("stuck", "b", "c", "d", at_once=1)
    assert admitted(admission, 0.0) == ["stuck"]
    assert admitted(admission, 0.9) == []
    assert admitted(admission, 1.0) == ["b"]
    assert admitted(admission, 1.9) == []
    admission.end("stuck")
    assert admitted(admission, 1.9) == []
    admission.end("b")
    assert admitted(admission, 1.9) == ["c"]


def test_one_that_is_put_back_is_the_next() -> None:
    admission = waiting_for("a", "b", "c", at_once=1)
    assert admitted(admission, 0.0) == ["a"]
    admission.put_back("a")
    assert admitted(admission, 0.0) == ["a"]
    admission.end("a")
    assert admitted(admission, 0.0) == ["b"]


def test_those_who_wait_can_be_sent_away() -> None:
    admission = waiting_for("a", "b", "c", at_once=1)
    admission.admit(0.0)
    assert admission.take_waiting() == ["b", "c"]
    admission.end("a")
    assert admission.admit(0.0) is None

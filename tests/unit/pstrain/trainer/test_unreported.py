"""Few closures end while one waits to be reported."""

from __future__ import annotations

from pstrain.paramserver.commits import ENDED_KEPT
from pstrain.trainer.unreported import ENDS_MAX, Unreported


def test_no_more_than_the_most_closures_end_after_one_that_is_not_reported() -> None:
    unreported = Unreported()
    assert unreported.add([1, 2])
    for closure in range(3, 3 + ENDS_MAX):
        assert unreported.add([closure])
        assert not unreported.remove([closure])
    assert unreported.is_full
    assert not unreported.add([999])
    assert unreported.add([]), "a closure that goes on ends nothing"
    assert not unreported.remove([1])
    assert unreported.remove([2])
    assert unreported.add([999])


def test_closures_that_were_not_noted_may_be_reported() -> None:
    unreported = Unreported()
    assert not unreported.remove([7])
    assert unreported.add([8])
    assert not unreported.is_full


def test_oldest_that_is_not_reported_counts() -> None:
    unreported = Unreported()
    unreported.add([1])
    unreported.add(list(range(2, 2 + ENDS_MAX - 1)))
    unreported.remove([1])
    assert unreported.add([1000])
    assert not unreported.is_full


def test_servers_keep_the_end_of_a_closure_and_of_as_many_as_may_follow_it() -> None:
    assert 2 * ENDS_MAX <= ENDED_KEPT

"""The V1 strategy's calls of its session, its servers and its membership, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import pstrain as ps
from pstrain.errors import DataLossError


class Recorded:
    """Notes the calls of its methods, which return what the test has set."""

    def __init__(self, **replies: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._replies = replies

    def __getattr__(self, name: str) -> Any:
        def method(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self._replies.get(name)

        return method


@pytest.fixture
def strategy() -> Any:
    return ps.v1.ParameterServerStrategy(ps.SimpleClusterResolver(ps.ClusterSpec({})))


def variable(name: str) -> Any:
    return SimpleNamespace(name=name, spec=f"spec of {name}")


def test_representation_names_the_cluster(strategy: Any) -> None:
    assert repr(strategy).startswith("<v1.ParameterServerStrategy by <SimpleClusterResolver")


def test_session_is_told_of_steps_that_it_did_not_run(strategy: Any) -> None:
    strategy.begin_steps()
    strategy.advance(3)
    session = Recorded()
    strategy.bind(session)
    strategy.begin_steps()
    strategy.advance(4)
    assert session.calls == [("run_postponed_restore",), ("advance", 4)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("has_session", [False, True])
def test_call_is_postponed_only_while_other_workers_may_train(
    strategy: Any, workers: int, has_session: bool
) -> None:
    session, called = Recorded(), Recorded()
    strategy.num_workers = workers
    strategy.bind(session if has_session else None)
    strategy.call_at_session_end(called.restore)
    is_postponed = has_session and workers == 2
    assert called.calls == ([] if is_postponed else [("restore",)])
    assert [name for name, *_ in session.calls] == is_postponed * ["postpone_restore"]


@pytest.mark.parametrize(
    ("workers", "is_chief", "others_train", "may_move"),
    [
        (1, True, None, True),
        (2, True, None, True),
        (2, True, False, True),
        (2, True, True, False),
        (2, False, False, False),
    ],
)
def test_keys_move_only_by_the_chief_and_while_no_other_trains(
    strategy: Any, workers: int, is_chief: bool, others_train: bool | None, may_move: bool
) -> None:
    strategy.num_workers, strategy.is_chief = workers, is_chief
    if others_train is not None:
        strategy.membership = SimpleNamespace(others_train=others_train)
    assert strategy._may_move_keys() is may_move


@pytest.mark.parametrize("missing", ["membership", "parameters"])
def test_strategy_without_servers_rejoins_nothing(strategy: Any, missing: str) -> None:
    there = Recorded()
    strategy.membership = strategy.parameters = there
    setattr(strategy, missing, None)
    strategy.rejoin()
    assert there.calls == []


@pytest.mark.parametrize("is_chief", [False, True])
def test_only_the_chief_gives_first_values_back_and_tells_which_are_lost(
    strategy: Any, is_chief: bool
) -> None:
    strategy.is_chief, strategy.membership = is_chief, Recorded()
    strategy.placement = SimpleNamespace(variables=[variable("a")])
    for is_kept in (False, False, True):
        strategy.parameters = Recorded(reset_initial_values=is_kept)
        strategy.rejoin()
        gives_back = [("reset_initial_values", "spec of a")] if is_chief else []
        assert strategy.parameters.calls == [("create", "spec of a"), *gives_back]
        if is_chief and not is_kept:
            with pytest.raises(DataLossError, match=r"made of \(a\)"):
                strategy.confirm_values(are_restored=False)
        else:
            strategy.confirm_values(are_restored=False)
    assert strategy.membership.calls == 3 * [("enter",)]


def test_values_that_were_restored_are_not_lost(strategy: Any) -> None:
    strategy._lost_values = ["a"]
    strategy.confirm_values(are_restored=True)
    strategy.confirm_values(are_restored=False)


def test_closing_closes_the_connections_if_there_are_any(strategy: Any) -> None:
    strategy.close()
    strategy.parameters = Recorded()
    strategy.close()
    assert strategy.parameters.calls == [("close",)]

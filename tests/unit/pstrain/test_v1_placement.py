"""Variables of the V1 form: who gives them values, and making them again in a new session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import pstrain as ps
from pstrain.config import ParameterConfig
from pstrain.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    ServerRestartedError,
    UnimplementedError,
)
from pstrain.features.eviction import Eviction
from pstrain.trainer.client import RemoteParameters
from pstrain.v1 import placement
from pstrain.v1.placement import WorkerParameters
from tests.unit.pstrain.paramserver.shard_cases import make_spec


class Worker:
    """A worker without servers: requests to them are noted, after they failed with ``errors``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_chief: bool) -> None:
        self.errors: list[Exception] = []
        self.calls: list[str] = []
        self.may_move_keys = False
        monkeypatch.setattr(placement, "wait_for", self._repeat)
        monkeypatch.setattr(RemoteParameters, "create", self._create)
        monkeypatch.setattr(RemoteParameters, "assign", self._assign)
        monkeypatch.setattr(RemoteParameters, "reassigning_rows", self._reassign)
        self.parameters = WorkerParameters(
            ["a:1"],
            session="",
            is_chief=is_chief,
            config=ParameterConfig(),
            rejoin=lambda: self.calls.append("rejoin"),
            may_move_keys=lambda: self.may_move_keys,
        )

    def _repeat(self, _what: str, _timeout_s: float, attempt: Callable[[], bool]) -> None:
        while not attempt():
            pass

    def _create(self, _spec: Any, value: Any) -> None:
        self.calls.append(f"create {value}")
        if self.errors:
            raise self.errors.pop(0)

    def _assign(self, spec: Any, op: str, value: Any, start: int) -> None:
        self.calls.append(f"{op} {value} in {spec.id} from {start}")

    @contextmanager
    def _reassign(self, variables: Any) -> Iterator[None]:
        self.calls.append(f"reassign {variables}")
        yield


LOST = ServerRestartedError("started anew")
REPLACED = AbortedError("session s1 is over")


@pytest.mark.parametrize(
    ("is_chief", "errors"), [(False, [LOST, REPLACED]), (True, [LOST]), (False, [])]
)
def test_variable_is_made_again_once_the_worker_has_rejoined(
    is_chief: bool, errors: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(monkeypatch, is_chief=is_chief)
    worker.errors = [*errors]
    worker.parameters.create(make_spec(4), 7)
    assert worker.calls == [*(["create 7", "rejoin"] * len(errors)), "create 7"]


@pytest.mark.parametrize(
    ("is_chief", "variable", "error"),
    [(True, 1, REPLACED), (False, -1, REPLACED), (True, -1, LOST)],
)
def test_replaced_chief_makes_no_variable_and_a_session_its_own_only_once(
    is_chief: bool, variable: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(monkeypatch, is_chief=is_chief)
    worker.errors = [error]
    with pytest.raises(type(error)):
        worker.parameters.create(make_spec(4, id=variable), 7)
    assert worker.calls == ["create 7"]


def test_error_of_another_variable_in_its_place_tells_what_workers_must_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch, is_chief=False)
    worker.errors = [AlreadyExistsError("variable 0 is 'a'")]
    with pytest.raises(AlreadyExistsError) as caught:
        worker.parameters.create(make_spec(4))
    assert "the same variables in the same order" in caught.value.__notes__[0]


@pytest.mark.parametrize("is_chief", [False, True])
def test_first_values_are_the_chiefs(is_chief: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, is_chief=is_chief)
    spec = make_spec(4)
    worker.parameters.assign(spec, "set", 7)
    assert worker.calls == ["set 7 in 1 from 0"] * is_chief
    worker.parameters.made.add(1)
    worker.parameters.assign(spec, "add", 8, 2)
    worker.parameters.assign(make_spec(4, id=-1), "set", 9)
    assert worker.calls[is_chief:] == ["add 8 in 1 from 2", "set 9 in -1 from 0"]


def test_rows_go_to_other_keys_only_while_no_other_worker_remembers_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(monkeypatch, is_chief=True)
    worker.parameters.key_maps = SimpleNamespace(any_holds_keys=lambda ids: 5 in ids)  # type: ignore[assignment]
    with (
        pytest.raises(FailedPreconditionError, match="let the chief"),
        worker.parameters.reassigning_rows([3, 5]),
    ):
        pass
    assert worker.calls == []
    for variables, may_move in (([3], False), ([3, 5], True)):
        worker.may_move_keys = may_move
        with worker.parameters.reassigning_rows(variables):
            assert worker.calls.pop() == f"reassign {variables}"


def test_keys_are_not_evicted_in_the_v1_form(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(monkeypatch, is_chief=True)
    eviction: Any = Eviction(make_spec(4), None, (), ())  # type: ignore[arg-type]
    with pytest.raises(UnimplementedError, match="raise the capacity"):
        worker.parameters.evict(eviction)


@pytest.mark.parametrize("is_chief", [False, True])
def test_large_first_values_lost_before_training_are_restored_or_an_error(is_chief: bool) -> None:
    made: list[str] = []
    specs = [make_spec(4), make_spec(8, id=2)]
    strategy: Any = ps.v1.ParameterServerStrategy()
    strategy.is_chief = is_chief
    strategy.membership = SimpleNamespace(enter=lambda: made.append("session"))
    strategy.parameters = SimpleNamespace(
        create=lambda spec: made.append(f"variable {spec.id}"),
        reset_initial_values=lambda spec: spec.id == 1,
    )
    strategy.placement = SimpleNamespace(
        variables=[SimpleNamespace(spec=spec, name=f"v{spec.id}") for spec in specs]
    )
    strategy.rejoin()
    assert made == ["session", "variable 1", "variable 2"]
    with pytest.raises(DataLossError, match=r"made of \(v2\)") if is_chief else nullcontext():
        strategy.confirm_values(are_restored=False)
    strategy.confirm_values(are_restored=True)
    strategy.confirm_values(are_restored=False)

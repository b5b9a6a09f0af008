"""Functions and variables travel; what stands for something in the process travels as a key."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pstrain import session
from pstrain.errors import InvalidArgumentError
from pstrain.parameters import LocalParameters
from pstrain.variable import LocalPlacement, Variable, placement_scope


class Handle:
    def __init__(self, name: str) -> None:
        self.name = name


def _key(value: Any) -> session.Key | None:
    return ("handle", value.name) if isinstance(value, Handle) else None


def test_handles_come_alive_where_they_arrive() -> None:
    here, there = Handle("a"), Handle("a")

    def function(x: int) -> tuple[int, Handle]:
        return x + 1, here

    sent = session.dumps((function, [here]), _key)
    received, handles = session.loads(sent, {("handle", "a"): there}.__getitem__)
    assert received(1) == (2, there)
    assert handles[0] is there


def test_variables_speak_through_the_receivers_parameters() -> None:
    here, there = LocalParameters(), LocalParameters()
    with placement_scope(LocalPlacement(there)):
        Variable(5.0, name="x")
    with placement_scope(LocalPlacement(here)):
        x = Variable(1.0, name="x")
    sent = session.dumps(lambda: float(x), lambda v: ("parameters",) if v is here else None)
    received = session.loads(sent, lambda _: there)
    assert received() == 5.0


def test_a_local_variable_cannot_be_sent() -> None:
    with placement_scope(LocalPlacement()):
        x = Variable(1.0)
    with pytest.raises(InvalidArgumentError, match=r"strategy\.scope\(\)"):
        session.dumps(lambda: float(x), _key)


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="lock"):
        session.dumps(threading.Lock(), _key)

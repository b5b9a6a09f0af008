"""Which saved positions the trainers of a cluster can continue from."""

from __future__ import annotations

from typing import Any

import pytest

from pstrain.coordinator.per_worker import _check_position
from pstrain.errors import InvalidArgumentError

OF_TWO = {"epoch": 1, "trainers": {"0": {}, "1": {}}, "trainers_count": 2}


@pytest.mark.parametrize("state", [{"epoch": 0}, OF_TWO, {"epoch": 3, "service": {"job": 1}}])
def test_position_of_a_service_or_of_as_many_trainers_is_accepted(state: dict[str, Any]) -> None:
    _check_position(state, 2)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "not a position"),
        ({"epoch": -1}, "not a position"),
        ({"epoch": 0, "next": 5}, "fit dealt out ranges"),
        ({**OF_TWO, "trainers_count": 3}, "saved by 3 trainers and there are 2"),
    ],
)
def test_position_that_trainers_cannot_continue_from_is_refused(
    state: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        _check_position(state, 2)

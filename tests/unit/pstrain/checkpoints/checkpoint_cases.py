"""Objects that tests save in checkpoints."""

from __future__ import annotations

from typing import Any

from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.variables.variable import create_variable


class Model:
    """Three variables, two of which have the same name."""

    def __init__(self, rows: int = 4, *, seed: int = 1) -> None:
        start = initializers.normal(seed=seed)
        self.variables = [
            create_variable(start, shape=(rows, 2), name="table"),
            create_variable(start, shape=(3,), name="bias"),
            create_variable(initializers.constant(seed), shape=(3,), name="bias"),
        ]

    def get_config(self) -> dict[str, Any]:
        return {"rows": self.variables[0].shape[0]}

    def values(self) -> list[Any]:
        return [variable.numpy().tolist() for variable in self.variables]


class Position:
    """Data that saves and restores its position."""

    def __init__(self, row: Any = 0) -> None:
        self.row = row

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["row"] is None:
            raise InvalidArgumentError("no position of these data")
        self.row = state["row"]

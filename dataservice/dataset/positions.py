"""Positions over a source that yields its rows in another order each time.

A data service hands out rows in another order each time, so the position of an operator cannot be
"n rows after that position": it must say which rows are consumed. A live position can say so for
the rows that its source has handed out, and for any number of rows after it. Invariant: every
position of a plan that `check_saveable` accepts is exact; no other position is saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from dataservice.dataset.node import Node, unrepeatable, walk
from dataservice.dataset.operators import (
    Batch,
    Enumerate,
    Prefetch,
    Repeat,
    RowOperator,
    Skip,
    Take,
    Unbatch,
)
from dataservice.errors import FailedPreconditionError, UnimplementedError

# Operators that hold no rows while they wait for their input.
_WITH_EMPTY_HANDS = (RowOperator, Batch, Take, Skip, Repeat, Prefetch, Unbatch, Enumerate)


class LivePosition(ABC):
    """A position within the run that made it; its JSON form costs a remote call, so it is lazy."""

    @abstractmethod
    def after(self, rows: int) -> LivePosition:
        """Returns the position after `rows` more rows are consumed."""

    @property
    def has_fixed_order(self) -> bool:
        """True if the same rows in the same batches follow when the position is restored."""
        return False

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the position as JSON values."""


def without_live_positions(state: Any) -> Any:
    """Returns a state with JSON values in place of its live positions, ready to be saved."""
    if isinstance(state, LivePosition):
        return state.to_json()
    if isinstance(state, list):
        return [without_live_positions(item) for item in state]
    if not isinstance(state, dict):
        return state
    if state.get("row") and _is_live(state.get("input")):
        raise FailedPreconditionError(
            "the position is inside rows that the data service would hand out in another cut or "
            "order; apply the operator that holds them before distribute(), or distribute with "
            "ordered=True"
        )
    return {key: without_live_positions(value) for key, value in state.items()}


def _is_live(state: Any) -> bool:
    if isinstance(state, dict):
        return any(_is_live(value) for value in state.values())
    return isinstance(state, LivePosition) and not state.has_fixed_order


def check_saveable(root: Node) -> None:
    """Raises UnimplementedError for a plan with an operator whose position would not be exact.

    The error names the operator.
    """
    declared = unrepeatable(root)
    if declared:
        raise UnimplementedError(
            f"the position of this dataset cannot be saved: {declared} was declared "
            "deterministic=False, so what follows a position is not the same when it is read "
            "again; make it yield the same each time and leave the declaration out"
        )
    _check(root, None)


def goes_on_after_interrupt(root: Node) -> bool:
    """True if an iterator of this plan can go on after an interrupt without losing rows.

    The plan must read only the data service, through operators that hold no rows while they wait
    for their input.
    """
    return all(
        isinstance(node, _WITH_EMPTY_HANDS) if node.inputs else node.kind == "service"
        for node in walk(root)
    )


def _check(node: Node, counter: Node | None) -> None:
    if all(inner.has_fixed_order for inner in walk(node)) or not node.inputs:
        return
    if isinstance(node, Batch | Take | Skip):
        counter = node
    elif isinstance(node, RowOperator | Repeat):
        exact = isinstance(node, RowOperator) and node.keeps_rows
        if counter is not None and not exact:
            _refuse(node, f", followed by {counter.kind},")
    elif not isinstance(node, Prefetch | Unbatch | Enumerate):
        _refuse(node, "")
    for child in node.inputs:
        _check(child, counter)


def _refuse(node: Node, followed: str) -> NoReturn:
    raise UnimplementedError(
        f"the position of {node.kind}{followed} after distribute() cannot be saved, since the data "
        f"service hands rows out in another order each time; apply {node.kind} before "
        "distribute(), or distribute with ordered=True"
    )

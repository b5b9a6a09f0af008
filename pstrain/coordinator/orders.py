"""Messages between the scheduler and the links: orders to trainers, and how runs ended.

Values only. Invariant: an order is complete: a link needs no other state to carry it out.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pstrain.coordinator.remote_value import RemoteValue


@dataclass(slots=True)
class Closure:
    """A function to apply to arguments, both pickled, and the RemoteValue to set.

    ``kept``: what lives as long as the closure, because the pickled forms refer to it: iterators
    on the trainers, variables on the servers. ``result``: its value between its run and its end.
    ``part``: its prepared changes, while it waits for its round; ``round``: the number of the round
    in which it ended. ``trainer``: the only one that may run it, if it is bound to one. ``name``:
    that of the function. ``deadline_s``: the time in which it must begin to commit. ``inputs``: the
    values that the pickled arguments refer to by position; all are there when the closure starts.
    ``iterators``: the ids of those among the arguments.
    """

    id: int
    function_id: str
    pickled_arguments: bytes
    kept: object
    value: RemoteValue
    trainer: int | None = None
    name: str = ""
    deadline_s: float | None = None
    inputs: tuple[RemoteValue, ...] = ()
    priority: int = 0
    iterators: frozenset[str] = frozenset()
    result: Any = None
    error: Exception | None = None
    part: RoundPart | None = None
    round: int | None = None

    @property
    def label(self) -> str:
        """The closure's name and number, for messages."""
        return f"{self.name} (closure {self.id})" if self.name else f"closure {self.id}"


@dataclass(frozen=True, slots=True)
class RoundPart:
    """A closure's prepared changes: of which trainer, at which servers, with its readers' marks."""

    trainer_name: str
    servers: tuple[int, ...]
    has_gradient: bool
    marks: tuple[dict[str, Any], ...] = ()


class RoundOrder(NamedTuple):
    """A round to be applied: (closure, attempt, part) of each member, in the closures' order."""

    number: int
    parts: list[tuple[int, int, RoundPart]]


@dataclass(frozen=True, slots=True)
class StartRun:
    """An order to a trainer to run this closure; ``attempt`` tells its runs apart.

    ``parts``: how many of its parts that took no element were decided in earlier runs.
    """

    closure: Closure
    attempt: int
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """Tells a trainer that the ends of these closures have arrived: their elements are used up."""

    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropRun:
    """Tells a trainer that this run was late for its round, and must give its elements back."""

    closure: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelRun:
    """An order to a trainer to commit nothing of this run, if it has not begun to commit."""

    closure: int
    attempt: int


class RunResult(NamedTuple):
    """How a run ended, as its trainer says. ``marks``: of readers, which count if the end does.

    ``part``: set if its changes wait for its round. ``was_dropped``: a late run has given all its
    elements back. ``ended_iterators``: those of its trainer whose end it met, if it did nothing
    else. ``seconds``: how long it ran; ``commit_s``: how long after that it was reported.
    """

    closure: int
    attempt: int
    value: Any
    error: Exception | None
    needs_settling: bool = False
    marks: tuple[dict[str, Any], ...] = ()
    part: RoundPart | None = None
    was_dropped: bool = False
    seconds: float = 0.0
    commit_s: float = 0.0
    ended_iterators: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AskPosition:
    """A question to a trainer: the position of a resource's iterator after all earlier orders."""

    resource_id: str


@dataclass(frozen=True, slots=True)
class DefineResource:
    id: str
    pickled: bytes


@dataclass(frozen=True, slots=True)
class DropResource:
    id: str


Order = StartRun | Settled | DropRun | CancelRun | AskPosition | DefineResource | DropResource


class Outbox(queue.SimpleQueue["Order | None"]):
    """The orders to one trainer, in the order in which they are sent; None ends its stream.

    Any thread may put, also inside another call.
    """

    def __init__(self) -> None:
        self._wake: Callable[[], None] = _nobody_waits

    def listen(self, wake: Callable[[], None]) -> None:
        """Has ``wake`` called after each `put`, and once now."""
        self._wake = wake
        wake()

    def put(self, order: Order | None, block: bool = True, timeout: float | None = None) -> None:
        try:
            super().put(order, block, timeout)
        finally:
            # Also if Ctrl-C comes between: what is in the queue would wait for the next order.
            self._wake()


def _nobody_waits() -> None: ...

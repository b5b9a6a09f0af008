"""Messages between the scheduler and the links: orders to trainers, and the ends of runs.

Values only. Invariant: what is queued here is complete: whoever takes it needs no state to obey.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Any, NamedTuple

from pstrain.coordinator.remote_value import RemoteValue


@dataclass(slots=True)
class Closure:
    """A function applied to arguments, pickled, and where its value goes.

    ``arguments`` keeps what the pickled form refers to, such as iterators, alive on the trainers.
    ``result`` is its value from when it has run until it has ended; ``part`` what it waits with
    for its round, ``round`` the number of that. ``trainer``: the only one that may run it, if it is
    bound to one. ``name`` is the function's; ``deadline_s`` the time it was given to end.
    ``inputs`` are what the pickled arguments refer to by place; all have values when it starts.
    """

    id: int
    function_id: str
    pickled_arguments: bytes
    arguments: object
    value: RemoteValue
    trainer: int | None = None
    name: str = ""
    deadline_s: float | None = None
    inputs: tuple[RemoteValue, ...] = ()
    priority: int = 0
    result: Any = None
    error: Exception | None = None
    part: RoundPart | None = None
    round: int | None = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.name} (closure {self.id})" if self.name else f"closure {self.id}"


@dataclass(frozen=True, slots=True)
class RoundPart:
    """What waits at which servers, of which trainer (by its name there), and its readers' marks."""

    trainer_name: str
    servers: tuple[int, ...]
    has_gradient: bool
    rows: tuple[dict[str, Any], ...] = ()


class RoundOrder(NamedTuple):
    """A round that is to be applied: (closure, attempt) and its part, in the closures' order."""

    number: int
    parts: list[tuple[int, int, RoundPart]]


@dataclass(frozen=True, slots=True)
class Run:
    """An order to a trainer: run this closure; ``attempt`` tells it from earlier runs.

    ``parts``: so many of its parts were decided in earlier runs.
    """

    closure: Closure
    attempt: int
    parts: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """Closures whose end, which decides what becomes of their elements, was heard."""

    closures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """This run was late for its round: what it took is to be given back."""

    closure: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """This run is to be refused at its commit, if that has not begun."""

    closure: int
    attempt: int


class Ended(NamedTuple):
    """How a closure ended, as its trainer says; ``rows`` count if its end is heard.

    ``part``: its changes wait for its round. ``was_dropped``: a late run has given all back.
    ``met_end``: its error is the end of its trainer's data, of which it had taken nothing.
    ``seconds`` it ran, and then ``commit_s`` passed before this was told.
    """

    closure: int
    attempt: int
    value: Any
    error: Exception | None
    needs_settling: bool = False
    rows: tuple[dict[str, Any], ...] = ()
    part: RoundPart | None = None
    was_dropped: bool = False
    seconds: float = 0.0
    commit_s: float = 0.0
    met_end: bool = False


@dataclass(frozen=True, slots=True)
class AskPosition:
    """How far the iterator of a resource is, after all that was sent before."""

    resource_id: str


@dataclass(frozen=True, slots=True)
class DefineResource:
    id: str
    pickled: bytes


@dataclass(frozen=True, slots=True)
class DropResource:
    id: str


Order = Run | Settled | Drop | Cancel | AskPosition | DefineResource | DropResource
Outbox = queue.SimpleQueue[Order | None]
"""What one trainer is to be sent, in order; None ends its stream."""

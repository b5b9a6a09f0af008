"""The uncommitted work of one run of a closure: the elements it took, the changes it made.

Knows nothing of servers' answers; a committer makes the changes. Invariant: no element is taken
while changes wait, so that a part's changes rest on its own elements and on parts before it, and
a run that waits for its turn holds up nobody by elements of a later part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from pstrain.errors import OutOfRangeError
from pstrain.paramserver.messages import LateBody
from pstrain.trainer.outgoing import Answers, Header, Pulls
from pstrain.trainer.turns import Ticket
from pstrain.variables.parameters import current_staging
from pstrain.vocabulary import StepToken

NOTED_MAX_BYTES: Final = 2 << 20
"""Servers keep what a closure notes until it ends, and tell all that they have in one header."""

_USED_UP: Final = (
    "the step had taken elements before it met the end of its trainer's data: those whose changes "
    "are not committed are used up and trained by nobody, and other trainers may have some left; "
    "a step that takes several goes on with fewer by next(iterator, None) for all but the first"
)


class Held(Protocol):
    """The end of an earlier closure of the same thread, which is to be committed with a pull."""

    @property
    def is_done(self) -> bool: ...


class Commits(Protocol):
    """Makes the changes of a run. Pulls, by server, may go along: replies to those that did."""

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """What waits in a run that goes on."""

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """What the run's thread held back, if its turn has come."""


class Origin(Protocol):
    """Where elements come from, and can go back to."""

    def give_back(self, element: Any) -> None:
        """This is the next element again."""


class ClosureRun:
    """One run of a closure, for the thread that runs it.

    Parts that took no element are numbered among themselves, for a run may get fewer elements than
    an earlier one. ``parts_decided``: so many of them were decided in earlier runs, and are not
    made again; what was made of an element then is another element's now. ``held``: what the
    thread still has to commit of an earlier closure.
    ``keeps_elements``: elements may have to be given back. ``notes``: what the closure has said of
    the present part, which is known with its decision.
    """

    def __init__(
        self,
        token: StepToken,
        commits: Commits,
        parts_decided: int = 0,
        held: Held | None = None,
        keeps_elements: bool = False,
    ) -> None:
        self.token = token
        self.held = held
        self.keeps_elements = keeps_elements
        self.is_prepared = False
        self.is_of_round = False  # no value changes until it has ended
        self.ran_s = 0.0  # when its function had ended
        self.is_ending = False  # its end is what it is: nobody can cancel it any more
        self.has_taken = self.has_met_end = False  # an element; the end of some
        self.part = self.plain = 0
        self.tickets: list[Ticket] = []
        self.notes: list[Any] = []
        self.noted_bytes = 0  # of earlier parts
        self._commits = commits
        self._parts_decided = parts_decided
        self._changes: dict[int, list[tuple[Header, Any]]] = {}
        self._touched: set[int] = set()
        self._kept: list[tuple[Origin, Any]] = []

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def only_met_end(self, error: BaseException) -> bool:
        """Whether a run that ends with this did nothing but meet the end of its data."""
        is_end = self.has_met_end and isinstance(error, StopIteration | OutOfRangeError)
        return is_end and not self.has_taken and not self.part

    def tell_of_taken(self, error: BaseException) -> None:
        """Adds to an error by which data end inside a step what becomes of what the step took."""
        is_end = self.has_met_end and isinstance(error, StopIteration | OutOfRangeError)
        if is_end and self.has_taken:
            error.add_note(_USED_UP)

    @property
    def was_decided(self) -> bool:
        """Whether the present part was made by an earlier run."""
        return self.plain < self._parts_decided and not self.tickets

    def add(self, ps: int, header: Header, body: Any) -> None:
        """One more change; it rests on all elements taken so far."""
        self._changes.setdefault(ps, []).append((header, body))

    def touch(self, variables: Iterable[int]) -> None:
        """These variables (ids) have changes that wait."""
        self._touched.update(variables)

    def before_read(self, variables: Iterable[int]) -> None:
        """Commits what waits if it would change what is about to be read."""
        self.read_with(variables, {})

    def read_with(self, variables: Iterable[int], pulls: Pulls) -> Answers:
        """The same, with the pulls that this is for; replies to those that went along."""
        if self._touched and not self._touched.isdisjoint(variables):
            return self._commits.commit_part(self, pulls)
        if self.held is not None and not self.held.is_done:
            return self._commits.commit_held(self, pulls)
        return {}

    def before_take(self) -> None:
        """Commits what waits: the next element belongs to the next part."""
        if self._changes:
            self._commits.commit_part(self, {})

    def take(self, ticket: Ticket) -> None:
        """An element was taken."""
        self.tickets.append(ticket)

    def keep(self, origin: Origin, element: Any) -> None:
        """What was taken, and where it can be given back."""
        self._kept.append((origin, element))

    def give_back(self) -> None:
        """Returns all that was kept to its origins; they hand it out again in the old order."""
        for origin, element in reversed(self._kept):
            origin.give_back(element)
        self._kept = []

    def drop_changes(self) -> None:
        """The closure has failed."""
        self._changes, self._touched = {}, set()

    def next_part(self) -> None:
        """The present part was committed."""
        self.part += 1
        self.plain += not self.tickets
        self.tickets, self._changes, self._touched = [], {}, set()
        self.notes = []

    def changes(self) -> dict[int, list[tuple[Header, Any]]]:
        """Changes that wait, in order, by parameter server."""
        return self._changes


def note(value: Any) -> bool:
    """What the closure that this thread runs has to say of what it has done since it said so last.

    It has ended with what it noted, if its trainer is lost, for as much as is committed by then.
    False once it has noted so much that it should end.
    """
    run = current_staging()
    if not isinstance(run, ClosureRun):
        return True
    run.notes.append(value)
    return run.noted_bytes < NOTED_MAX_BYTES


def one_message(
    changes: list[tuple[Header, LateBody | None]],
) -> tuple[list[Header], LateBody | None]:
    """Headers of changes and one body with all their arrays."""
    headers = [header for header, _ in changes]
    bodies = [body for _, body in changes if body is not None]
    if len(bodies) <= 1:
        return headers, bodies[0] if bodies else None
    return headers, LateBody.joined(bodies)

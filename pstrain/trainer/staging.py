"""The uncommitted work of one run of a closure: the elements it took, the changes it staged.

Knows nothing of servers' replies: a committer makes the changes. A *part* is what commits at once:
some elements and the changes staged after them. Invariant: no element is taken while changes are
staged, so a part's changes depend only on its own elements and on earlier parts, and a run that
waits for its turn holds up no other by elements of a later part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pstrain.errors import OutOfRangeError
from pstrain.paramserver.commits import NOTES_MAX_BYTES
from pstrain.paramserver.messages import Header, LateBody
from pstrain.trainer.outgoing import Answers, Pulls
from pstrain.trainer.turns import Ticket
from pstrain.variables.parameters import current_staging
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

NOTED_MAX_BYTES: Final = 2 << 20
"""The limit of a run's notes: servers keep them until it ends, and report them in one header."""

# Running closures may note one part in so many of what servers keep. The rest is for closures whose
# end was decided elsewhere or is held back: if servers have to drop notes, they drop only those of
# closures that have ended.
_RUNNING_SHARE: Final = 4

_NUMBER_BYTES: Final = 20

_USED_UP: Final = (
    "the step had taken elements before it met the end of its trainer's data: those whose changes "
    "are not committed are used up and trained by nobody, and other trainers may have some left; "
    "a step that takes several goes on with fewer by next(iterator, None) for all but the first"
)


@dataclass(slots=True, eq=False)
class PendingPart:
    """A part that waits for its turn. ``result``: None if its closure goes on.

    ``note``: the closure's encoded notes on this part, used if its trainer is lost before its end.
    ``held_s``: since when it is held back with no thread waiting for it, to be committed with the
    thread's next pull; None if a thread waits. ``earlier``: what the thread held back before it.
    """

    run: ClosureRun
    result: pb.ClosureResult | None
    held_s: float | None = None
    note: str | None = None
    is_busy: bool = False
    is_done: bool = False
    error: Exception | None = None
    earlier: PendingPart | None = None

    def waiting(self) -> list[PendingPart]:
        """Returns the parts that the thread still holds back, oldest first; forgets the others.

        For the thread itself: it alone adds to what it holds back.
        """
        part, found = self, [] if self.is_done else [self]
        while (earlier := part.earlier) is not None:
            if earlier.is_done:
                part.earlier = earlier.earlier
            else:
                found.append(part := earlier)
        return found[::-1]


class PartCommitter(Protocol):
    """Commits the changes of a run. Pulls, by server, may go along; returns replies to those."""

    def commit_part(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Commits the current part of a run that goes on."""

    def commit_held(self, run: ClosureRun, pulls: Pulls) -> Answers:
        """Commits what the run's thread held back, if its turn has come."""


class Origin(Protocol):
    """A source of elements, to which they can be given back."""

    def give_back(self, element: Any) -> None:
        """Makes ``element`` the next element again."""


class ClosureRun:
    """One run of a closure, used by the thread that runs it.

    Parts that took no element are numbered among themselves (``plain``), because a run may get
    fewer elements than an earlier one. ``parts_decided``: how many of these were decided in earlier
    runs and are not made again. Parts with elements are, because each run takes other elements.
    ``held``: the end of the thread's earlier closure, still to be committed. ``keeps_elements``:
    elements may have to be given back. ``notes``: those on the current part, which are stored with
    its decision; ``notes_max_bytes`` limits those of the run.
    """

    def __init__(
        self,
        token: StepToken,
        commits: PartCommitter,
        parts_decided: int = 0,
        held: PendingPart | None = None,
        keeps_elements: bool = False,
        notes_max_bytes: int = NOTED_MAX_BYTES,
    ) -> None:
        self.token = token
        self.held = held
        self.keeps_elements = keeps_elements
        self.is_prepared = False
        self.is_of_round = False  # its changes are applied only after its end
        self.ran_s = 0.0  # the time at which its function had ended
        self.is_ending = False  # its end is fixed: it cannot be cancelled any more
        self.has_taken = False  # took an element
        self.ended_resources: set[str] = set()  # iterators whose end it met
        self.part = self.plain = 0
        self.tickets: list[Ticket] = []  # of the elements of the current part
        self.notes: list[Any] = []
        self.noted_bytes = 0  # the encoded size of the notes on earlier parts
        self.notes_max_bytes = notes_max_bytes
        self._commits = commits
        self._parts_decided = parts_decided
        self.changes: dict[int, list[tuple[Header, Any]]] = {}  # staged ones, by server
        self._touched: set[int] = set()
        self._kept: list[tuple[Origin, Any]] = []

    @property
    def has_changes(self) -> bool:
        return bool(self.changes)

    @property
    def changed_bytes(self) -> int:
        """The bytes that the arrays of the staged changes take."""
        bodies = (body for mine in self.changes.values() for _, body in mine)
        return sum(body.room for body in bodies if body is not None)

    def only_met_end(self, error: BaseException) -> bool:
        """True if a run that ends with ``error`` did nothing but meet the end of its data."""
        return self._is_end(error) and not self.has_taken and not self.part

    def explain_taken_elements(self, error: BaseException) -> None:
        """Adds a note to an error if data ended inside a step that had taken elements."""
        if self._is_end(error) and self.has_taken:
            error.add_note(_USED_UP)

    def _is_end(self, error: BaseException) -> bool:
        return bool(self.ended_resources) and isinstance(error, StopIteration | OutOfRangeError)

    @property
    def was_decided(self) -> bool:
        """True if the current part was committed by an earlier run."""
        return self.plain < self._parts_decided and not self.tickets

    def add(self, ps: int, header: Header, body: Any) -> None:
        """Stages a change for server ``ps``; it depends on every element taken so far."""
        self.changes.setdefault(ps, []).append((header, body))

    def touch(self, variables: Iterable[int]) -> None:
        """Marks variables (by id) as having staged changes."""
        self._touched.update(variables)

    def before_read(self, variables: Iterable[int]) -> None:
        """Commits the staged changes if they affect the variables that are about to be read."""
        self.read_with(variables, {})

    def read_with(self, variables: Iterable[int], pulls: Pulls) -> Answers:
        """As :meth:`before_read`, for ``pulls``; returns replies to those that went along."""
        if not self._touched.isdisjoint(variables):
            return self._commits.commit_part(self, pulls)
        if self.held is not None and self.held.waiting():
            return self._commits.commit_held(self, pulls)
        return {}

    def before_take(self) -> None:
        """Commits the staged changes: the next element belongs to the next part."""
        if self.changes:
            self._commits.commit_part(self, {})

    def keep(self, origin: Origin, element: Any) -> None:
        """Keeps an element that was taken, to be given back to ``origin``."""
        self._kept.append((origin, element))

    def give_back(self) -> None:
        """Gives kept elements back to their origins, which hand them out again in order."""
        for origin, element in reversed(self._kept):
            origin.give_back(element)
        self._kept = []

    def drop_changes(self) -> None:
        """Drops the staged changes, because the closure failed or was cancelled."""
        self.changes, self._touched = {}, set()

    def next_part(self) -> None:
        """Begins the next part, because the current one was committed."""
        self.part += 1
        self.plain += not self.tickets
        self.tickets, self.changes, self._touched = [], {}, set()
        self.notes = []


def note(value: Any) -> bool:
    """Notes, for the closure that this thread runs, the result of what it did since its last note.

    If its trainer is lost, the closure ends with the notes on the parts that were committed.
    Returns False if there is no room for this note: nothing is noted, and the closure has to end,
    so that its own result covers what it did.
    """
    run = current_staging()
    if not isinstance(run, ClosureRun):
        return True
    size = sum(map(_encoded_bytes, [*run.notes, value]))
    if run.noted_bytes + size > run.notes_max_bytes:
        return False
    run.notes.append(value)
    return True


def notes_max_bytes(closures: int) -> int:
    """Returns the limit of each run's notes on a trainer that runs so many closures at a time."""
    return min(NOTED_MAX_BYTES, NOTES_MAX_BYTES // (_RUNNING_SHARE * closures))


def _encoded_bytes(value: Any) -> int:
    """Returns about how many bytes a noted value takes in a message, if nothing is compressed."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return sum(map(_encoded_bytes, value))
    size = len(value) if isinstance(value, bytes | str) else getattr(value, "nbytes", 0)
    return _NUMBER_BYTES + size * 4 // 3


def one_message(
    changes: list[tuple[Header, LateBody | None]],
) -> tuple[list[Header], LateBody | None]:
    """Returns the headers of changes, and one body with all their arrays."""
    headers = [header for header, _ in changes]
    bodies = [body for _, body in changes if body is not None]
    if len(bodies) <= 1:
        return headers, bodies[0] if bodies else None
    return headers, LateBody.joined(bodies)

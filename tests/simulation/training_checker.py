"""What must hold of training after every step, whatever fails.

Changes carry tags: of a closure's part, or of the row that it was made from. I7: a tag changes a
server at most once; at the end of a closure, once at each of its servers; of one that was
cancelled, never. I8: at a barrier, and at
the end, a tag has changed all of its servers or none, so that what is saved then is one version.
I1: a row is used up only by what was applied, or by the end of a closure that was heard; at the
end each row was used once. A closure that is bound to a trainer runs on no other. I10: after the
last fault the data come to their end. I12: a closure reads what it has changed, and what its
thread had held back of an earlier one and commits before it reads. I13: what servers refuse fails
the closure that wanted it, and none that would commit with it. I14: a closure runs only when all
its inputs have values. I16: of parts that a closure notes, each that counts is reported, once,
whether the closure has ended or its trainer was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.recovery import Noted, _decoded
from pstrain.errors import ClosureInputError, InvalidArgumentError
from tests.simulation.shadow import Violation
from tests.simulation.world import STAGE

Tag = tuple[Any, ...]

REFUSED = "refused"
"""Begins the tag of a change that servers refuse."""


class TrainingChecker:
    """Counts what servers apply, what coordinators hear and which rows are used up."""

    def __init__(self, seed: int, servers: int) -> None:
        self._seed, self._servers = seed, servers
        self._places: dict[Tag, tuple[int, ...]] = {}  # asked often, and new dice take long
        self.applied: Counter[tuple[Tag, int]] = Counter()
        self.heard: Counter[int] = Counter()
        self._spent: Counter[int] = Counter()
        self.trained: Counter[int] = Counter()
        self._counts_reports = True
        self._prepared: dict[Tag, set[int]] = {}
        self._promised: set[int] = set()
        self._stranded: set[int] = set()  # taken by runs that failed for want of a server
        self.finished: dict[int, tuple[Tag, ...]] = {}
        self.unfinished: dict[int, tuple[Tag, ...]] = {}
        self._changed: dict[Any, set[Tag]] = {}
        self._taken: dict[tuple[int, int], list[int]] = {}
        self._cancelled: set[int] = set()
        self._inputs: dict[int, tuple[Any, ...]] = {}
        self._inside: Violation | None = None  # the first that failed its closure
        self.bound: dict[int, str] = {}  # trainers of closures that only they may run

    def places(self, tag: Tag) -> tuple[int, ...]:
        """The servers that a change with this tag concerns: the same in each run."""
        if tag not in self._places:
            dice = Random(f"{self._seed} {tag}")
            count = dice.choice((1, self._servers, self._servers))
            self._places[tag] = tuple(sorted(dice.sample(range(self._servers), count)))
        return self._places[tag]

    def runs(self, closure: int, trainer: str) -> None:
        """A trainer has begun with a closure."""
        if self.bound.get(closure, trainer) != trainer:
            raise self._seen_inside(f"bound: closure {closure} runs on {trainer}")
        for value in self._inputs.get(closure, ()):
            if not value.has_value:
                raise self._seen_inside(f"I14: closure {closure} runs without {value}")

    def needs(self, closure: int, inputs: Iterable[Any]) -> None:
        """It must not run before these have values."""
        self._inputs[closure] = tuple(inputs)

    def takes(self, run: Any, row: int) -> None:
        """A run of a closure has got a row."""
        taken = self._taken.setdefault((run.closure, run.attempt), [])
        if row not in taken:
            taken.append(row)

    def named(self, run: Any) -> InvalidArgumentError:
        """What was refused says which rows of a run nothing has come of."""
        if not any(tag[0] == REFUSED for tag in self.changed_by(run)):
            raise self._seen_inside(f"I13: {run} fails by what another closure has changed")
        return InvalidArgumentError(self.rows_left(run))

    def rows_left(self, run: Any) -> str:
        """Rows of a run that nothing has come of, as errors say them."""
        taken = self._taken.get((run.closure, run.attempt), ())
        left = [str(row) for row in taken if not self.is_applied(("row", row))]
        return "rows:" + ",".join(left)

    def changes(self, run: Any, tag: Tag) -> None:
        """A run of a closure wants to make a change."""
        self._changed.setdefault(run, set()).add(tag)

    def changed_by(self, run: Any) -> set[Tag]:
        """So far."""
        return set(self._changed.get(run, ()))

    def sees(self, counts: Iterable[int], tags: set[Tag]) -> None:
        """A closure has read after so many changes of each server; it has to see these."""
        for ps, count in enumerate(counts):
            seen = STAGE.world.servers[ps].store.made[: int(count)]
            missed = [tag for tag in tags if ps in self.places(tag) and tag not in seen]
            if missed and not STAGE.world.loses_servers:
                text = f"I12: {missed} of its own thread is not seen on server {ps}"
                raise self._seen_inside(text)

    def _seen_inside(self, text: str) -> Violation:
        self._inside = self._inside or Violation(text)
        return self._inside

    def cancelled(self, closure: int) -> None:
        """Its program was told that nothing of it is or will be applied."""
        self._cancelled.add(closure)
        if not _is_going_back():
            self._check_all_cancelled()

    def _check_all_cancelled(self) -> None:
        for tag, ps in list(self.applied):
            self._check_not_cancelled(ps, tag)

    def _check_not_cancelled(self, ps: int, tag: Tag) -> None:
        if tag[0] == "closure" and tag[1] in self._cancelled and self.applied[tag, ps]:
            raise Violation(f"I7: {tag} changes server {ps}, but its closure was cancelled")

    def apply(self, ps: int, tag: Tag) -> None:
        """A server makes a change."""
        self.applied[tag, ps] += 1
        if not _is_going_back():
            self._check_not_cancelled(ps, tag)
        if self.applied[tag, ps] > 1:
            raise Violation(f"I7: {tag} changes server {ps} again")
        if ps not in self.places(tag):
            raise Violation(f"I7: {tag} changes server {ps}, but is of {self.places(tag)}")

    def is_applied(self, tag: Tag) -> bool:
        """Anywhere."""
        return any(self.applied[tag, ps] for ps in self.places(tag))

    def hear(self, value: Any, error: BaseException | None) -> None:
        """A closure has ended as far as its program can see."""
        kind, rows = _rows_of(value, error)
        if kind == "trained":
            self.trained.update(rows)
            for row in rows:
                if not self.is_applied(("row", row)) and row not in self._promised:
                    raise Violation(f"I7: row {row} counts as trained, but changed nothing")
        else:
            self.heard.update(rows)

    def spend(self, error: BaseException | None) -> None:
        """A run that was cancelled has ended: so have the rows that it took."""
        self._spent.update(_rows_of(None, error)[1])

    def answered(self, request: dict[str, Any]) -> None:
        """A server has done what was asked: what is decided somewhere will be done and heard."""
        if request["kind"] == "apply_round":
            for trainer, part in request["parts"]:
                self._promised |= self._prepared.pop((trainer, *part), set())
        key = (request.get("trainer"), *request.get("key", ()))
        if request["kind"] == "prepare":
            tags = (change["tag"] for change in request["changes"])
            self._prepared.setdefault(key, set()).update(tag[1] for tag in tags if tag[0] == "row")
        if request["kind"] == "abort":
            self._prepared.pop(key, None)
        if request["kind"] == "decide":
            self._promised |= self._prepared.pop(key, set())
            for closure, attempt, _, outcome, *_ in request["entries"]:
                if outcome is not None:
                    value, error = _decoded(outcome)
                    self._promised.update(_rows_of(value, error)[1])
                    if error is not None and is_server_loss(error):
                        self._stranded.update(self._taken.get((closure, attempt), ()))

    def use_up(self, rows: Iterable[int]) -> None:
        """The data service learns that these rows are used up."""
        for row in rows:
            known = self.heard[row] or self._spent[row] or row in self._promised | self._stranded
            if not known and not self.is_applied(("row", row)):
                text = f"I1: row {row} is used up, but nothing came of it"
                raise self._inside or Violation(text)

    # Going back to a checkpoint

    def books(self) -> dict[str, Any]:
        """All that has happened, as values that say nothing of servers or trainers."""
        names = ("applied", "heard", "_spent", "trained", "_promised", "finished", "unfinished")
        return {name: getattr(self, name) for name in names}

    def rows_used(self) -> set[int]:
        """By what is in the books."""
        applied = (row for tag, _ in self.applied if tag[0] == "row" for row in tag[1:])
        return {*applied, *self.heard, *self._spent}

    def go_back(self, books: dict[str, Any], *, is_told: bool) -> None:
        """What was applied since is undone; where the program ``is_told``, what it heard too.

        Where it is not, closures that it heard of run again, and may train other rows then.
        """
        self._stranded.clear()
        told = ("heard", "trained", "finished", "unfinished")
        for name, value in books.items():
            if is_told or name not in told:
                setattr(self, name, value)
        self._counts_reports = self._counts_reports and is_told
        self._check_all_cancelled()

    def barrier(self) -> None:
        """No closure runs or waits: this is what a checkpoint would save."""
        self.saved()
        for closure, tags in self.finished.items():
            self._check_once(closure, tags)

    def saved(self) -> None:
        """No closure runs: this is one version of all servers."""
        for tag in {tag for tag, _ in self.applied}:
            self._check_whole(tag)

    def over(self, rows: Iterable[int]) -> None:
        """All is over."""
        self.barrier()
        for closure, tags in self.unfinished.items():
            if any(self.is_applied(tag) for tag in tags):
                raise Violation(
                    f"I7: closure {closure} failed or was cancelled, but changed {tags}"
                )
        for row in rows:
            count = self.heard[row] + self._spent[row] + self.is_applied(("row", row))
            if count != 1:
                raise Violation(f"I1: row {row} was used {count} times")
            if self.trained[row] > 1 and self._counts_reports:
                raise Violation(f"I1: row {row} was reported {self.trained[row]} times")
            if self.is_applied(("fitted", row)) and self._counts_reports and not self.trained[row]:
                raise Violation(f"I16: row {row} was trained, but nobody was told")

    def _check_whole(self, tag: Tag) -> None:
        counts = [self.applied[tag, ps] for ps in self.places(tag)]
        if min(counts) != max(counts):
            raise Violation(f"I8: {tag} is at some of {self.places(tag)} only: {counts}")

    def _check_once(self, closure: int, tags: tuple[Tag, ...]) -> None:
        for tag in tags:
            if not all(self.applied[tag, ps] for ps in self.places(tag)):
                raise Violation(f"I7: closure {closure} is finished, but {tag} was not applied")


def _is_going_back() -> bool:
    """What is applied meanwhile is about to be undone."""
    return bool(STAGE.world.coordinator.recovery.is_restoring)


def _rows_of(value: Any, error: BaseException | None) -> tuple[str, list[int]]:
    if isinstance(error, ClosureInputError):
        return "", []  # it has not run; its message is that of its input
    if error is not None:
        _, found, rows = str(error).partition("rows:")
        return "failed", [int(row) for row in rows.split(",") if row] if found else []
    if isinstance(value, Noted):
        return "trained", [row for rows in value.notes for row in rows]
    if isinstance(value, tuple) and len(value) == 2:
        return value[0], value[1]
    return "", []

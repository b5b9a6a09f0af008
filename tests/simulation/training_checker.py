"""Checks training after every step, whatever fails.

Changes carry tags, which name the part of a closure, or the row that they were made from. I1: a row
is used up only by applied changes, or by a closure's end that the program has heard of; at the end
each row was used once. I7: a tag changes a server at most once; when a closure is finished, each of
its tags has changed each of its servers once; the tags of a cancelled closure change nothing. I8:
at a barrier, and at the end, a tag has changed all of its servers or none, so that what is saved
then is one version. I10: after the last fault training reaches the end of its data. I12: a closure
reads its own changes, and those that its thread had held back of an earlier closure and decides
before it reads, on the server that decided, or on all if it runs alone. I13: a change that servers
refuse fails the closure that wanted it, and none that would have committed with it. I14: a closure
runs only when all its inputs have values. I16: of the parts that a closure notes, each that counts
is reported once, whether the closure has ended or its trainer was lost. A closure that is bound to
a trainer runs on no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.lost_trainers import LostRunNotes, _decoded
from pstrain.errors import ClosureInputError, InvalidArgumentError
from tests.simulation.shadow import Violation
from tests.simulation.world import STAGE

Tag = tuple[Any, ...]

REFUSED = "refused"
"""The first item of the tag of a change that servers refuse."""


class TrainingChecker:
    """Counts what servers apply, what the program hears and which rows are used up."""

    def __init__(self, seed: int, servers: int) -> None:
        self._seed, self._servers = seed, servers
        self._places: dict[Tag, tuple[int, ...]] = {}  # a cache, as new generators are slow
        self.applied: Counter[tuple[Tag, int]] = Counter()
        self.heard: Counter[int] = Counter()
        self._spent: Counter[int] = Counter()
        self.trained: Counter[int] = Counter()
        self._counts_reports = True
        self._prepared: dict[Tag, set[int]] = {}
        self._homes: dict[tuple[int, int], int] = {}  # which server decided the end of a run
        self._promised: set[int] = set()
        self._stranded: set[int] = set()  # rows taken by runs that failed for a lost server
        self.finished: dict[int, tuple[Tag, ...]] = {}
        self.unfinished: dict[int, tuple[Tag, ...]] = {}
        self._changed: dict[Any, set[Tag]] = {}
        self._taken: dict[tuple[int, int], list[int]] = {}
        self._cancelled: set[int] = set()
        self._inputs: dict[int, tuple[Any, ...]] = {}
        self._inside: Violation | None = None  # the first one raised inside a closure
        self.bound: dict[int, str] = {}  # the trainer of each closure that is bound to one

    def places(self, tag: Tag) -> tuple[int, ...]:
        """Returns the servers that a change with this tag concerns, the same in each run."""
        if tag not in self._places:
            dice = Random(f"{self._seed} {tag}")
            count = dice.choice((1, self._servers, self._servers))
            self._places[tag] = tuple(sorted(dice.sample(range(self._servers), count)))
        return self._places[tag]

    def runs(self, closure: int, trainer: str) -> None:
        """Called when a trainer has begun to run a closure."""
        if self.bound.get(closure, trainer) != trainer:
            raise self._seen_inside(f"bound: closure {closure} runs on {trainer}")
        for value in self._inputs.get(closure, ()):
            if not value.has_value:
                raise self._seen_inside(f"I14: closure {closure} runs without {value}")

    def needs(self, closure: int, inputs: Iterable[Any]) -> None:
        """Notes that a closure must not run before these inputs have values."""
        self._inputs[closure] = tuple(inputs)

    def takes(self, run: Any, row: int) -> None:
        """Called when a run of a closure has got a row."""
        taken = self._taken.setdefault((run.closure, run.attempt), [])
        if row not in taken:
            taken.append(row)

    def named(self, run: Any) -> InvalidArgumentError:
        """Returns the error of a refused run, with the rows from which nothing was applied."""
        if not any(tag[0] == REFUSED for tag in self._changed_by(run)):
            raise self._seen_inside(f"I13: {run} fails by what another closure has changed")
        return InvalidArgumentError(self.rows_left(run))

    def rows_left(self, run: Any) -> str:
        """Returns the rows of a run from which nothing was applied, in the form that errors use."""
        taken = self._taken.get((run.closure, run.attempt), ())
        left = [str(row) for row in taken if not self.is_applied(("row", row))]
        return "rows:" + ",".join(left)

    def changes(self, run: Any, tag: Tag) -> None:
        """Called when a run of a closure stages a change."""
        self._changed.setdefault(run, set()).add(tag)

    def _changed_by(self, run: Any) -> set[Tag]:
        """Returns the tags of the changes that a run has staged so far."""
        return set(self._changed.get(run, ()))

    def sees(self, counts: Iterable[int], own: Any, held: Any) -> None:
        """Checks that a read, made after so many changes on each server, saw what it must.

        That is what its run `own` has changed, and what the run `held`, if any, has changed: on the
        server that decided it if a trainer runs several closures side by side, or on all.
        """
        home = held and self._homes[held.closure, held.attempt]
        is_alone = STAGE.world.coordinator.closures_in_flight == 1
        for ps, count in enumerate(counts):
            seen = STAGE.world.servers[ps].store.made[: int(count)]
            is_due = held is not None and (is_alone or ps == home)
            tags = self._changed_by(own) | (self._changed_by(held) if is_due else set())
            missed = [tag for tag in tags if ps in self.places(tag) and tag not in seen]
            if missed and not STAGE.world.loses_servers:
                text = f"I12: {missed} of its own thread is not seen on server {ps}"
                raise self._seen_inside(text)

    def _seen_inside(self, text: str) -> Violation:
        self._inside = self._inside or Violation(text)
        return self._inside

    def cancelled(self, closure: int) -> None:
        """Called when the program was told that nothing of a closure is or will be applied."""
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
        """Called when a server makes a change."""
        self.applied[tag, ps] += 1
        if not _is_going_back():
            self._check_not_cancelled(ps, tag)
        if self.applied[tag, ps] > 1:
            raise Violation(f"I7: {tag} changes server {ps} again")
        if ps not in self.places(tag):
            raise Violation(f"I7: {tag} changes server {ps}, but is of {self.places(tag)}")

    def is_applied(self, tag: Tag) -> bool:
        """True if a change with this tag was made on any server."""
        return any(self.applied[tag, ps] for ps in self.places(tag))

    def hear(self, value: Any, error: BaseException | None) -> None:
        """Called when the program can see that a closure has ended."""
        kind, rows = _rows_of(value, error)
        if kind == "trained":
            self.trained.update(rows)
            for row in rows:
                if not self.is_applied(("row", row)) and row not in self._promised:
                    raise Violation(f"I7: row {row} counts as trained, but changed nothing")
        else:
            self.heard.update(rows)

    def spend(self, error: BaseException | None) -> None:
        """Called when a cancelled run has ended, which uses up the rows that its error names."""
        self._spent.update(_rows_of(None, error)[1])

    def answered(self, server: int, request: dict[str, Any]) -> None:
        """Called when a server has served a request; notes the rows of parts that are decided.

        A part that is decided on any server will be applied, and its outcome will be heard.
        """
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
                    self._homes[closure, attempt] = server
                    value, error = _decoded(outcome)
                    self._promised.update(_rows_of(value, error)[1])
                    if error is not None and is_server_loss(error):
                        self._stranded.update(self._taken.get((closure, attempt), ()))

    def use_up(self, rows: Iterable[int]) -> None:
        """Called when the data service learns that these rows are used up."""
        for row in rows:
            known = self.heard[row] or self._spent[row] or row in self._promised | self._stranded
            if not known and not self.is_applied(("row", row)):
                text = f"I1: row {row} is used up, but nothing came of it"
                raise self._inside or Violation(text)

    # Going back to a checkpoint

    def books(self) -> dict[str, Any]:
        """Returns what has happened, as values that a checkpoint can hold."""
        names = ("applied", "heard", "_spent", "trained", "_promised", "finished", "unfinished")
        return {name: getattr(self, name) for name in names}

    def rows_used(self) -> set[int]:
        """Returns the rows that are used up according to the books."""
        applied = (row for tag, _ in self.applied if tag[0] == "row" for row in tag[1:])
        return {*applied, *self.heard, *self._spent}

    def go_back(self, books: dict[str, Any], *, is_told: bool) -> None:
        """Restores the books of a checkpoint; if the program ``is_told``, also what it has heard.

        If it is not told, closures of which it has heard run again, and may then train other rows.
        """
        self._stranded.clear()
        told = ("heard", "trained", "finished", "unfinished")
        for name, value in books.items():
            if is_told or name not in told:
                setattr(self, name, value)
        self._counts_reports = self._counts_reports and is_told
        self._check_all_cancelled()

    def barrier(self) -> None:
        """Checks a barrier, when no closure runs or waits, as what a checkpoint would save."""
        self.saved()
        for closure, tags in self.finished.items():
            self._check_once(closure, tags)

    def saved(self) -> None:
        """Checks, when no closure runs, that all servers hold one version."""
        for tag in {tag for tag, _ in self.applied}:
            self._check_whole(tag)

    def over(self, rows: Iterable[int]) -> None:
        """Checks the final state; `rows` are those that make elements."""
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
    """True during a restore, which undoes what is applied meanwhile."""
    return bool(STAGE.world.coordinator.recovery.is_restoring)


def _rows_of(value: Any, error: BaseException | None) -> tuple[str, list[int]]:
    if isinstance(error, ClosureInputError):
        return "", []  # the closure has not run; the message is that of its failed input
    if error is not None:
        _, found, rows = str(error).partition("rows:")
        return "failed", [int(row) for row in rows.split(",") if row] if found else []
    if isinstance(value, LostRunNotes):
        return "trained", [row for rows in value.notes for row in rows]
    if isinstance(value, tuple) and len(value) == 2:
        return value[0], value[1]
    return "", []

"""The scheduler's part in restores: runs closures again that ended since the checkpoint.

Knows neither files nor servers. Invariant: no closure starts while trainers are being disconnected,
and a kept closure runs again at most once for each restore.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping

from pstrain.coordinator import decide, rounds
from pstrain.coordinator import events as ev
from pstrain.coordinator.core import KEPT_MAX, Core
from pstrain.coordinator.waits import Waits
from pstrain.errors import UnavailableError


class Rollback:
    """One scheduler's part in restores. Thread-safe; only methods named ``wait_*`` block."""

    def __init__(self, core: Core, waits: Waits) -> None:
        self._core = core
        self._waits = waits
        self._rerunning: set[int] = set()

    def keep_ended(self) -> None:
        """Keeps closures that end from now on, for :meth:`requeue`."""
        with self._core.changed:
            self._core.kept = {}

    def keep_none(self) -> None:
        """Keeps no closures from now on, and drops those that were kept."""
        with self._core.changed:
            self._core.kept = None

    def finished_count(self) -> int:
        """Returns how many closures have finished so far."""
        with self._core.changed:
            return self._core.state.finished_count

    def forget(self, count: int) -> None:
        """Drops the first ``count`` closures that finished: they will not run again."""
        core = self._core
        with core.changed:
            if core.kept is not None:
                core.kept = {number: c for number, c in core.kept.items() if number > count}

    def parts(self) -> dict[int, int]:
        """Returns, by closure not ended, how many of its parts without elements are committed."""
        with self._core.changed:
            return dict(self._core.state.parts)

    def hold(self) -> None:
        """Holds scheduling until :meth:`resume`, before trainers are disconnected."""
        core = self._core
        with core.changed:
            core.rolling_back = True
            core.apply(decide.hold())
            core.apply(decide.await_trainers(core.state))
            core.changed.notify_all()

    def wait_disconnected(self, timeout_s: float) -> None:
        """Blocks until no trainer is connected and what each left behind is settled."""
        with self._core.changed:
            deadline_s = time.monotonic() + timeout_s
            self._waits.note_no_trainers()
            self._waits.until(
                lambda: not self._core.state.trainers, deadline_s, "trainers to let go"
            )

    def undo_round(self) -> None:
        """Undoes the round that was being applied; its closures wait again."""
        core = self._core
        with core.changed:
            core.apply(rounds.undo_round(core.state))
            core.changed.notify_all()

    def requeue(self, parts: Mapping[int, int]) -> int:
        """Queues all kept closures again; returns how many. UnavailableError if they are too many.

        ``parts``: by closure, how many of its parts without elements the checkpoint contains.
        """
        core = self._core
        with core.changed:
            kept, core.kept = core.kept or {}, {}
            if len(kept) >= KEPT_MAX:
                raise UnavailableError(
                    f"more than {KEPT_MAX:,} closures have ended since the last checkpoint, so "
                    "they cannot be run again: start the program again from that checkpoint, and "
                    "save more often"
                )
            again = {closure.id: closure for closure in kept.values()}
            core.closures = OrderedDict(sorted({**again, **core.closures}.items()))
            self._rerunning |= again.keys()
            ended = [
                ev.ClosureReopened(
                    closure=c.id,
                    round=c.round,
                    trainer=c.trainer,
                    priority=c.priority,
                    iterators=c.iterators,
                )
                for c in again.values()
            ]
            core.apply(decide.reopen(core.state, ended, parts))
            return len(again)

    def give_up(self, error: Exception) -> int:
        """Ends all closures with ``error``; returns how many.

        The next call that schedules or waits raises ``error``, and no closure starts before.
        """
        core = self._core
        with core.changed:
            count = len(core.closures)
            core.given_up = error
            core.apply(decide.give_up(core.state))
            core.errors = [error]
            core.changed.notify_all()
            return count

    def check_goes_on(self) -> None:
        """Raises the error of :meth:`give_up`, as long as the program does not know of it."""
        with self._core.changed:
            if self._core.given_up is not None:
                raise self._core.given_up.with_traceback(None)

    def forget_given_up(self) -> None:
        """Continues scheduling after :meth:`give_up`, as the program knows of the error."""
        core = self._core
        with core.changed:
            if core.given_up is not None:
                core.given_up, core.errors = None, []
                core.apply(decide.report_errors(core.state))
                core.make_progress()

    def resume(self) -> None:
        """Undoes :meth:`hold`: trainers may come back."""
        core = self._core
        with core.changed:
            core.rolling_back = False
            self._waits.note_joining()
            core.apply(decide.resume(core.state))
            core.make_progress()

    def wait_rerun(self, timeout_s: float) -> None:
        """Blocks until all closures that :meth:`requeue` queued have ended again."""
        with self._core.changed:
            if self._has_rerun():
                return
            deadline_s = time.monotonic() + timeout_s
            what = "closures to run again after a restore"
            self._waits.until(self._has_rerun, deadline_s, what)

    def stop(self, error: Exception) -> None:
        """Ends everything for good, because the restore failed with ``error``."""
        self._core.stop(error)

    def _has_rerun(self) -> bool:
        self._rerunning &= self._core.closures.keys()
        return not self._rerunning

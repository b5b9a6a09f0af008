"""The restore after the loss of a parameter server: everything returns to the last checkpoint.

What the lost server held is gone, and the other servers are ahead of any copy of it. So all
servers, the data position and the record of closures return to the last checkpoint together, in a
new session, which fences everything that still acts for the old one. Closures that ended since the
checkpoint run again, or all are given up if the program itself goes back. Decides when and in which
order; does not know how values, closures and streams are moved back. Invariant: no closure runs and
nothing is saved while a restore is under way; another loss makes it start over, and a restore that
fails ends the scheduling with an error that says why.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from pstrain.checkpoints.manager import CheckpointManager
from pstrain.checkpoints.saving import end_save
from pstrain.coordinator.lost_servers import LostServers, is_server_loss
from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.rollback import Rollback
from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    RolledBackError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.variables.names import key_of

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_LEAVE_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 5.0
_TRIES_MAX: Final = 10
_NAMED_MAX: Final = 10

_BEGIN_ANEW: Final = (
    "if a parameter server is lost they begin anew, at their first values or, where these were "
    "more than 64 KiB, at 0; give the Checkpoint all that training needs"
)


class _Moment(NamedTuple):
    """A moment: counts of closures that had ended and of iterators made, and committed parts.

    ``parts``: of closures that had not ended, how many parts without elements were committed.
    """

    closures: int
    iterators: int
    parts: Mapping[int, int]


class Restorer:
    """Restores lost servers, in a thread that it owns from ``start`` to ``stop``.

    Returns to the checkpoint that its Checkpoint saved or restored last, not to another one in the
    folder: that may be of another program, even if its number is higher. Closures that ended before
    it do not run again. ``leave`` disconnects all trainers from the session. ``gives_up``: no
    closure runs again; all that have not ended end with RolledBackError, because the program goes
    back. ``newest``: the checkpoint that equals the present state, if any.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        strategy: ParameterServerStrategy,
        work: Rollback,
        iterators: IteratorsInUse,
        leave: Callable[[], None],
        *,
        gives_up: bool = False,
        newest: str | None = None,
    ) -> None:
        self._manager = manager
        self._has_warned = False
        self._gives_up = gives_up
        self._strategy = strategy
        self._work = work
        self._iterators = iterators
        self._leave = leave
        self._newest = newest
        self._moment = _Moment(closures=-1, iterators=0, parts={})
        self._lost_servers = LostServers(strategy)
        self._noticed = threading.Event()
        self._stopping = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._changed = threading.Condition()
        self.restores = 0
        self._thread = threading.Thread(target=self._run, name="restorer", daemon=True)

    def start(self) -> None:
        self._manager.checkpoint.follow(self)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, waiting a bounded time for it. Idempotent."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        self._noticed.set()
        self._open.set()
        if self in self._manager.checkpoint.followers:
            self._manager.checkpoint.unfollow(self)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_TIMEOUT_S)

    # -- called by trainers' links and by readers

    @property
    def is_restoring(self) -> bool:
        return not self._open.is_set()

    def wait_while_restoring(self) -> None:
        """Blocks while a restore is under way, which ends or fails, so the wait is bounded."""
        self._open.wait()

    def wait_restoring(self, timeout_s: float) -> bool:
        """Blocks until a restore is under way; False if none begins, as after :meth:`stop`."""
        with self._changed:
            restores = self.restores

            def has_begun() -> bool:
                return self.is_restoring or self.restores > restores

            self._changed.wait_for(lambda: has_begun() or self._stopping.is_set(), timeout_s)
            return has_begun()

    def wait_restored(self, error: Exception) -> bool:
        """Waits until the loss behind ``error`` is restored; False if it was not a lost server."""
        with self._changed:
            restores = self.restores
            if not self.is_restoring and not self.notice(error):
                return False
            # Bounded, because the thread ends if a restore fails.
            while self.restores == restores and self._thread.is_alive():
                self._changed.wait(_LOOK_EVERY_S)
            return self.restores > restores

    def wait_caught_up(self, timeout_s: float) -> None:
        """Blocks until a restore is over and the closures that had ended have run again.

        Values then contain the changes of every closure whose end the program was told. Returns at
        once in the restorer's own thread.
        """
        if self._thread is threading.current_thread():
            return
        if not self._open.wait(timeout_s):
            raise DeadlineExceededError(
                "a parameter server was lost, and for more than "
                f"{timeout_s:g} s everything has been going back to the last checkpoint: values "
                "can be read when that is over; start the lost server again if it is not there yet"
            )
        self._work.wait_rerun(timeout_s)

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        """Ends restoring for good; False if one is under way, or was done, as `is_behind` says."""
        with self._changed:
            if self.is_restoring or is_behind():
                return False
            self._stopping.set()
            self._changed.notify_all()
            return True

    def notice(self, error: Exception) -> bool:
        """Notes an error; True if it means a lost server, which the restorer then looks into."""
        if not is_server_loss(error) or self._stopping.is_set():
            return False
        self._noticed.set()
        return True

    def saved_by(self, manager: CheckpointManager) -> str | None:
        """Returns the newest checkpoint of ``manager`` if no closure has ended since, else None."""
        is_mine = self._manager is manager and self._work.finished_count() == self._moment.closures
        return self._newest if is_mine else None

    # -- called by the checkpoint

    def mark_moment(self) -> _Moment:
        """Returns the moment of a save; ServerLostError while a restore is under way."""
        if self.is_restoring:
            raise ServerLostError(
                "nothing can be saved while everything goes back to the last checkpoint, because a "
                "parameter server was lost; save again when that is over"
            )
        return _Moment(
            self._work.finished_count(), self._iterators.made_count(), self._work.parts()
        )

    def committed(self, moment: _Moment, path: str) -> None:
        """Notes that the save of the moment ``moment`` is complete, at ``path``."""
        self._work.forget(moment.closures)
        self._newest, self._moment = path, moment
        if not self._has_warned and (names := self._left_out()):
            self._has_warned = True
            logger.warning("%s are not in the checkpoint: %s", _named(names), _BEGIN_ANEW)

    def restored(self, path: str) -> None:
        """Notes that the program itself has restored a checkpoint."""
        if not self.is_restoring:
            self.committed(self.mark_moment(), path)

    # -- the thread

    def _run(self) -> None:
        with contextlib.closing(self._lost_servers):
            self._watch()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._noticed.wait(_LOOK_EVERY_S)
            noticed = self._noticed.is_set()
            self._noticed.clear()
            if self._stopping.is_set():
                return
            try:
                lost = self._lost_servers.find(noticed)
                if lost is not None:
                    self._restore(lost)
            except Exception as error:
                self._give_up(error)
                return

    def _restore(self, reason: str) -> None:
        logger.warning("%s: going back to the last checkpoint", reason)
        with self._changed:
            if self._stopping.is_set():
                return
            self._open.clear()
            self._changed.notify_all()
        self._work.hold()
        try:
            self._leave()
            self._work.wait_disconnected(_LEAVE_TIMEOUT_S)
            # A save that waits for the round to be applied would wait for the lost server.
            self._work.undo_round()
            end_save(self._manager.wait)
            with self._manager.checkpoint.alone():
                # Inside the scope, where no save can make another checkpoint the newest.
                path = self._checkpoint(reason)
                self._go_back(path)
                count = self._end_old_work(f"{reason}: everything is back at {path}")
        except BaseException:
            self._work.resume()
            raise
        self._noticed.clear()
        self._open.set()
        self._work.resume()
        with self._changed:
            self.restores += 1
            self._changed.notify_all()
        logger.warning(
            "%s: all servers and the data are back at %s; %d closures %s",
            reason, path, count,
            "were given up" if self._gives_up else "that had ended since are run again",
        )  # fmt: skip
        if names := self._left_out():
            logger.warning("%s were not in the checkpoint and have started over", _named(names))

    def _checkpoint(self, reason: str) -> str:
        if self._newest is None:
            raise UnavailableError(
                f"{reason}, and there is no checkpoint yet to go back to: start the server and "
                "the program again, and save a checkpoint before training begins"
            )
        return self._newest

    def _go_back(self, path: str) -> None:
        """Restores all from the checkpoint; starts over if a server is lost meanwhile."""
        for tries in itertools.count(1):
            try:
                self._strategy.begin_anew()
                self._lost_servers.forget()
                self._manager.checkpoint.restore(
                    path, with_attached=True, keeps_rates=not self._gives_up
                )
                self._iterators.rewind_since(self._moment.iterators)
                return
            except (ServerLostError, ServerRestartedError) as error:
                if tries == _TRIES_MAX or self._stopping.is_set():
                    raise
                logger.warning("%s: going back to %s once more", error, path)

    def _left_out(self) -> list[str]:
        """Returns the names of variables that the checkpoints do not hold, so they begin anew."""
        if self._gives_up:
            return []  # what makes up a fit's progress, such as metrics, is restored along with it
        held = self._manager.checkpoint.holds()
        return [each.name for each in self._strategy.variables if key_of(each) not in held]

    def _end_old_work(self, why: str) -> int:
        if self._gives_up:
            return self._work.give_up(RolledBackError(why))
        return self._work.requeue(self._moment.parts)

    def _give_up(self, error: Exception) -> None:
        logger.error("parameter servers could not be restored: %s", error)
        if not isinstance(error, UnavailableError | AbortedError):
            error = UnavailableError(f"parameter servers could not be restored: {error}")
        self._work.stop(error)
        self._open.set()
        with self._changed:
            self._changed.notify_all()


def _named(names: Sequence[str]) -> str:
    """Names the first few of ``names``."""
    named = ", ".join(map(repr, names[:_NAMED_MAX]))
    return f"variables {named}" + (" and others" if len(names) > _NAMED_MAX else "")

"""The recovery of a coordinator from lost parameter servers, for its program and its links.

Chooses the current restorer; must not know how it restores. Invariant: there is at most one
restorer at a time, and one has ended when the next begins.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pstrain.checkpoints.manager import CheckpointManager
from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.restoring import Restorer
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import RolledBackError, ServerLostError
from pstrain.strategy.parameter_server import ParameterServerStrategy


class ServerRecovery:
    """The recovery of one coordinator. ``leave`` disconnects all trainers from the session.

    Without a restorer, users of a lost server get the error.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        scheduler: Scheduler,
        iterators: IteratorsInUse,
        leave: Callable[[], None],
    ) -> None:
        # The strategy holds its coordinator, whose finalizer holds this object: with a reference to
        # the strategy, a coordinator that the program has dropped would never be closed.
        self._strategy = weakref.ref(strategy)
        self._parameters = strategy.parameters
        self._scheduler = scheduler
        self._iterators = iterators
        self._leave = leave
        self._manager: CheckpointManager | None = None
        self._restorer: Restorer | None = None
        self._earlier = 0

    # -- called by the program

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """The manager whose checkpoints lost servers are restored from."""
        return self._manager

    @property
    def restores(self) -> int:
        """How often everything has returned to a checkpoint."""
        restorer = self._restorer
        return self._earlier + (0 if restorer is None else restorer.restores)

    def recover_from(self, manager: CheckpointManager) -> None:
        """Restores lost servers, from now on, from the last save of ``manager``."""
        self._manager = manager
        self._scheduler.rollback.keep_ended()
        self._use(self._restorer_of(manager))

    @contextmanager
    def rolling_back(self, manager: CheckpointManager) -> Iterator[None]:
        """Opens a scope in which a lost server takes the program back, instead of closures.

        Once everything is restored from the newest checkpoint of ``manager``, all closures that
        have not ended raise RolledBackError, and the program must call :meth:`wait_rolled_back`.
        After the scope the manager of ``recover_from`` is used again, from its next save on.
        """
        self._scheduler.rollback.keep_none()
        self._use(self._restorer_of(manager, gives_up=True))
        try:
            yield
        finally:
            if self._manager is None:
                self._use(None)
            else:
                self.recover_from(self._manager)

    def wait_rolled_back(self, error: Exception) -> bool:
        """Waits for the restore if a lost server caused ``error``; True if all is restored.

        Closures may then be scheduled again. False if ``error`` has another cause.
        """
        if isinstance(error, RolledBackError):
            # The error may be raised before the restore is complete.
            self.wait_while_restoring()
        elif self._restorer is None or not self._restorer.wait_restored(error):
            return False
        self._scheduler.rollback.forget_given_up()
        return True

    def check_intact(self) -> None:
        """Raises an error, such as ServerLostError, if values of this session are lost."""
        self._parameters.check_current()
        if self.is_restoring:
            raise ServerLostError("a parameter server was lost, and is being restored")

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        """Ends restoring for good, at the end of :meth:`rolling_back`.

        False if a restore is under way or done, as ``is_behind`` says; :meth:`wait_rolled_back`
        must be called then.
        """
        if self._restorer is None:
            return not is_behind()
        return self._restorer.end_restoring(is_behind)

    def wait_restored(self, error: Exception | None) -> bool:
        """Waits, for a read, until a restore is over; True if it restored the loss in ``error``.

        Without an error, also waits until closures that had ended have run again, so that a read
        includes their changes. Does not wait inside a barrier, which a restore may wait for.
        """
        restorer = self._restorer
        if restorer is None or self._scheduler.barrier.is_held_here():
            return False
        if error is not None:
            return is_server_loss(error) and restorer.wait_restored(error)
        restorer.wait_caught_up(self._parameters.config.transfer_timeout_s)
        return False

    def stop(self) -> None:
        if self._restorer is not None:
            self._restorer.stop()

    # -- called by trainers' links and the thread that applies rounds, while the program may end the
    # restorer: they look once which one there is

    @property
    def is_restoring(self) -> bool:
        """True while everything returns to a checkpoint."""
        restorer = self._restorer
        return restorer is not None and restorer.is_restoring

    def wait_while_restoring(self) -> None:
        restorer = self._restorer
        if restorer is not None:
            restorer.wait_while_restoring()

    def wait_restoring(self, timeout_s: float) -> bool:
        restorer = self._restorer
        return restorer is not None and restorer.wait_restoring(timeout_s)

    def notice(self, error: Exception) -> bool:
        """Notes an error; True if it means a lost server, which is then restored."""
        restorer = self._restorer
        return restorer is not None and restorer.notice(error)

    def _use(self, restorer: Restorer | None) -> None:
        """Ends the current restorer, and starts ``restorer`` in its place, if any."""
        self.stop()
        self._earlier = self.restores
        self._restorer = restorer
        if restorer is not None:
            restorer.start()

    def _restorer_of(self, manager: CheckpointManager, *, gives_up: bool = False) -> Restorer:
        strategy, earlier = self._strategy(), self._restorer
        assert strategy is not None
        return Restorer(
            manager,
            strategy,
            self._scheduler.rollback,
            self._iterators,
            self._leave,
            gives_up=gives_up,
            newest=None if earlier is None else earlier.saved_by(manager),
        )

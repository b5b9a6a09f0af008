"""The recovery of a coordinator from lost parameter servers, and its interface to programs.

Chooses the current restorer; must not know how it restores. Invariant: there is at most one
restorer at a time, and one has ended when the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pstrain.checkpoints.manager import CheckpointManager
from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.restoring import Restorer
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import RolledBackError, ServerLostError
from pstrain.strategy import ParameterServerStrategy
from pstrain.variables.names import key_of


class RecoverySwitch:
    """Forwards to the current restorer; without one, users of a lost server get the error."""

    def __init__(self) -> None:
        self._restorer: Restorer | None = None
        self._earlier = 0

    def use(self, restorer: Restorer | None) -> None:
        """Ends the current restorer, and starts ``restorer`` in its place, if any."""
        self.stop()
        self._earlier = self.restores
        self._restorer = restorer
        if restorer is not None:
            restorer.start()

    @property
    def restorer(self) -> Restorer | None:
        """The current restorer."""
        return self._restorer

    @property
    def restores(self) -> int:
        """The number of restores by all restorers that were used."""
        return self._earlier + (0 if self._restorer is None else self._restorer.restores)

    def wait_restored(self, error: Exception) -> bool:
        """Waits until the loss behind ``error`` is restored; False if it was not a lost server."""
        if isinstance(error, RolledBackError):
            # The error may be raised before the restore is complete.
            self.wait_while_restoring()
            return True
        return self._restorer is not None and self._restorer.wait_restored(error)

    @property
    def is_restoring(self) -> bool:
        return self._restorer is not None and self._restorer.is_restoring

    def wait_while_restoring(self) -> None:
        if self._restorer is not None:
            self._restorer.wait_while_restoring()

    def wait_caught_up(self, timeout_s: float) -> None:
        if self._restorer is not None:
            self._restorer.wait_caught_up(timeout_s)

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        if self._restorer is None:
            return not is_behind()
        return self._restorer.end_restoring(is_behind)

    def wait_restoring(self, timeout_s: float) -> bool:
        return self._restorer is not None and self._restorer.wait_restoring(timeout_s)

    def notice(self, error: Exception) -> bool:
        return self._restorer is not None and self._restorer.notice(error)

    def stop(self) -> None:
        if self._restorer is not None:
            self._restorer.stop()


class ServerRecovery:
    """The recovery of one coordinator. ``leave`` disconnects all trainers from the session."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        scheduler: Scheduler,
        iterators: IteratorsInUse,
        switch: RecoverySwitch,
        leave: Callable[[], None],
    ) -> None:
        self._strategy = strategy
        self._scheduler = scheduler
        self._iterators = iterators
        self._switch = switch
        self._leave = leave
        self._manager: CheckpointManager | None = None

    @property
    def restores(self) -> int:
        """How often everything has returned to a checkpoint."""
        return self._switch.restores

    def recover_from(self, manager: CheckpointManager) -> None:
        """Restores lost servers, from now on, from the last save of ``manager``."""
        self._manager = manager
        self._scheduler.rollback.keep_ended()
        self._switch.use(self._restorer(manager))

    @contextmanager
    def rolling_back(self, manager: CheckpointManager) -> Iterator[None]:
        """Opens a scope in which a lost server takes the program back, instead of closures.

        Once everything is restored from the newest checkpoint of ``manager``, all closures that
        have not ended raise RolledBackError, and the program must call :meth:`wait_rolled_back`.
        After the scope the manager of ``recover_from`` is used again, from its next save on.
        """
        self._scheduler.rollback.keep_none()
        self._switch.use(self._restorer(manager, gives_up=True))
        try:
            yield
        finally:
            if self._manager is None:
                self._switch.use(None)
            else:
                self.recover_from(self._manager)

    def wait_rolled_back(self, error: Exception) -> bool:
        """Waits for the restore if a lost server caused ``error``; True if all is restored.

        Closures may then be scheduled again. False if ``error`` has another cause.
        """
        if not self._switch.wait_restored(error):
            return False
        self._scheduler.rollback.forget_given_up()
        return True

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """The manager whose checkpoints lost servers are restored from."""
        return self._manager

    def check_intact(self) -> None:
        """Raises an error, such as ServerLostError, if values of this session are lost."""
        self._strategy.parameters.check_current()
        if self._switch.is_restoring:
            raise ServerLostError("a parameter server was lost, and is being restored")

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        """Ends restoring for good, at the end of :meth:`rolling_back`.

        False if a restore is under way or done, as ``is_behind`` says; :meth:`wait_rolled_back`
        must be called then.
        """
        return self._switch.end_restoring(is_behind)

    def wait_restored(self, error: Exception | None) -> bool:
        """Waits, for a read, until a restore is over; True if it restored the loss in ``error``.

        Without an error, also waits until closures that had ended have run again, so that a read
        includes their changes. Does not wait inside a barrier, which a restore may wait for.
        """
        if self._scheduler.barrier.is_held_here():
            return False
        if error is not None:
            return is_server_loss(error) and self._switch.wait_restored(error)
        self._switch.wait_caught_up(self._strategy.parameters.config.transfer_timeout_s)
        return False

    @property
    def is_restoring(self) -> bool:
        """True while everything returns to a checkpoint."""
        return self._switch.is_restoring

    def _restorer(self, manager: CheckpointManager, *, gives_up: bool = False) -> Restorer:
        earlier = self._switch.restorer

        def left_out() -> Sequence[str]:
            # In `fit`, what makes up its progress, such as metrics, is restored along with it.
            return () if gives_up else _left_out(self._strategy, manager)

        return Restorer(
            manager,
            self._strategy,
            self._scheduler.rollback,
            self._iterators,
            self._leave,
            gives_up=gives_up,
            newest=None if earlier is None else earlier.saved_by(manager),
            left_out=left_out,
        )


def _left_out(strategy: ParameterServerStrategy, manager: CheckpointManager) -> list[str]:
    """Returns the names of the variables that the manager's checkpoints do not hold."""
    held = manager.checkpoint.holds()
    return [each.name for each in strategy.variables if key_of(each) not in held]

"""What a coordinator does about lost parameter servers, and what a program may ask of that.

Chooses the restorer that there is at present; how one restores is that one's business. Invariant:
there is at most one at a time, and the one before has ended when the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.restoring import Restorer
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import RolledBackError, ServerLostError
from pstrain.strategy import ParameterServerStrategy
from pstrain.variables.names import key_of

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager


class RecoverySwitch:
    """Asks the restorer, once there is one; without, whoever uses a lost server is told."""

    def __init__(self) -> None:
        self._restorer: Restorer | None = None
        self._earlier = 0

    def use(self, restorer: Restorer | None) -> None:
        """Starts it, if it is one; the one before ends."""
        self.stop()
        self._earlier = self.restores
        self._restorer = restorer
        if restorer is not None:
            restorer.start()

    @property
    def restorer(self) -> Restorer | None:
        """The present one."""
        return self._restorer

    @property
    def restores(self) -> int:
        """Of all that were used."""
        return self._earlier + (0 if self._restorer is None else self._restorer.restores)

    def outlast(self, error: Exception) -> bool:
        """Waits until all that ``error`` tells of is restored; False if it was no lost server."""
        if isinstance(error, RolledBackError):
            # It may be told as soon as some of it is.
            self.wait_open()
            return True
        return self._restorer is not None and self._restorer.outlast(error)

    @property
    def is_restoring(self) -> bool:
        return self._restorer is not None and self._restorer.is_restoring

    def wait_open(self) -> None:
        if self._restorer is not None:
            self._restorer.wait_open()

    def wait_over(self, timeout_s: float) -> None:
        if self._restorer is not None:
            self._restorer.wait_over(timeout_s)

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        if self._restorer is None:
            return not is_behind()
        return self._restorer.retire(is_behind)

    def wait_restoring(self, timeout_s: float) -> bool:
        return self._restorer is not None and self._restorer.wait_restoring(timeout_s)

    def notice(self, error: Exception) -> bool:
        return self._restorer is not None and self._restorer.notice(error)

    def stop(self) -> None:
        if self._restorer is not None:
            self._restorer.stop()


class ServerRecovery:
    """Of one coordinator. ``leave`` has all trainers let go of the session."""

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
        """How often everything has gone back."""
        return self._switch.restores

    def recover_from(self, manager: CheckpointManager) -> None:
        """From now on a lost server takes everything back to what these have saved last."""
        self._manager = manager
        self._scheduler.redoing.keep_ended()
        self._switch.use(self._restorer(manager))

    @contextmanager
    def going_back(self, manager: CheckpointManager) -> Iterator[None]:
        """Scope in which a lost server takes the program back too, rather than its closures again.

        Once everything is restored from the newest checkpoint of ``manager``, all closures that
        have not ended raise RolledBackError; :meth:`went_back` must follow. Afterwards what
        ``recover_from`` said holds again, from the next save on.
        """
        self._scheduler.redoing.keep_none()
        self._switch.use(self._restorer(manager, gives_up=True))
        try:
            yield
        finally:
            if self._manager is None:
                self._switch.use(None)
            else:
                self.recover_from(self._manager)

    def went_back(self, error: Exception) -> bool:
        """Whether ``error`` comes of a lost server and everything is back at a checkpoint.

        Waits until it is. If so, closures may be scheduled again.
        """
        if not self._switch.outlast(error):
            return False
        self._scheduler.redoing.forget_given_up()
        return True

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """Where a lost server takes everything back to."""
        return self._manager

    def confirm(self) -> None:
        """Raises ServerLostError, or the like, where values of this session are lost."""
        self._strategy.parameters.check_current()
        if self._switch.is_restoring:
            raise ServerLostError("a parameter server was lost, and is being restored")

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        """Inside :meth:`going_back`, at its end: nothing goes back from now on.

        False where it has begun to, or has done so, as ``is_behind`` says; :meth:`went_back` must
        follow then.
        """
        return self._switch.retire(is_behind)

    def outlast(self, error: Exception | None) -> bool:
        """Waits, for a read, while everything goes back, or until what ``error`` tells of is back.

        Without an error, also until closures that had ended have run again, so that nothing is
        read without them. Not within a barrier, which a restore may wait for.
        """
        if self._scheduler.holding.is_held_here():
            return False
        if error is not None:
            return is_server_loss(error) and self._switch.outlast(error)
        self._switch.wait_over(self._strategy.parameters.config.transfer_timeout_s)
        return False

    @property
    def is_restoring(self) -> bool:
        """Whether everything goes back to a checkpoint just now."""
        return self._switch.is_restoring

    def _restorer(self, manager: CheckpointManager, *, gives_up: bool = False) -> Restorer:
        earlier = self._switch.restorer

        def left_out() -> Sequence[str]:
            # In `fit` what makes up its progress, such as metrics, is restored besides.
            return () if gives_up else _left_out(self._strategy, manager)

        return Restorer(
            manager,
            self._strategy,
            self._scheduler.redoing,
            self._iterators,
            self._leave,
            gives_up=gives_up,
            newest=None if earlier is None else earlier.saved_by(manager),
            left_out=left_out,
        )


def _left_out(strategy: ParameterServerStrategy, manager: CheckpointManager) -> list[str]:
    """Names of the variables that a checkpoint of the manager does not hold."""
    held = manager.checkpoint.holds()
    return [each.name for each in strategy.variables if key_of(each) not in held]

"""How a ``fit`` goes on after a loss: of a parameter server, or of the program itself.

Who wants to be saved is attached to the checkpoints of the fit; a lost server takes values, data
and the loop back to the newest, an unfinished fit of an earlier program is gone on with. Knows
neither how a model trains nor what a checkpoint holds. Invariant: an error that a lost server
caused reaches the user only where there is nothing to go back to.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from pstrain.callbacks.checkpoint import Checkpoint
from pstrain.checkpoints import manifest
from pstrain.errors import DataServiceError, RolledBackError
from pstrain.execution.progress import Progress, is_of_this_program, is_unfinished

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager

logger = logging.getLogger(__name__)

NAME: Final = "fit"
"""Of a fit's progress among the objects of a checkpoint."""


class Restorable(Protocol):
    """Where steps run, as far as values are lost there and taken back."""

    resumes: bool
    """Whether a program that is started again may take values back to a checkpoint by itself."""

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """What the program gave its coordinator to go back to."""

    def going_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:
        """Scope in which a lost server takes everything back to the newest of these checkpoints."""

    def went_back(self, error: Exception) -> bool:
        """Whether ``error`` comes of that; waits until everything is there."""

    def confirm(self) -> None:
        """Raises where what was trained is lost."""

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        """Nothing goes back from now on; False where it has begun to, or has, as that says."""

    def give_up(self) -> None:
        """Of a run that was broken off nothing changes values any more. Blocks, bounded."""


class Recovery:
    """Of one fit. ``managers``: all that save it; a loss takes it back to those of the first."""

    def __init__(
        self, executor: Restorable, progress: Progress, managers: Sequence[CheckpointManager]
    ) -> None:
        self._executor = executor
        self._progress = progress
        self._managers = managers

    def train(self, loop: Callable[[], None]) -> None:
        """Calls ``loop``, again after each time that everything went back; then all is saved."""
        while True:
            try:
                loop()
                for manager in self._managers:
                    manager.wait()
                if self._managers:
                    self._executor.confirm()
                # A server that is lost from here on is lost after training.
                if not self._managers or self._executor.retire(lambda: self._progress.is_behind):
                    return
                raise RolledBackError("a parameter server was lost when training had ended")
            except DataServiceError as error:
                if not self._went_back(error):
                    raise
            self._forget_saves()
            self._progress.go_back()

    def _went_back(self, error: Exception) -> bool:
        if not self._managers:
            return False
        if not self._progress.is_behind and self._executor.went_back(error):
            return True
        # A request that was under way meanwhile says only that its session is over.
        return self._progress.is_behind and self._executor.went_back(RolledBackError(str(error)))

    def _forget_saves(self) -> None:
        """Those of the past that was given up."""
        for manager in self._managers:
            try:
                manager.wait()
            except (DataServiceError, OSError) as error:
                logger.warning("abandoned a checkpoint that was being written: %s", error)


@contextlib.contextmanager
def recovery(
    executor: Restorable, progress: Progress, callbacks: Sequence[Any], initial_epoch: int
) -> Iterator[Recovery]:
    """What the ``Checkpoint`` callbacks, or else the coordinator's checkpoints, make possible.

    Goes on at once with what an earlier program left unfinished.
    """
    saving = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    managers = [callback.manager for callback in saving]
    if not managers and executor.checkpoint is not None:
        managers = [executor.checkpoint]
    with contextlib.ExitStack() as scopes:
        restored = [scopes.enter_context(_attached(manager, progress)) for manager in managers]
        if managers:
            scopes.enter_context(executor.going_back(managers[0]))
        if not saving:
            if restored and is_unfinished(restored[0], initial_epoch):
                progress.load_state_dict(restored[0])
        elif saving[0].resume and executor.resumes:
            _resume(managers[0], initial_epoch)
        if progress.is_behind:
            progress.go_back()
        try:
            yield Recovery(executor, progress, managers)
        except BaseException:
            executor.give_up()
            raise


@contextlib.contextmanager
def _attached(manager: CheckpointManager, progress: Progress) -> Iterator[Any]:
    state = manager.checkpoint.attach(NAME, progress)
    try:
        yield state
    finally:
        manager.checkpoint.detach(NAME)


def _resume(manager: CheckpointManager, initial_epoch: int) -> None:
    """Restores the newest checkpoint if it is of an unfinished fit of another process."""
    path = manager.latest_checkpoint
    if path is None:
        return
    state = manifest.read(path)["objects"].get(NAME, {}).get("state")
    if not is_unfinished(state, initial_epoch) or is_of_this_program(state):
        return
    logger.warning(
        "resuming the fit that saved %s, in epoch %d after step %d; to start over, pass "
        "Checkpoint(resume=False) or another directory",
        path, state["epoch"] + 1, state["totals"]["steps"],
    )  # fmt: skip
    try:
        manager.checkpoint.restore(path, with_attached=True)
    except DataServiceError as error:
        error.add_note(
            f"fit tried to resume from {path}; to start over, pass Checkpoint(resume=False) "
            "or another directory"
        )
        raise

"""Continues a ``fit`` after a loss: of a parameter server, or of the program itself.

The progress of the fit is attached to its checkpoints. After the loss of a server, values, data and
the loop return to the newest one; an unfinished fit of an earlier program is continued from it.
Knows neither how a model trains nor what a checkpoint holds. Invariant: an error that a lost server
caused reaches the user only if there is no checkpoint to go back to.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pstrain.callbacks.checkpoint import Checkpoint
from pstrain.checkpoints import manifest
from pstrain.checkpoints.saving import end_save
from pstrain.errors import DataServiceError, RolledBackError
from pstrain.execution.executor import Executor, TrainedValues
from pstrain.execution.progress import Progress, is_of_this_program, is_unfinished

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager

logger = logging.getLogger(__name__)

NAME: Final = "fit"
"""The name of a fit's progress among the objects of a checkpoint."""


class Recovery:
    """The recovery of one fit. ``managers`` all save it; losses are restored from the first."""

    def __init__(
        self, values: TrainedValues, progress: Progress, managers: Sequence[CheckpointManager]
    ) -> None:
        self._values = values
        self._progress = progress
        self._managers = managers

    def train(self, loop: Callable[[], None]) -> None:
        """Calls ``loop``, again after each restore; returns once all saves are complete."""
        while True:
            try:
                loop()
                for manager in self._managers:
                    manager.wait()
                if self._managers:
                    self._values.check_intact()
                # Once retired, the loss of a server is a loss after training.
                if not self._managers or self._values.end_restoring(
                    lambda: self._progress.is_behind
                ):
                    return
                raise RolledBackError("a parameter server was lost when training had ended")
            except DataServiceError as error:
                if not self._went_back(error):
                    raise
            for manager in self._managers:  # their saves are of the progress that was given up
                end_save(manager.wait)
            # While a save ended, another server may have been lost.
            self._values.wait_rolled_back(RolledBackError("the fit goes back to a checkpoint"))
            self._progress.go_back()

    def _went_back(self, error: Exception) -> bool:
        if not self._managers:
            return False
        if not self._progress.is_behind and self._values.wait_rolled_back(error):
            return True
        # A request that was under way during the restore fails only because its session is over.
        return self._progress.is_behind and self._values.wait_rolled_back(
            RolledBackError(str(error))
        )


@contextlib.contextmanager
def recovery(
    executor: Executor, progress: Progress, callbacks: Sequence[Any], initial_epoch: int
) -> Iterator[Recovery]:
    """Opens a recovery by the ``Checkpoint`` callbacks, or else by the coordinator's checkpoints.

    Continues at once with the fit that an earlier program left unfinished, if any.
    """
    saving = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
    managers = [callback.manager for callback in saving]
    values = executor.recovery
    if not managers and values.checkpoint is not None:
        managers = [values.checkpoint]
    with contextlib.ExitStack() as scopes:
        restored = [scopes.enter_context(_attached(manager, progress)) for manager in managers]
        if managers:
            scopes.enter_context(values.rolling_back(managers[0]))
        if not saving:
            if restored and is_unfinished(restored[0], initial_epoch):
                progress.load_state_dict(restored[0])
        elif saving[0].resume and executor.resumes:
            _resume(managers[0], initial_epoch)
        if progress.is_behind:
            progress.go_back()
        try:
            yield Recovery(values, progress, managers)
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

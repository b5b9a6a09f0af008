"""Training on one worker of the V1 form: the common start, checkpoints, recovery, the common end.

Knows when to save and what to wait for, but not how workers agree on a session (the membership
does). Invariant: only the chief restores, saves and ends a training; the other workers go on in
the session that the chief has made ready.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dataservice.runtime.arguments import (
    check_callable,
    check_optional,
    non_negative,
    positive,
)
from pstrain.checkpoints.manager import check_manager
from pstrain.checkpoints.saving import end_save
from pstrain.errors import (
    AbortedError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.v1.membership import Membership, wait_for

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOSS_ERRORS = (
    AbortedError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
    DeadlineExceededError,
)
_ATTEMPTS = 10


class SessionStrategy(Protocol):
    """What a session needs of its strategy."""

    @property
    def is_chief(self) -> bool: ...
    @property
    def worker_index(self) -> int: ...
    @property
    def membership(self) -> Membership | None: ...
    @property
    def start_timeout_s(self) -> float: ...
    @property
    def is_in_session(self) -> bool: ...
    def run(self, fn: Any, args: Any, kwargs: Any) -> Any: ...
    def bind(self, session: TrainingSession | None) -> None: ...
    def rejoin(self) -> None: ...
    def confirm_values(self, *, are_restored: bool) -> None: ...


class TrainingSession:
    """The training of one worker; made by ``strategy.session(...)``, a context manager.

    On entry, which waits for the parameter servers, the chief restores the newest checkpoint of
    ``checkpoint_manager``, or without one calls ``init_fn``; the other workers wait until it has.
    Inside, the chief saves every ``save_every_s`` seconds and every ``save_every_steps`` of its own
    steps. On exit each worker reports that it is done. The chief waits for all reports, saves once
    more and ends the session; the other workers wait for the end. Each waits at most
    ``worker_timeout_s``, then goes on with a warning. The sessions of a program follow one another,
    one at a time: a worker's second session is the chief's second.

    If a parameter server comes back empty, or the chief is started again, the chief begins anew
    from the newest checkpoint, and the other workers follow. UnavailableError if a server is lost
    before the first checkpoint; DataLossError if it is lost before training and variables were made
    of values of more than 64 KiB. A worker that is started again joins and reads its share anew. In
    a cluster each worker keeps the learning rate that its program has set.
    """

    def __init__(
        self,
        strategy: SessionStrategy,
        checkpoint_manager: Any = None,
        *,
        init_fn: Callable[[], Any] | None = None,
        save_every_s: float | None = 600.0,
        save_every_steps: int | None = None,
        worker_timeout_s: float = 300.0,
    ) -> None:
        _check_arguments(
            checkpoint_manager, init_fn, save_every_s, save_every_steps, worker_timeout_s
        )
        self._strategy = strategy
        self._manager = checkpoint_manager
        self._init_fn = init_fn
        self._save_every_s, self._save_every_steps = save_every_s, save_every_steps
        self._worker_timeout_s = worker_timeout_s
        self._steps = 0
        self._saved_at_s, self._saved_at_step = time.monotonic(), 0
        self._postponed_restore: Callable[[], Any] | None = None
        self.restored_from: str | None = None

    @property
    def is_chief(self) -> bool:
        return self._strategy.is_chief

    @property
    def steps(self) -> int:
        """The number of steps that this worker has run in this session object."""
        return self._steps

    def __repr__(self) -> str:
        return f"<TrainingSession of {self._steps} steps on {self._strategy!r}>"

    def __enter__(self) -> TrainingSession:
        if self._strategy.is_in_session:
            raise FailedPreconditionError(
                "another session of this strategy is under way; leave it before entering this one"
            )
        if self.is_chief:
            self._initialise_variables(is_recovery=False)
        elif self._strategy.membership is not None:
            self._strategy.membership.await_next(self._strategy.worker_index)
        self._strategy.bind(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            self._strategy.bind(None)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs one step: ``strategy.run(fn, args, kwargs)``; the chief saves if it is time to."""
        self.run_postponed_restore()
        result = self._strategy.run(fn, args, kwargs)
        self.advance(1)
        return result

    def advance(self, steps: int) -> None:
        """Counts steps of ``fit``; the chief saves if it is time to."""
        self._steps += steps
        if self.is_chief and self._is_time_to_save():
            self.save()

    def postpone_restore(self, call: Callable[[], Any]) -> None:
        """Postpones ``call`` (it takes values back) to the last save or next step. Chief only."""
        self._postponed_restore = call

    def run_postponed_restore(self) -> None:
        """Makes the call that :meth:`postpone_restore` has postponed, if there is one."""
        if self._postponed_restore is not None:
            self.guarded(self._postponed_restore)
            self._postponed_restore = None

    def save(self) -> str | None:
        """Saves a checkpoint and returns its path; None without a manager. Chief only."""
        if not self.is_chief:
            raise FailedPreconditionError("checkpoints are saved by the chief, worker 0, alone")
        if self._manager is None:
            return None
        path: str | None = self.guarded(lambda: self._manager.save(check_interval=False))
        self._saved_at_s, self._saved_at_step = time.monotonic(), self._steps
        return path

    def guarded(self, call: Callable[[], T]) -> T:
        """Returns ``call()``; calls it again each time this worker has recovered from a loss."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return call()
            except _LOSS_ERRORS as error:
                if not self._recover(error):
                    raise
        return call()

    def _recover(self, error: DataServiceError) -> bool:
        """Recovers from a loss; returns whether the failed call is worth another attempt.

        On the chief raises UnavailableError if variables were lost and there is no checkpoint.
        """
        membership = self._strategy.membership
        if membership is None:
            return False
        if membership.is_intact():
            return isinstance(error, UnavailableError)
        logger.warning("worker %d: %s", self._strategy.worker_index, error)
        if not self.is_chief:
            self._strategy.rejoin()
            membership.await_ready()
            return True
        if membership.was_replaced():
            return False  # another chief is in charge now
        if self._manager is None or self._manager.latest_checkpoint is None:
            raise UnavailableError(
                "a parameter server was lost with its variables, and there is no checkpoint to "
                "resume from: start training again"
            ) from error
        end_save(self._manager.wait)
        self._initialise_variables(is_recovery=True)
        return True

    def _initialise_variables(self, *, is_recovery: bool) -> None:
        """Gives the variables their values once all servers answer.

        Starts over if a server is lost meanwhile.
        """
        is_in_session = not is_recovery

        def attempt() -> bool:
            nonlocal is_in_session
            try:
                if not is_in_session:
                    self._strategy.rejoin()
                    is_in_session = True
                self._try_to_initialise()
            except ServerRestartedError as error:
                logger.warning("the chief gives the variables their values again: %s", error)
                is_in_session = False
            return is_in_session

        wait_for(
            "the parameter servers, to give the variables their first values (start the cluster's "
            "'ps' tasks)",
            self._strategy.start_timeout_s,
            attempt,
        )

    def _try_to_initialise(self) -> None:
        has_saved = self._manager is not None and self._manager.latest_checkpoint is not None
        if has_saved:
            # In a cluster the other workers restore nothing, and have set their own rates.
            keeps_rates = self._strategy.membership is not None
            restored = self._manager.restore_or_initialize(keeps_rates=keeps_rates)
            self.restored_from = str(restored)
            logger.info("the chief resumes from %s", self.restored_from)
        self._strategy.confirm_values(are_restored=has_saved)
        if self._init_fn is not None and not has_saved:
            self._init_fn()
        if self._strategy.membership is not None:
            self._strategy.membership.publish_ready()

    def _is_time_to_save(self) -> bool:
        past_s, past = time.monotonic() - self._saved_at_s, self._steps - self._saved_at_step
        by_time = self._save_every_s is not None and past_s >= self._save_every_s
        return by_time or (self._save_every_steps is not None and past >= self._save_every_steps)

    def _end(self) -> None:
        membership = self._strategy.membership
        if membership is None:
            self.guarded(self._finish)
        elif self.is_chief:
            self._await(membership, "the other workers to be done", lambda: _missing(membership))
            self.guarded(self._finish)
            self.guarded(membership.publish_end)
        else:
            what = "the chief (worker 0) to end the training"
            self._await(membership, what, lambda: "" if membership.has_ended() else "not yet")

    def _finish(self) -> None:
        """Saves a last time and waits until all is on disk: after the end servers may stop."""
        if self._strategy.membership is not None:
            self._strategy.membership.others_train = False
        if self._postponed_restore is not None:
            self._postponed_restore()
        if self._manager is not None:
            self._manager.save(check_interval=False)
            self._manager.wait()
        self._postponed_restore = None

    def _await(self, membership: Membership, what: str, lacking: Callable[[], str]) -> None:
        """Reports that this worker is done, in whatever session is current, until all are.

        ``lacking()`` says what is missing of that; nothing if the wait is over.
        """

        def attempt() -> str:
            if self.is_chief and not membership.is_intact():
                # The chief brings servers back; with its steps over, only this check tells it.
                raise UnavailableError("a parameter server was lost")
            membership.report_done(self._strategy.worker_index)
            return lacking()

        def reached() -> bool:
            lacks = self.guarded(attempt)
            if lacks:
                raise UnavailableError(lacks)
            return True

        try:
            wait_for(what, self._worker_timeout_s, reached)
        except DeadlineExceededError as error:
            logger.warning(
                "worker %d stops waiting and ends: %s", self._strategy.worker_index, error
            )


def _missing(membership: Membership) -> str:
    """Names the workers that have not reported that they are done; empty if all have."""
    workers = ", ".join(map(str, membership.missing()))
    return workers and f"no report of worker {workers}"


def _check_arguments(
    manager: Any,
    init_fn: Any,
    save_every_s: float | None,
    save_every_steps: int | None,
    worker_timeout_s: float,
) -> None:
    if manager is not None:
        check_manager("checkpoint_manager", manager)
    check_callable("init_fn", init_fn, optional=True)
    if save_every_s is not None:
        positive(save_every_s, "save_every_s")
    check_optional(1, save_every_steps=save_every_steps)
    non_negative(worker_timeout_s, "worker_timeout_s")

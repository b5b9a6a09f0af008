"""How workers without a coordinator agree on a session: the chief begins it, the servers tell it.

The chief makes a session the current one of every parameter server; to restore lost servers it
renews that session, which displaces no other chief's. It counts the session's stage
in a variable there: while the stage is odd, a training is under way; 0 means that none has begun,
any other even stage that the last one has ended. Workers ask the servers which session is current.
Knows nothing of models. Invariant: no worker trains before the chief has announced that the
variables have their values, and a session that was replaced never comes back.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dataservice.runtime.retry import retry_until
from pstrain import initializers
from pstrain.config import ParameterConfig
from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.sessions.ids import new_session, renewed
from pstrain.sessions.start import renew, take_over
from pstrain.trainer.client import RemoteParameters
from pstrain.vocabulary import ShardSpec, VariableSpec

T = TypeVar("T")

_KIND = "-v1"
_ASK_TIMEOUT_S = 5.0
# Variables that a program makes never have negative ids.
_STAGE_ID, _DONE_ID = -1, -2
_ENDED = "the last training on the parameter servers has ended, and no other has begun"


class Membership:
    """This task's membership of a session; ``parameters.session`` is always its session."""

    def __init__(
        self, parameters: RemoteParameters, *, is_chief: bool, workers: int, config: ParameterConfig
    ) -> None:
        self._parameters = parameters
        self._is_chief = is_chief
        self._timeout_s = config.start_timeout_s
        self._stages = _counter_spec(_STAGE_ID, "v1/stage", 1)
        self._done = _counter_spec(_DONE_ID, "v1/done", workers)
        # On the chief the current stage; on a worker the stage of its current or last training.
        self._stage = 0
        # On the chief the session that it last began on all servers.
        self._begun: str | None = None
        self.others_train = False
        """On the chief: whether other workers may be training."""

    def enter(self) -> None:
        """Begins a session (the chief), or waits for one that has not ended and enters it.

        On the chief raises AbortedError if another chief has taken over.
        """
        if self._is_chief:
            self._begin()
        else:
            wait_for(
                "the chief (worker 0) to begin a session on the parameter servers (is it started?)",
                self._timeout_s,
                self._enter_session,
            )

    def publish_ready(self) -> None:
        """Announces that the variables have their values and a training begins. Chief only."""
        self.others_train = True
        self._publish(self._stage + 1 + self._stage % 2)

    def publish_end(self) -> None:
        """Announces that the training is over. Chief only. Idempotent."""
        self._publish(self._stage + self._stage % 2)

    def await_next(self, worker: int) -> None:
        """Blocks until a training is under way that this worker has not been in. Worker only.

        Also withdraws an earlier report of ``worker`` that it is done.
        """
        previous = self._parameters.session, self._stage
        self._await(lambda: self._enter_training(previous) and self._withdraw_report(worker))

    def await_ready(self) -> None:
        """Blocks until a training is under way in the current session. Worker only."""
        self._await(self._enter_training)

    def report_done(self, worker: int) -> None:
        """Reports that ``worker`` is done with the training that it is in."""
        self._parameters.assign(self._done, "set", np.array([self._stage]), worker)

    def missing(self) -> list[int]:
        """Returns the workers that have not reported that they are done."""
        return [int(n) for n in np.flatnonzero(self._parameters.read(self._done) != self._stage)]

    def has_ended(self) -> bool:
        """True if the chief has ended the training that this worker is in."""
        return int(self._parameters.read(self._stages)[0]) != self._stage

    def is_intact(self) -> bool:
        """True if every server answers and is in this session."""
        return all(session == self._parameters.session for session in self._sessions())

    def was_replaced(self) -> bool:
        """True if some server is in another session, which another chief has begun."""
        mine = (None, self._parameters.session, self._begun)
        return any(session not in mine for session in self._sessions())

    def _begin(self) -> None:
        begun = self._begun
        if begun is None:
            known = [status["session"] for status in self._statuses()]
            self._parameters.change_session(new_session(known, _KIND))
            take_over(len(known), self._begin_at)
        else:
            if begun == self._parameters.session:
                self._parameters.change_session(renewed(begun))
            wait_for(
                "the parameter servers to stay up while the session begins (their logs say why "
                "they were restarted)",
                self._timeout_s,
                lambda: self._renew(begun),
            )
        self._begun = self._parameters.session
        for spec in (self._stages, self._done):
            self._parameters.create(spec)
        self._stage, self.others_train = 0, False

    def _renew(self, replaced: str) -> bool:
        """Begins the session in place of ``replaced``; False if a server restarts meanwhile."""
        try:
            renew(replaced, self._statuses(), self._begin_at)
        except ServerRestartedError:
            return False
        return True

    def _statuses(self) -> list[dict[str, Any]]:
        """Returns the status of every server, once each has answered."""
        limit_s = min(_ASK_TIMEOUT_S, self._timeout_s)
        ask = functools.partial(self._parameters.status, timeout_s=limit_s)
        return [
            self._answer_of(ps, functools.partial(ask, ps))
            for ps in range(len(self._parameters.addresses))
        ]

    def _begin_at(self, ps: int, *conditions: str) -> None:
        self._answer_of(ps, functools.partial(self._parameters.begin_session, ps, *conditions))

    def _answer_of(self, ps: int, ask: Callable[[], T]) -> T:
        address = self._parameters.addresses[ps]
        what = f"parameter server {ps} at {address} (start the cluster's 'ps' tasks)"
        # In a list, because an answer may be false.
        (answer,) = wait_for(what, self._timeout_s, lambda: [ask()])
        return answer

    def _publish(self, stage: int) -> None:
        self._parameters.assign(self._stages, "set", np.array([stage]))
        self._stage = stage

    def _sessions(self) -> list[str | None]:
        return self._parameters.sessions(timeout_s=_ASK_TIMEOUT_S)

    def _common_session(self) -> str:
        """Returns the session that all servers are in; UnavailableError unless a chief's is."""
        found = self._sessions()
        addresses = enumerate(self._parameters.addresses)
        away = [f"{ps} at {address}" for ps, address in addresses if found[ps] is None]
        if away:
            raise UnavailableError(
                f"no answer, or no session yet, from parameter server {', '.join(away)}"
            )
        session = found[0]
        if len(set(found)) > 1 or session is None or f"{_KIND}-" not in session:
            raise UnavailableError("the parameter servers are in no session of a chief")
        return session

    def _await(self, attempt: Callable[[], bool]) -> None:
        wait_for(
            "the chief (worker 0) to initialise the variables (or its next training to begin)",
            self._timeout_s,
            attempt,
        )

    def _enter_session(self) -> bool:
        """Enters the current session; UnavailableError if there is none, or it has ended.

        An ended session is what an earlier program left on servers that still run.
        """
        stage = self._enter_and_read_stage()
        if stage and stage % 2 == 0:
            raise UnavailableError(_ENDED)
        return True

    def _enter_training(self, previous: tuple[str, int] | None = None) -> bool:
        """Enters the training under way; UnavailableError if there is none but ``previous``."""
        stage = self._enter_and_read_stage()
        if stage % 2 == 0:
            raise UnavailableError(_ENDED if stage else "the variables have no values yet")
        if (self._parameters.session, stage) == previous:
            raise UnavailableError("the training that this worker was in has not ended")
        self._stage = stage
        return True

    def _enter_and_read_stage(self) -> int:
        """Enters the session that all servers are in, and returns its stage.

        UnavailableError if there is none.
        """
        self._parameters.change_session(self._common_session())
        try:
            return int(self._parameters.read(self._stages)[0])
        except (NotFoundError, FailedPreconditionError, AbortedError) as error:
            raise UnavailableError("the session was begun or replaced a moment ago") from error

    def _withdraw_report(self, worker: int) -> bool:
        """Withdraws the worker's report that it is done; False if the session has just changed.

        A worker that was started again may have reported before; the chief has to wait for it.
        """
        try:
            self._parameters.assign(self._done, "set", np.array([0]), worker)
        except (NotFoundError, FailedPreconditionError, AbortedError):
            return False
        return True


def wait_for(what: str, timeout_s: float, attempt: Callable[[], T | None]) -> T:
    """Returns the first true result of ``attempt``, which is repeated with growing pauses.

    UnavailableError and DeadlineExceededError of an attempt count as a failure to be repeated.
    After ``timeout_s`` raises DeadlineExceededError, which says ``what`` was waited for, and the
    last failure.
    """

    def once(_limit_s: float) -> T:  # the requests of an attempt have time-outs of their own
        found = attempt()
        if not found:
            raise UnavailableError("not yet")
        return found

    try:
        return retry_until(
            once,
            waiting_for=what,
            timeout_s=timeout_s,
            attempt_timeout_s=_ASK_TIMEOUT_S,
            wait=threading.Event().wait,
        )
    except UnavailableError as error:
        raise DeadlineExceededError(str(error)) from error.__cause__


def _counter_spec(number: int, name: str, size: int) -> VariableSpec:
    return VariableSpec(
        id=number,
        name=name,
        shape=(size,),
        dtype="int64",
        trainable=False,
        initializer=initializers.zeros(),
        shards=(ShardSpec(ps=0, row_start=0, row_stop=size),),
    )

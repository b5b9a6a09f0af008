"""A reader's process: the real `ServiceReader`, its dispatcher thread, and a consumer.

The loop of the dispatcher thread is modelled, because it holds a call across a wait; what it sends,
when, and how it handles the answer is real. The consumer takes elements, spends time on each, then
acknowledges it. After an end that may not be the last, it asks again.
"""

from __future__ import annotations

from typing import Any

from dataservice.client.positions import ReaderPosition
from dataservice.client.read_spec import ReadSpec
from dataservice.client.reader import ServiceReader
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    FailedPreconditionError,
    QuarantinedError,
)
from dataservice.job_options import JobOptions
from dataservice.ranges import Consumed
from dataservice.vocabulary import ShardingPolicy
from tests.simulation.stage import HASTE
from tests.simulation.world import Blocked, Call, Node, Task, World

ASK_AGAIN_S = 0.3
OPEN_AGAIN_S = 0.5
SYNC_TIMEOUT_S = 60.0
TAKE_POLL_S = 1.0
# The shortest wait; sums with a clock's offset are not exact, so a shorter one might never end.
_TIMER_STEP_S = 1e-6


class ReaderNode(Node):
    """A node that reads one iteration to its end."""

    reader: Any = None

    def __init__(
        self,
        world: World,
        number: int,
        *,
        use_s: float,
        max_elements: int,
        position: ReaderPosition | None = None,
    ) -> None:
        super().__init__(world, f"reader{number}")
        self.streams: list[Any] = []
        self.is_done = self.saw_end = False
        self.pause_until_s = 0.0
        self._use_s = use_s
        self._spec = ReadSpec(
            target="dispatcher:1",
            dataset_id=world.dispatcher.dataset_id,
            policy=ShardingPolicy.DYNAMIC,
            job_name="job",
            max_elements=max_elements,
            timeout_s=SYNC_TIMEOUT_S,
            options=JobOptions(ordered=world.is_ordered),
            position=position,
        )
        self._opening = Task(self, self._open)
        self._syncing = False
        self._sync_failed = False
        self._turn_s = float("inf")
        self._waits = False
        self._is_poked = False

    def boot(self) -> None:
        self._opening.run()

    def crash(self) -> None:
        """Kills the process (SIGKILL); workers see their streams end."""
        self.die()
        for stream in self.streams:
            stream._hang_up()

    def save(self) -> ReaderPosition:
        """Returns what `ServiceStream.reader_position` returns for the only reader of a job."""
        known = self._spec.position
        consumed = Consumed() if known is None else known.consumed.copy()
        consumed.merge(self.reader.consumed())
        return ReaderPosition(
            plan="",
            division="",
            policy="DYNAMIC",
            delivery="exactly_once",
            ordered=self.world.is_ordered,
            repetition=0,
            seeds=(),
            consumed=consumed,
            origins=(self.name,),
            peers=(self.name,),
            chunk_rows=self.reader.chunk_rows,
        )

    def is_low(self) -> bool:
        return self.reader._buffer.is_low()

    def _open(self) -> None:
        try:
            self.reader = ServiceReader(self._spec)
        except DataServiceError as error:
            if isinstance(error, FailedPreconditionError) and "one reader" in str(error):
                self.world.at(OPEN_AGAIN_S, self, self._open_again)
            else:
                self._failed(error)
            return
        self.world.checker.watch(self)
        self.reader._wakeup.listener = self._wake
        self.reader._buffer.listener = self._poke
        self._turn()
        self._take()

    def _open_again(self) -> None:
        """Retries the opening, as another reader has the ordered sequence or is believed to."""
        self._opening = Task(self, self._open)
        self._opening.run()

    # The dispatcher thread

    def _wake(self) -> None:
        self._plan_turn(0.0)

    def _plan_turn(self, delay_s: float) -> None:
        due_s = self.world.now_s + delay_s
        if due_s < self._turn_s:
            self._turn_s = due_s
            self.world.at(delay_s, self, self._turn, due_s)

    def _turn(self, due_s: float | None = None) -> None:
        if due_s is not None and due_s != self._turn_s:
            # An earlier turn has replaced this one; going on would begin a second chain of turns.
            return
        self._turn_s = float("inf")
        reader = self.reader
        if self._syncing or self._sync_failed or reader._closed:
            return
        with reader._lock:
            now_s = self.now_s()
            remaining_s = reader._session.time_to_call(now_s)
            call = None
            if remaining_s <= 0:
                call = reader._session.prepare_call(reader.statistics)
        if call is None:
            reader._sleeps_until_s = now_s + remaining_s
            self._plan_turn(max(remaining_s, _TIMER_STEP_S))
            return
        self._syncing = True
        Call(
            *(self.world, self, "Sync", call.request),
            lambda value: self._synced(call, value),
            SYNC_TIMEOUT_S,
            10.0 / HASTE,
            lambda: reader._closed,
        ).attempt()

    def _synced(self, call: Any, value: Any) -> None:
        self._syncing = False
        if isinstance(value, CancelledError):
            return
        if isinstance(value, Exception):
            self._sync_failed = True
            self.reader._on_failure(value)
            return
        if self.reader._apply_reply(call, value, self.now_s()):
            self.reader._buffer.wake()
        self._turn()

    # The consumer

    def _poke(self) -> None:
        if self._waits and not self._is_poked:
            self._is_poked = True
            self.world.at(0.0, self, self._take_again)

    def _take_again(self) -> None:
        self._is_poked = False
        if self._waits:
            self._take()

    def _take(self) -> None:
        reader = self.reader
        if self.is_done:
            return
        if self._waits:
            self._waits = False
            reader._session.end_wait()
        try:
            taken = reader.take()
        except Blocked:
            # The session counts the consumer as waiting, since its thread is still inside `take`.
            self._waits = True
            reader._session.begin_wait()
            self.world.at(TAKE_POLL_S, self, self._take_again)
            return
        except DataServiceError as error:
            self._failed(error)
            return
        if taken is None:
            self._ended()
            return
        self.world.checker.delivered(self, taken)
        for stream in self.streams:
            stream.receive()
        use_s = self._use_s * self.world.dice.uniform(0.5, 1.5)
        use_s += max(0.0, self.pause_until_s - self.world.now_s)
        self.world.at(use_s, self, self._used, taken)

    def _used(self, taken: Any) -> None:
        self.world.checker.acknowledged(self, taken)
        self.reader.acknowledge(taken.spans)
        self._take()

    def _ended(self) -> None:
        self.world.checker.ended(self)
        if self.reader._session._finished:
            self.saw_end = True
            self.close()
        else:
            self.world.at(ASK_AGAIN_S, self, self._take)

    def close(self) -> None:
        """Closes the reader, as the user does with its iterator."""
        self.is_done = True
        self.world.note("close", self)
        self.reader.close()

    def _failed(self, error: DataServiceError) -> None:
        self.is_done = True
        self.saw_end |= isinstance(error, QuarantinedError)
        self.world.note("failed", self, error)
        self.world.checker.failed(self, error)

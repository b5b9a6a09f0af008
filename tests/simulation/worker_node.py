"""A data worker's process, and the streams from it to readers.

Real: membership, the service's table of producers, leasing, the order of windows, re-batching,
headers and checksums. Modelled, because the originals are loops that hold state across a wait: the
leasing and assembling threads, `send_frames` with its credit, and the receiving loop of
`WorkerStream`. Like TCP, a stream is in order and loses nothing unless it breaks; unlike TCP, it
may deliver a frame twice. A cut delays the stream, and the reader notices the silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dataservice.client.worker_stream import _TRANSIENT, StreamEvents, WorkerStream
from dataservice.config import WorkerConfig
from dataservice.errors import DataServiceError, NotFoundError, UnavailableError
from dataservice.wire.elements import END, FrameKind, unpack
from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.leases import Lease
from dataservice.worker.membership import Membership
from dataservice.worker.producer import _ENDED, _FLUSH, WindowProducer, _OpenWindow
from dataservice.worker.rebatch import Element, Rebatcher
from dataservice.worker.service import WorkerService
from dataservice.worker.snapshots import SnapshotWriters
from tests.simulation.stage import Flag, Rows
from tests.simulation.world import STAGE, Blocked, Node, Task, World

HEARTBEAT_S = 0.5
SILENCE_S = 2.0
CONNECT_TIMEOUT_S = 2.0
MAX_FRAMES = 4
# Added between arrivals: times are rounded, so frames due at the same time could change places.
_ORDER_S = 1e-9
# Sums with a clock's offset are not exact to the last bit.
_TIMER_SLACK_S = 1e-6


class Pipeline:
    """Stands for a plan; the rows of a window are ids that its splits and its epoch determine."""

    compression = None

    def __init__(self, batch_rows: int | None, *, is_divisible: bool) -> None:
        self._batch_rows = batch_rows
        self.is_divisible = is_divisible

    def rebatcher(self) -> Rebatcher:
        return Rebatcher(self._batch_rows, run=2 if self.is_divisible else 1)

    def run_window(self, lease: Lease, *_: object) -> Iterator[tuple[Rows, int]]:
        ids = rows_of(lease.epoch, lease.splits)[lease.start_row :]
        half = (len(ids) + 1) // 2
        for first, part in ((0, ids[:half]), (half, ids[half:])):
            if part:
                yield Rows(part), lease.start_row + first


def rows_of(epoch: int, splits: Any) -> list[int]:
    """Returns a window's output rows; some source rows give none, so a window may be empty."""
    ids = [row for split in splits for row in range(split.start, split.stop)]
    return [epoch * 1_000 + row for row in ids if row % 7 != 3]


class WorkerNode(Node):
    """A node that serves the streams of readers."""

    def __init__(self, world: World, number: int, pipeline: Pipeline) -> None:
        super().__init__(world, f"worker{number}")
        self.address = f"{self.name}:1"
        self.compute_s = world.dice.choice((0.002, 0.02, 0.1))
        self._config = WorkerConfig(dispatcher_address="dispatcher:1", threads=1 + number % 2)
        self._pipeline = pipeline
        self.streams: list[Stream] = []

    def boot(self) -> None:
        """Starts a new process."""
        self.alive = True
        self.streams = []
        link = DispatcherLink(self._config, token="", tls=None)
        self.service = WorkerService(self._config, link, self.address)
        self.service.pipelines.get = self.plan_of  # type: ignore[method-assign, assignment]
        snapshots = SnapshotWriters(
            link, self.service.pipelines.get, threads=1, address=self.address
        )
        self._membership = Membership(
            link, self.service, snapshots, interval_s=HEARTBEAT_S, on_lost=lambda _: None
        )
        self._beats = Task(self, self._keep_registered)
        self._is_member = False
        self._beats.run()
        self.world.at(self._membership.pause_s, self, self._beat)

    def plan_of(self, _dataset_id: str, _on_error: str = "raise") -> Pipeline:
        """Returns the stand-in for the plan of a dataset."""
        return self._pipeline

    def crash(self) -> None:
        """Kills the process (SIGKILL); readers see their streams reset."""
        self.die()
        for stream in self.streams:
            stream.peer_died()

    def restart(self) -> None:
        if not self.alive:
            self.boot()

    def _beat(self) -> None:
        self._beats.is_over = False
        self._beats.run()
        self.world.at(self._membership.pause_s, self, self._beat)

    def _keep_registered(self) -> None:
        if self._is_member:
            try:
                self._membership._send_heartbeat()
                return
            except NotFoundError:
                self._is_member = False
        self._membership._register()
        self._is_member = True

    # Streams

    def accept(self, stream: Stream) -> None:
        """Accepts the connection of a reader."""
        self.streams.append(stream)
        key = (stream.command["iteration"], stream.command["reader"])
        try:
            producer = self.service._new_windows(key, stream.command, run=2)
        except DataServiceError as error:
            stream.to_reader(error)
            return
        stream.key, stream.producer, stream.feed = key, producer, producer._feed
        stream.rebatcher = self._pipeline.rebatcher()
        stream.leasing = Task(self, lambda: _lease(stream), lambda: self.poke(stream))
        for condition in (producer._changed, producer._room, stream.feed._needed):
            condition.listener = lambda: self.poke(stream)
        self._turn(stream)

    def poke(self, stream: Stream) -> None:
        """Schedules a turn of the stream's threads, since something has changed for them."""
        if not stream.is_poked:
            stream.is_poked = True
            self.world.at(0.0, self, self._turn, stream)

    def _turn(self, stream: Stream) -> None:
        """Runs every thread of the stream as far as it can go."""
        stream.is_poked = False
        stream.leasing.run()
        self._plan_to_ask(stream)
        self._begin_windows(stream)
        self._assemble(stream)
        self._pump(stream)

    def _plan_to_ask(self, stream: Stream) -> None:
        """Schedules the feed to ask again after the pause that the dispatcher asked for."""
        pause_s = stream.feed._not_before_s - self.now_s()
        if pause_s > 0 and not stream.is_pausing:
            stream.is_pausing = True
            self.world.at(pause_s + _TIMER_SLACK_S, self, self._ask_again, stream)

    def _ask_again(self, stream: Stream) -> None:
        stream.is_pausing = False
        self._turn(stream)

    def _begin_windows(self, stream: Stream) -> None:
        while stream.computing < stream.producer._max_parallel:
            try:
                window = stream.producer._next_window()
            except Blocked:
                return
            if window is None:
                return
            stream.computing += 1
            seconds = self.compute_s * self.world.dice.uniform(0.2, 2.0)
            self.world.at(seconds, self, self._compute, stream, window)

    def _compute(self, stream: Stream, window: _OpenWindow) -> None:
        if window.lease.window == self.world.poison:
            self.world.checker.poison_deaths += 1
            self.world.note("poisoned", self)
            self.crash()
            self.world.at(self.world.dice.choice((0.05, 0.5, 3.0)), None, self.restart)
            return
        stream.producer._run_window(window)
        stream.computing -= 1
        self.poke(stream)

    def _assemble(self, stream: Stream) -> None:
        producer = stream.producer
        frames: Any = producer.frames
        while not frames.is_over and len(frames.queue) < MAX_FRAMES:
            failure = None
            try:
                step = producer._next_step(stream.rebatcher)
                if step is not _ENDED:
                    for element in _elements(stream.rebatcher, step):
                        frames.put(
                            element._replace(
                                divisible=self._pipeline.is_divisible,
                                more_follows=producer.more_follows,
                            )
                        )
                    continue
            except Blocked:
                return
            except Exception as error:
                failure = error
            frames.end(failure)
            producer._closed = True
            self.poke(stream)

    def _pump(self, stream: Stream) -> None:
        frames: Any = stream.producer.frames
        while not stream.is_done and stream.credit > 0:
            if frames.queue:
                frame = frames.queue.popleft()
                stream.credit -= unpack(frame[0]).elements
                stream.to_reader(frame)
                self._assemble(stream)
            elif frames.is_over:
                stream.to_reader(frames.failure or (END, None))
                self.leave(stream)
            else:
                return

    def leave(self, stream: Stream) -> None:
        """Ends the handler of the stream."""
        if not stream.is_done and stream.producer is not None:
            stream.is_done = True
            self.service._drop_windows(stream.key, stream.producer)
            self.poke(stream)

    def credited(self, stream: Stream, frames: int) -> None:
        if not stream.is_done and stream.producer is not None:
            stream.credit += frames
            self._pump(stream)


def _lease(stream: Stream) -> None:
    """Runs `LeaseFeed._run`, from the place at which it waited for its call."""
    feed = stream.feed
    stop: Any = feed._thread.stop_event
    try:
        if stop.is_set() and stream.leasing.has_answer:
            unset: Any = Flag()
            feed._ask_once(unset)
        while not stop.is_set() and not feed._ended:
            feed._ask_once(stop)
    except DataServiceError as error:
        feed._fail(error)
    feed._return_unused(stop)


def _elements(rebatcher: Rebatcher, step: Any) -> Iterator[Element]:
    """Returns the elements of a step, as `WindowProducer._elements` does."""
    if step is _FLUSH:
        return rebatcher.flush()
    lease = step.lease
    if isinstance(step, _OpenWindow):
        return rebatcher.end_window(lease.window, lease.generation, step.end_row)
    return rebatcher.add(step.batch, lease.window, lease.generation, step.first_row)


def _is_inside_a_window(message: Any) -> bool:
    """True if a frame has rows of the same lease before it and after it.

    Only for first leases, which begin at row 0.
    """
    if not isinstance(message, tuple) or message[1] is None:
        return False
    spans = unpack(message[0]).spans
    if len(spans) != 1 or spans[0].final:
        return False
    return spans[0].generation == 0 and spans[0].first_row > 0


class Stream:
    """Stands for `WorkerStream`, and for the connection and the handler at its other end."""

    producer: WindowProducer | None = None
    feed: Any = None
    leasing: Any = None
    rebatcher: Any = None
    key: Any = None

    def __init__(
        self,
        worker_id: str,
        address: str,
        command: dict[str, Any],
        schema: Any,
        events: StreamEvents,
        **_security: object,
    ) -> None:
        self.worker_id, self.address = worker_id, address
        self.command = {**command, "worker": worker_id}
        self._schema, self._events = schema, events
        self._world: Any = STAGE.world
        self._reader: Any = STAGE.node
        self._worker: WorkerNode = self._world.workers[address]
        self._inbox: deque[Any] = deque()
        self._arrival_s = 0.0
        self._dropped = self.is_over = False
        self._taken = 0
        self._was_silent = self._was_hung_up = False
        self.credit = int(command["credit"])
        self._half_credit = self.credit // 2
        self.computing = 0
        self.is_poked = self.is_done = self.is_pausing = False

    # The reader's end

    def start(self) -> None:
        world, worker = self._world, self._worker
        self._reader.streams.append(self)
        delay_s = world.blocked_s(self._reader, worker) + world.latency_s()
        if delay_s > CONNECT_TIMEOUT_S:
            world.at(CONNECT_TIMEOUT_S, self._reader, self.broken, UnavailableError("no answer"))
            return
        world.at(delay_s, worker, self._connect, any_life=True)
        world.at(SILENCE_S, self._reader, self._check_silence)

    def leave(self, _timeout_s: float) -> None:
        """Tells the worker nothing, as no simulated job without windows is shared."""

    def drop(self) -> None:
        self._dropped = True
        self._hang_up()

    def is_dropped(self) -> bool:
        return self._dropped

    def stop(self, _timeout_s: float) -> bool:
        return True

    def arrive(self, life: int, message: Any) -> None:
        """Queues a message that arrives; it is handled when the message before it is stored."""
        if self.is_over or self._dropped or life != self._life:
            return
        self._inbox.append(message)
        self.receive()

    def receive(self) -> None:
        """Runs `WorkerStream._run` as far as it can go."""
        while self._inbox and not self.is_over and not self._dropped and self._reader.is_low():
            try:
                self._take(self._inbox.popleft())
            except _TRANSIENT as error:
                self.broken(error)
            except DataServiceError as error:
                self.is_over = True
                self._events.on_failure(error)

    def _take(self, message: Any) -> None:
        if isinstance(message, DataServiceError):
            raise message
        header_bytes, body = message
        header = unpack(header_bytes)
        if header.kind is FrameKind.END:
            self.is_over = True
            self._events.on_end(self)
            return
        size_bytes = 0 if body is None else len(body)
        buffer = None if body is None else pa.py_buffer(body)
        batch = WorkerStream._decode(self, header, buffer)
        self._events.on_frame(self, header, batch, size_bytes)
        self._taken += header.elements
        if self._taken >= self._half_credit:
            self._to_worker(WorkerNode.credited, self._taken)
            self._taken = 0

    def broken(self, error: DataServiceError) -> None:
        """Fails the reader's end of the stream."""
        if self.is_over:
            return
        self.is_over = True
        self._inbox.clear()
        if not self._dropped:
            self._world.note("broken", self._reader, self.address, error)
            self._events.on_broken(self, error)
        self._hang_up()

    def _check_silence(self) -> None:
        if self.is_over or self._dropped:
            return
        frozen = self._worker.frozen_until_s > self._world.now_s
        silent = frozen or self._world.blocked_s(self._worker, self._reader) > 0
        if silent and self._was_silent:
            self.broken(UnavailableError("silent"))
            return
        self._was_silent = silent
        self._world.at(SILENCE_S / 2, self._reader, self._check_silence)

    def _hang_up(self) -> None:
        self._to_worker(WorkerNode.leave)

    # Between the ends

    _life = -1

    def _connect(self) -> None:
        worker = self._worker
        if not worker.alive:
            self._world.at(0.001, self._reader, self.broken, UnavailableError("refused"))
            return
        self._life = worker.life
        if not self._was_hung_up:
            worker.accept(self)

    def to_reader(self, message: Any) -> None:
        """Sends a message to the reader, in order; a cut delays it."""
        world, worker, reader = self._world, self._worker, self._reader
        delay_s = world.blocked_s(worker, reader) + world.latency_s()
        self._arrival_s = max(self._arrival_s + _ORDER_S, world.now_s + delay_s)
        copies = 2 if world.dice.random() < world.doubling and world.doubles_frames else 1
        # After a resume a first lease may begin at any row, so that a gap before it cannot show.
        if world.lost_frames and not world.has_resumed and _is_inside_a_window(message):
            world.lost_frames -= 1
            # The reader cannot return credit for it: it would wait for ever, not see a gap.
            self.credit += unpack(message[0]).elements
            return
        if world.corrupt_frames and isinstance(message, tuple) and message[1]:
            world.corrupt_frames -= 1
            message = (message[0], bytes([message[1][0] ^ 1]) + message[1][1:])
        for _ in range(copies):
            wait_s = self._arrival_s - world.now_s
            world.at(wait_s, reader, self.arrive, self._life, message)

    def _to_worker(self, action: Callable[..., None], *args: Any) -> None:
        delay_s = self._world.blocked_s(self._reader, self._worker) + self._world.latency_s()
        self._world.at(delay_s, self._worker, self._at_worker, action, *args)

    def _at_worker(self, action: Callable[..., None], *args: Any) -> None:
        self._was_hung_up |= action is WorkerNode.leave
        if self._life == self._worker.life:
            action(self._worker, self, *args)

    def peer_died(self) -> None:
        """Has the worker's host reset the connection; the reset arrives once no cut holds it up."""
        delay_s = self._world.blocked_s(self._worker, self._reader) + self._world.latency_s()
        error = UnavailableError("connection reset")
        self._world.at(delay_s, self._reader, self.broken, error)

    def reset(self) -> None:
        """Breaks the connection; each end learns it in its own time."""
        self.peer_died()
        self._to_worker(WorkerNode.leave)

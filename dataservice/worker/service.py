"""The streams that a worker serves, and the producers that the streams read from.

Responsible for starting, sharing and closing producers. Knows pipelines and the channel to a
reader, but not what a producer is made of, nor how elements are transported. A DYNAMIC stream has a
producer of its own unless trainers read from a cache; all other streams of an iteration share one.
Invariant: a producer leaves the table only to be closed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from dataservice.config import WorkerConfig
from dataservice.errors import (
    DataServiceError,
    InvalidArgumentError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy
from dataservice.worker.cached_task import CachedTask
from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.failures import clearing_locals
from dataservice.worker.flow_control import await_close, await_confirmation, send_frames
from dataservice.worker.outgoing import Channel, Frame, FrameBuffer
from dataservice.worker.pipelines import Pipelines
from dataservice.worker.producer import WindowProducer
from dataservice.worker.producer_factory import Command, ProducerFactory
from dataservice.worker.producer_table import ProducerTable
from dataservice.worker.production import ProducerCounters
from dataservice.worker.rounds import RoundProducer, serve_rounds
from dataservice.worker.task import Pipeline
from dataservice.worker.task_producer import TaskProducer

Shared = TypeVar("Shared", bound=WindowProducer[Any] | TaskProducer | CachedTask | RoundProducer)

STOP_TIMEOUT_S = 2.0
# A reader with no more credit than this buffers next to nothing; it gets one element per frame.
_LEAST_CREDIT = 2


class WorkerService:
    """The streams and producers of one worker. Thread-safe.

    `worker_id` changes when the worker rejoins.
    """

    def __init__(self, config: WorkerConfig, link: DispatcherLink, address: str) -> None:
        self.worker_id = ""
        self._place = (0, 0)
        self.address = address
        self.pipelines = Pipelines(link, allow_functions=config.allow_functions)
        self._factory = ProducerFactory(config, link, self.is_stopped)
        self._lock = threading.Lock()
        self._producers = ProducerTable()
        self._stopped = False

    # Membership

    def rejoin(self, worker_id: str, place: tuple[int, int] = (0, 0)) -> None:
        """Takes a new worker id and closes all producers that were started under the old one.

        `place` is the worker's index in the dispatcher's list of workers and the list's length.
        """
        with self._lock:
            # Before the new id is set: from then on streams may arrive under it.
            self.pipelines.mark_doubtful()
            self.worker_id = worker_id
            self._place = place
            producers = self._producers.forget(self._producers.iterations())
        for producer in producers:
            producer.close()

    def end_iterations(self, iteration_ids: set[str]) -> None:
        """Closes the producers of iterations that have ended."""
        with self._lock:
            producers = self._producers.forget(iteration_ids)
        for producer in producers:
            producer.close()

    def iterations(self) -> list[str]:
        """Returns the ids of the iterations that have a producer."""
        with self._lock:
            return list(self._producers.iterations())

    def load(self) -> tuple[int, int]:
        """Returns the rows produced so far and the bytes that wait for readers."""
        with self._lock:
            return self._producers.load()

    def counters(self) -> list[ProducerCounters]:
        """Returns, for each producer, its rows so far and how long it waited for readers."""
        with self._lock:
            producers = self._producers.by_iteration()
        return [
            ProducerCounters(
                iteration, id(producer), producer.frames.rows, producer.frames.wait_timer.waited_s()
            )
            for iteration, producer in producers
        ]

    def stop(self) -> None:
        """Closes all producers and refuses new streams.

        Idempotent; waits at most `STOP_TIMEOUT_S` for the producers' threads.
        """
        with self._lock:
            self._stopped = True
            producers = self._producers.forget(self._producers.iterations())
        for producer in producers:
            producer.close()
        # A thread that still computes while the interpreter shuts down can crash the process.
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for producer in producers:
            producer.join(deadline_s)

    def is_stopped(self) -> bool:
        return self._stopped

    # Streams

    def stream(self, command: Command, channel: Channel) -> None:
        """Sends a reader its elements until the end. Runs on the stream's own thread."""
        try:
            # A producer keeps the error that it ended with for the next reader, and raises it here.
            with clearing_locals():
                self._serve(command, channel)
        except UserFunctionError as error:
            error.worker = error.worker or self.address
            raise
        except DataServiceError:
            # First, because NotFoundError is a KeyError as well.
            raise
        except KeyError as error:
            raise InvalidArgumentError(f"the command lacks {error}") from error

    def _serve(self, command: Command, channel: Channel) -> None:
        if command.get("trainer"):
            self._stream_cached(command, channel)
        elif command["options"]["num_consumers"]:
            consumer = int(command["consumer"])
            rounds = self._shared(command, (RoundProducer,), self._factory.rounds)
            serve_rounds(rounds.frames, consumer, channel)
        elif ShardingPolicy(command["policy"]) is ShardingPolicy.DYNAMIC:
            self._stream_windows(command, channel)
            await_close(channel)
        elif "taken" in command:
            self._record_taken(command)
        else:
            self._stream_task(command, channel)

    def _stream_windows(self, command: Command, channel: Channel) -> None:
        key = (command["iteration"], command["reader"])
        credit = int(command["credit"])
        producer = self._new_windows(key, command, run=credit if credit > _LEAST_CREDIT else 1)
        try:
            producer.start()
            send_frames(producer.frames, channel, credit)
        finally:
            self._drop_windows(key, producer)

    def _new_windows(
        self, key: tuple[str, str], command: Command, run: int
    ) -> WindowProducer[FrameBuffer]:
        pipeline = self._pipeline(command)
        with self._lock:
            producer = self._factory.windows(key, pipeline, self._check_identity(command), run)
            older = self._producers.replace_windows(key, producer)
        if older is not None:
            # The reader may still listen to the older stream, and would take a normal end of it
            # to mean that no rows follow.
            older.frames.end(UnavailableError("a newer stream of the reader took its place"))
            older.close()
        return producer

    def _drop_windows(self, key: tuple[str, str], producer: WindowProducer[FrameBuffer]) -> None:
        producer.close()
        with self._lock:
            self._producers.drop_windows(key, producer)

    def _stream_task(self, command: Command, channel: Channel) -> None:
        producer = self._shared(command, (TaskProducer,), self._factory.task)
        unconfirmed: deque[Frame] = deque()
        came_to_end = False
        producer.begin_stream()
        try:
            send_frames(producer.frames, channel, int(command["credit"]), unconfirmed)
            await_confirmation(channel, unconfirmed)
            came_to_end = True
        finally:
            producer.end_stream(unconfirmed, came_to_end=came_to_end)

    def _record_taken(self, command: Command) -> None:
        with self._lock:
            self._check_identity(command)
            producer = self._producers.tasks.get(command["iteration"])
        if isinstance(producer, TaskProducer):
            producer.record_taken((int(task), int(row)) for task, row in command["taken"])

    def _stream_cached(self, command: Command, channel: Channel) -> None:
        """Sends a trainer the elements that it has not had until the reader goes; never ends."""
        producer = self._shared(command, (WindowProducer, CachedTask), self._factory.cached)
        frames = producer.frames.of_trainer(str(command["trainer"]))
        send_frames(frames, channel, int(command["credit"]))

    def _shared(
        self,
        command: Command,
        kinds: tuple[type[Any], ...],
        make: Callable[[Command, Pipeline, str, tuple[int, int]], Shared],
    ) -> Shared:
        """Returns the producer that all streams of an iteration read; starts one if needed.

        InvalidArgumentError for a command of another kind: all readers of an iteration read alike.
        """
        pipeline = self._pipeline(command)
        iteration = command["iteration"]
        with self._lock:
            worker_id = self._check_identity(command)
            producer: Any = self._producers.tasks.get(iteration)
            if producer is None:
                producer = make(command, pipeline, worker_id, self._place)
                self._producers.tasks[iteration] = producer
                producer.start()
            elif not isinstance(producer, kinds):
                raise InvalidArgumentError(
                    f"iteration {iteration} is read in another way on this worker, by a "
                    f"{type(producer).__name__}: a stream's policy, number of consumers and "
                    "trainer are those with which its reader joined the iteration"
                )
            found: Shared = producer
            return found

    def _check_identity(self, command: Command) -> str:
        """Returns the worker's id; UnavailableError if the stream was opened for another id.

        A stream for an earlier id would get leases that nobody waits for.
        """
        if self._stopped:
            raise UnavailableError(f"worker {self.address} is stopping")
        if command["worker"] != self.worker_id:
            raise UnavailableError(
                f"the worker at {self.address} is {self.worker_id} now, not {command['worker']}"
            )
        return self.worker_id

    def _pipeline(self, command: Command) -> Pipeline:
        # First, because after a rejoin the same dataset id may stand for another plan.
        self._check_identity(command)
        options = JobOptions.from_json(command.get("options", {}))
        return self.pipelines.get(command["dataset"], options.on_error)

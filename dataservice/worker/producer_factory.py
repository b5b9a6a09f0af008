"""Makes the producers that streams read from, each as the command of its stream describes it.

Responsible for what a producer takes from the command, from the worker's configuration and from its
place in the dispatcher's list of workers. Keeps no producer, and knows neither channels nor who
shares a producer. Invariant: a producer that is made runs nothing and holds no lease until it is
started.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

from dataservice.config import WorkerConfig
from dataservice.dataset.division.static_sharding import Share
from dataservice.errors import DataServiceError, FailedPreconditionError
from dataservice.vocabulary import ShardingPolicy
from dataservice.worker.cached_task import CachedFrames, CachedTask
from dataservice.worker.dispatcher_link import DispatcherLink, StreamLeases
from dataservice.worker.leases import LeaseFeed
from dataservice.worker.outgoing import FrameBuffer, Sink
from dataservice.worker.producer import WindowProducer
from dataservice.worker.rounds import RoundProducer
from dataservice.worker.task import Pipeline
from dataservice.worker.task_producer import BOOKMARK_EVERY_S, TaskProducer, tasks_of

logger = logging.getLogger(__name__)

Command = dict[str, Any]
"""What a reader tells a worker when it opens a stream."""
CachedProducer = WindowProducer[CachedFrames] | CachedTask
"""A producer whose elements all trainers of an iteration read from a cache."""


class ProducerFactory:
    """Makes the producers of one worker. Thread-safe.

    `worker_id` and `place` are the worker's at the time: the latter is its index in the
    dispatcher's list of workers, with the list's length. `is_stopped` ends a report that retries.
    """

    def __init__(
        self, config: WorkerConfig, link: DispatcherLink, is_stopped: Callable[[], bool]
    ) -> None:
        self._config = config
        self._link = link
        self._is_stopped = is_stopped

    def windows(
        self, key: tuple[str, str], pipeline: Pipeline, worker_id: str, run: int
    ) -> WindowProducer[FrameBuffer]:
        """Makes the producer of the windows leased for one reader; `key`: (iteration, reader)."""
        frames = FrameBuffer(max(1, self._config.buffer_bytes // 2), pipeline.compression)
        return self._over_leases(key, pipeline, worker_id, frames, run)

    def _over_leases(
        self, key: tuple[str, str], pipeline: Pipeline, worker_id: str, frames: Sink, run: int = 1
    ) -> WindowProducer[Sink]:
        threads = self._config.pipeline_threads
        name = f"producer {'/'.join(key)}"
        leases = StreamLeases(self._link, worker_id, *key)
        feed = LeaseFeed(
            lambda count, wait_s: leases.ask(count, wait_s, producer.is_closed),
            leases.give_back,
            ahead=threads + 1,
            name=name,
        )
        producer = WindowProducer(
            feed,
            pipeline,
            frames,
            threads=threads,
            buffer_bytes=self._config.buffer_bytes,
            name=name,
            run=run,
        )
        return producer

    def task(
        self, command: Command, pipeline: Pipeline, worker_id: str, place: tuple[int, int]
    ) -> TaskProducer:
        """Makes the producer of a pass, or of a static share, that readers share."""
        iteration = command["iteration"]
        share = _share(command, place)
        return TaskProducer(
            pipeline,
            epoch=int(command["epoch"]),
            buffer_bytes=self._config.buffer_bytes,
            name=f"task {iteration}",
            on_drained=functools.partial(self._finish_task, worker_id, iteration),
            share=share,
            tasks=tasks_of(
                command.get("tasks"),
                None if share is None else share.index,
                command.get("bookmarks") or {},
                worker_id=worker_id,
                varied=bool(command.get("varied")),
            ),
            # A reader that sends no bookmarks cannot handle them either.
            bookmark_every_s=BOOKMARK_EVERY_S if "bookmarks" in command else math.inf,
        )

    def _finish_task(self, worker_id: str, iteration: str) -> None:
        try:
            self._link.finish_task(worker_id, iteration, self._is_stopped)
        except DataServiceError as error:
            logger.warning("could not report the end of %s: %s", iteration, error)

    def cached(
        self, command: Command, pipeline: Pipeline, worker_id: str, place: tuple[int, int]
    ) -> CachedProducer:
        """Makes the producer of the elements that all trainers of an iteration read."""
        iteration = command["iteration"]
        frames = CachedFrames(self._config.cache_bytes, pipeline.compression)
        if ShardingPolicy(command["policy"]) is ShardingPolicy.DYNAMIC:
            # Its windows are leased for all trainers together, so without a reader's id.
            return self._over_leases((iteration, ""), pipeline, worker_id, frames)
        share = _share(command, place)
        name = f"task {iteration}"
        return CachedTask(pipeline, frames, name=name, share=share, variant=worker_id)

    def rounds(
        self, command: Command, pipeline: Pipeline, worker_id: str, _place: tuple[int, int]
    ) -> RoundProducer:
        """Makes the producer of the rounds that this worker gives to all consumers."""
        return RoundProducer(
            pipeline,
            epoch=int(command["epoch"]),
            consumers=int(command["options"]["num_consumers"]),
            buffer_bytes=self._config.buffer_bytes,
            name=f"rounds {command['iteration']}",
            variant=worker_id,
        )


def _share(command: Command, place: tuple[int, int]) -> Share | None:
    """Returns this worker's static share of an iteration; None unless the policy is static.

    FailedPreconditionError if the iteration is divided for a list of another length.
    """
    policy = ShardingPolicy(command["policy"])
    if not policy.is_static:
        return None
    index, places = place
    if int(command["shards"]) != places:
        raise FailedPreconditionError(
            f"the iteration is divided by {command['shards']}, and the list of workers has "
            f"{places} places; start a new iteration"
        )
    return Share(policy, index, places, str(command["listing"]))

"""Stand-ins for everything that blocks, so that servers run without threads, clock or network.

The simulated shells are the real `DispatcherService`, `DispatcherEndpoint`, `Membership`,
`DispatcherLink`, `WorkerService`, `LeaseFeed`, `WindowProducer` and `ServiceReader`. Where one of
their threads would wait, a stand-in raises `Blocked`, and the thread's function is called again
when something has changed. If a call to the dispatcher was answered meanwhile, it then returns at
once. Invariant: nothing here depends on the real time, on hashing or on the process.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from dataservice.client.connection import JoinRequest
from dataservice.errors import CancelledError, FailedPreconditionError
from dataservice.runtime.checksum import checksum
from dataservice.wire.elements import pack_data
from dataservice.worker.production import WaitTimer
from tests.simulation.world import STAGE, Blocked

LONG_POLL_S = 1.0
# Attempts time out sooner than in production by this factor, to keep virtual lives short.
HASTE = 5.0


class Condition:
    """A condition variable whose waits raise `Blocked` and whose notifications call a listener."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock
        self.listener: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()

    def wait(self, _timeout_s: float | None = None) -> bool:
        raise Blocked

    def wait_for(self, predicate: Callable[[], object], _timeout_s: float | None = None) -> bool:
        if predicate():
            return True
        raise Blocked

    def notify_all(self) -> None:
        if self.listener is not None:
            self.listener()

    notify = notify_all


class Flag:
    """An event that nobody waits for."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class IdleThread:
    """A thread that never runs; the node calls the functions that it would run."""

    def __init__(self, _target: object, **_names: object) -> None:
        self.stop_event = Flag()

    def start(self) -> None:
        pass

    def request_stop(self) -> None:
        self.stop_event.set()

    def stop(self, _timeout_s: float = 0.0) -> bool:
        self.stop_event.set()
        return True


class Rows:
    """A record batch of one column of row ids."""

    __slots__ = ("ids", "nbytes", "num_rows")

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.num_rows = len(ids)
        self.nbytes = 8 * len(ids)

    def slice(self, offset: int, length: int | None = None) -> Rows:
        return Rows(self.ids[offset:] if length is None else self.ids[offset : offset + length])


def join_rows(pieces: list[Rows]) -> Rows:
    return Rows([row for piece in pieces for row in piece.ids])


def decode_rows(body: pa.Buffer, _schema: object) -> Rows:
    values = array("q")
    values.frombytes(body.to_pybytes())
    return Rows(values.tolist())


class Frames:
    """A producer's output: headers as on the wire, with bodies of row ids."""

    def __init__(self, _max_bytes: int, _compression: str | None) -> None:
        self.rows = 0
        self.wait_timer = WaitTimer()
        self.omissions = None
        self.size_bytes = 0
        self.queue: deque[tuple[bytes, bytes | None]] = deque()
        self.is_over = False
        self.failure: Exception | None = None

    def put(self, element: Any) -> None:
        if self.is_over:
            raise CancelledError("the producer is closed")
        if element.batch is None or not element.batch.num_rows:
            header = pack_data(
                0, 0, element.spans, divisible=False, more_follows=element.more_follows
            )
            self.queue.append((header, None))
            return
        body = array("q", element.batch.ids).tobytes()
        rows = element.batch.num_rows
        self.queue.append(
            (
                pack_data(
                    rows,
                    checksum(body),
                    element.spans,
                    divisible=element.divisible,
                    element_rows=element.element_rows,
                    more_follows=element.more_follows,
                ),
                body,
            )
        )
        self.rows += rows

    def end(self, failure: Exception | None = None) -> None:
        self.failure = self.failure or failure
        self.is_over = True

    def discard(self) -> None:
        self.is_over = True
        self.queue.clear()


class Buffer:
    """A buffer of elements for the consumer; streams check `is_low` before they add to it."""

    wakes = 0  # nothing happens between a look for news and the wait for them

    def __init__(self, max_items: int, _max_bytes: int) -> None:
        self._low_items = max(1, max_items // 2)
        self.items: deque[Any] = deque()
        self.listener: Callable[[], None] | None = None

    def is_low(self) -> bool:
        return len(self.items) <= self._low_items

    def await_low(self) -> bool:
        return True

    def put(self, items: Iterable[tuple[Any, int]]) -> bool:
        for item, _ in items:
            self.items.append(item)
            self.wake()
        return True

    def get(self, timeout_s: float, _wakes: int = 0) -> Any:
        if self.items:
            return self.items.popleft()
        if timeout_s:
            raise Blocked
        return None

    def wake(self) -> None:
        if self.listener is not None:
            self.listener()

    def close(self) -> None:
        self.items.clear()


class Rpc:
    """The calls that the running task makes to the dispatcher."""

    token = "token"
    tls = None

    def __init__(self, *_args: object, **_more: object) -> None:
        pass

    def call_retrying(
        self,
        method: str,
        request: object,
        *,
        timeout_s: float,
        attempt_timeout_s: float = 10.0,
        should_stop: Callable[[], bool] | None = None,
    ) -> Any:
        assert STAGE.task is not None
        return STAGE.task.ask(method, request, timeout_s, attempt_timeout_s / HASTE, should_stop)

    def call(self, method: str, request: object, *, timeout_s: float) -> None:
        """Makes one attempt without waiting, as its callers only log the outcome."""
        assert STAGE.node is not None
        STAGE.world.post(STAGE.node, method, request, timeout_s)

    def open_iteration(
        self,
        request: Any,
        *,
        timeout_s: float,
        should_stop: Any,
        made_s: float | None = None,  # noqa: ARG002
    ) -> Any:
        task: Any = STAGE.task
        if task.join is None:
            # All programs exist from the beginning, so a late reader belongs to the same run.
            task.join = JoinRequest(request, lambda: STAGE.world.now_s + 1.0)
        while task.opened is None:
            try:
                task.opened = self.call_retrying(
                    "OpenIteration", task.join.aged, timeout_s=timeout_s, should_stop=should_stop
                )
            except FailedPreconditionError:
                if not task.join.was_refused_late():
                    raise
        return task.opened

    def describe_position(self, request: Any, *, timeout_s: float) -> Any:
        return self.call_retrying("DescribePosition", request, timeout_s=timeout_s)

    def release_reader(self, request: Any, *, timeout_s: float) -> None:
        self.call("ReleaseReader", request, timeout_s=timeout_s)

    def close(self) -> None:
        pass


def next_id(prefix: str) -> str:
    if prefix == "reader":
        assert STAGE.node is not None
        return STAGE.node.name
    STAGE.ids += 1
    return f"{prefix}-{STAGE.ids}"


def now_s() -> float:
    offset_s = 0.0 if STAGE.node is None else STAGE.node.offset_s
    return STAGE.world.now_s + offset_s

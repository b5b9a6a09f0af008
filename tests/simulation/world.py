"""A virtual clock, nodes that crash and freeze, and a network that loses, doubles and delays.

Knows nothing of the protocols. There is one heap of events and one seeded generator. Invariant: two
runs of a seed do the same in the same order, which `digest` shows. Calls to the dispatcher are
datagrams that callers repeat; streams are modelled in the modules that use them.
"""

from __future__ import annotations

import heapq
import zlib
from array import array
from collections.abc import Callable
from random import Random
from typing import Any

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
MAX_EVENTS = 200_000


class Blocked(BaseException):
    """Raised where a thread would wait. Not an Exception, lest a handler take it for a failure."""


class Stage:
    """The world, node and task whose turn it is."""

    world: World
    node: Node | None = None
    task: Task | None = None
    ids = 0


STAGE = Stage()


class Node:
    """A process. A crash ends one of its lives, and events meant for that life are lost."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.alive = True
        self.frozen_until_s = 0.0
        self.offset_s = world.dice.uniform(-3600.0, 3600.0)

    def now_s(self) -> float:
        return self.world.now_s + self.offset_s

    def freeze(self, seconds: float) -> None:
        """Stops the process for a while; events that arrive meanwhile wait."""
        self.frozen_until_s = max(self.frozen_until_s, self.world.now_s + seconds)

    def die(self) -> None:
        self.alive = False
        self.life += 1
        self.frozen_until_s = 0.0


class World:
    """The clock, the random generator and the network."""

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.now_s = 0.0
        self.events = 0
        self._times_s = array("d")
        self._steps: list[str] = []
        self.verbose = verbose
        self.loss = self.doubling = self.delay_s = 0.0
        self.corrupt_frames = 0
        # Only for mutants: how many frames streams lose without breaking.
        self.lost_frames = 0
        # In some seeds so low that the dispatcher's intervals and time-outs exceed the configured.
        self.heartbeats_per_s = 1.5 if seed % 3 == 2 else 500.0
        # In some seeds so low that most polls find no slot in the dispatcher.
        self.max_polls = {2: 0, 4: 1}.get(seed % 7, 512)
        self.is_ordered = self.has_resumed = False
        self.doubles_frames = True
        self.dispatcher: Any = None
        self.checker: Any = None
        self.workers: dict[str, Any] = {}
        self._heap: list[
            tuple[float, int, Node | None, int | None, Callable[..., None], tuple]
        ] = []
        self._sequence = 0
        self._cuts: dict[tuple[str, str], float] = {}

    def at(
        self,
        delay_s: float,
        node: Node | None,
        action: Callable[..., None],
        *args: Any,
        any_life: bool = False,
    ) -> None:
        """Schedules an action of a node; it is dropped if the node's present life ends before.

        With `any_life` it happens in whatever life the node is by then.
        """
        if node is not None and not node.alive and not any_life:
            return
        self._sequence += 1
        life = None if node is None or any_life else node.life
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, node, life, action, args))

    def run(self, until_s: float, is_done: Callable[[], bool]) -> None:
        """Runs events until `is_done`, until none is left, or until the time `until_s`."""
        heap = self._heap
        while heap and not is_done():
            if self.events > MAX_EVENTS:
                raise RuntimeError(
                    f"{MAX_EVENTS} events until {self.now_s:.6f} s: time stands still"
                )
            if heap[0][0] > until_s:
                return  # Later events stay for a later run.
            time_s, sequence, node, life, action, args = heapq.heappop(heap)
            self.now_s = time_s
            if node is not None:
                if life is not None and life != node.life:
                    continue
                if node.frozen_until_s > time_s:
                    again = (node.frozen_until_s, sequence, node, life, action, args)
                    heapq.heappush(heap, again)
                    continue
            STAGE.node = node
            self.events += 1
            self.note(action.__name__, node)
            action(*args)

    def note(self, what: str, node: Node | None = None, *details: object) -> None:
        """Adds a step to the run's digest, and prints it if `verbose`."""
        name = "-" if node is None else node.name
        self._times_s.append(self.now_s)
        self._steps += (name, what)
        if self.verbose:
            print(f"{self.now_s:.6f} {name} {what}", *details)

    @property
    def digest(self) -> int:
        """A checksum of all steps and their times."""
        return zlib.crc32(" ".join(self._steps).encode(), zlib.crc32(self._times_s))

    # Network

    def cut(self, source: Node, target: Node, seconds: float) -> None:
        """Blocks all messages in this direction for a while."""
        self._cuts[(source.name, target.name)] = self.now_s + seconds

    def blocked_s(self, source: Node, target: Node) -> float:
        """Returns for how long no message passes in this direction."""
        return max(0.0, self._cuts.get((source.name, target.name), 0.0) - self.now_s)

    def latency_s(self) -> float:
        slow = self.dice.random() < 0.02
        return self.dice.random() * (0.004 + self.delay_s) + (self.delay_s * 5 if slow else 0.0)

    def send(self, source: Node, target: Node, action: Callable[..., None], *args: Any) -> None:
        """Sends a datagram, which may be lost, doubled or delayed."""
        if self.blocked_s(source, target) or self.dice.random() < self.loss:
            return
        copies = 2 if self.dice.random() < self.doubling else 1
        for _ in range(copies):
            self.at(self.latency_s(), target, action, *args, any_life=True)

    def post(self, node: Node, method: str, request: Any, timeout_s: float) -> None:
        """Makes a call of a single attempt whose outcome is ignored."""
        Call(self, node, method, request, lambda _: None, timeout_s, timeout_s, None).attempt()


class Call:
    """A call to the dispatcher, retried with backoff as `retry_until` does."""

    def __init__(
        self,
        world: World,
        node: Node,
        method: str,
        request: Any,
        on_done: Callable[[Any], None],
        timeout_s: float,
        attempt_timeout_s: float,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.node, self.method = node, method
        self.request: Any = None
        self._make = request if callable(request) else lambda: request
        self._world, self._on_done, self._should_stop = world, on_done, should_stop
        self._life = node.life
        self._deadline_s = world.now_s + timeout_s
        self._attempt_timeout_s = attempt_timeout_s
        self._number = 0
        self._pause_s = FIRST_PAUSE_S
        self._is_over = False

    def attempt(self) -> None:
        if self._should_stop is not None and self._should_stop():
            self._finish(CancelledError("closed while calling"))
            return
        self._number += 1
        self.request = self._make()
        dispatcher = self._world.dispatcher
        receive, life = dispatcher.receive, dispatcher.life
        self._world.send(self.node, dispatcher, receive, self, self._number, life)
        self._world.at(self._attempt_timeout_s, self.node, self._expire, self._number)

    def answer(self, number: int, value: Any) -> None:
        """Handles the answer of the dispatcher, or of its host, to an attempt."""
        if self._is_over or number != self._number or self.node.life != self._life:
            return
        if isinstance(value, UnavailableError | DeadlineExceededError):
            self._retry(value)
        else:
            self._finish(value)

    def _expire(self, number: int) -> None:
        if not self._is_over and number == self._number:
            self._retry(DeadlineExceededError(f"{self.method} took too long"))

    def _retry(self, error: DataServiceError) -> None:
        self._number += 1
        pause_s = self._pause_s * self._world.dice.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        if self._world.now_s + pause_s >= self._deadline_s:
            self._finish(error)
        else:
            self._world.at(pause_s, self.node, self.attempt)

    def _finish(self, value: Any) -> None:
        self._is_over = True
        self._on_done(value)


class Task:
    """A thread of a node: its function runs until it would block, and anew when it is resumed."""

    def __init__(
        self,
        node: Node,
        body: Callable[[], None],
        on_answer: Callable[[], None] | None = None,
    ) -> None:
        self._node = node
        self._body = body
        self._on_answer = on_answer or self.run
        self._answers: list[Any] = []
        self.join: Any = None  # the join request of a reader, which may have to ask twice
        self.opened: Any = None
        self.is_calling = False
        self.is_over = False

    @property
    def has_answer(self) -> bool:
        return bool(self._answers)

    def run(self) -> None:
        """Runs the function, unless a call is in flight or the function has returned."""
        if self.is_calling or self.is_over:
            return
        outer, STAGE.task = STAGE.task, self
        try:
            self._body()
            self.is_over = True
        except Blocked:
            pass
        finally:
            STAGE.task = outer

    def ask(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        attempt_timeout_s: float,
        should_stop: Callable[[], bool] | None,
    ) -> Any:
        """Returns the answer if there is one, or raises it; otherwise makes the call and blocks."""
        if self._answers:
            value = self._answers.pop()
            if isinstance(value, DataServiceError):
                raise value
            return value
        world = self._node.world
        self.is_calling = True
        call = Call(
            world,
            self._node,
            method,
            request,
            self._answered,
            timeout_s,
            attempt_timeout_s,
            should_stop,
        )
        # Deferred, so that a caller that is stopped already learns it after its function returned.
        world.at(0.0, self._node, call.attempt)
        raise Blocked

    def _answered(self, value: Any) -> None:
        self._answers.append(value)
        self.is_calling = False
        self._on_answer()

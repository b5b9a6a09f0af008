"""Fibers: the threads of simulated processes, which run one at a time and in virtual time.

The threads of a process run here unchanged: locks, conditions, queues, events and clocks are
stand-ins that yield wherever a thread would wait. A woken thread goes on by an event of the world,
after a random delay, so that seeds differ in how threads interleave. The threads of a process that
is killed end where they stand. Invariant: exactly one thread runs at any time, so a seed has one
outcome. A thread that waits for something real raises an error.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil

from tests.simulation.world import STAGE, Node

_WAKE_S = 0.0005

# The shortest wait. By a process's clock, which has an offset, the time left may be so little that
# adding it to the world's time changes nothing.
_TICK_S = 1e-9

_REAL_WAIT_MAX_S = 60.0
"""A fiber runs for milliseconds until it waits; one that takes this long waits in real time."""


class _Core:
    """The core on which all fibers run at present; None if they may run on any."""

    number: int | None = None


@contextmanager
def on_one_core() -> Iterator[None]:
    """Pins the alternating threads to one core, which halves the cost of their switches.

    Uses the core on which this thread runs at present, which the system chose.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    everywhere = os.sched_getaffinity(0)
    _Core.number = psutil.Process().cpu_num()
    os.sched_setaffinity(0, {_Core.number})
    try:
        yield
    finally:
        _Core.number = None
        os.sched_setaffinity(0, everywhere)


class Killed(BaseException):
    """Ends a thread whose process was killed."""


class _Carrier:
    """A real thread that runs one fiber after the other."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        self.job: Callable[[], None] | None = None
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self._thread = threading.Thread(target=self._run, name="fiber-carrier", daemon=True)
        self._thread.start()

    def where(self) -> str:
        """Returns the source line at which the thread runs or waits."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "it has ended"
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def _run(self) -> None:
        core: int | None = None
        while True:
            self.go.acquire()
            assert self.job is not None
            if _Core.number is not None and core != _Core.number:
                core = _Core.number
                os.sched_setaffinity(0, {core})
            self.job()
            self.back.release()


class Fiber:
    """A thread of a node; offers the part of `threading.Thread` that is used."""

    current: Fiber | None = None

    def __init__(
        self,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        *,
        name: str = "",
        daemon: bool = True,  # noqa: ARG002
        node: Node | None = None,
    ) -> None:
        found = node or STAGE.node
        assert found is not None
        self.node: Any = found
        self.name = name
        self._target, self._args = target, args
        self._carrier: _Carrier | None = None
        self._turn = 0
        self._is_woken = self._is_killed = self._is_started = self.is_over = False
        self._error: BaseException | None = None
        self._joining: list[Fiber] = []

    def start(self) -> None:
        self._is_started = True
        self.node.fibers.append(self)
        self.node.world.at(0.0, self.node, self._begin)

    def is_alive(self) -> bool:
        return self._is_started and not self.is_over

    def join(self, timeout_s: float | None = None) -> None:
        if self.is_alive():
            self._joining.append(running())
            wait(timeout_s)

    def wake(self) -> None:
        """Lets the waiting fiber go on, after a short random delay."""
        if not self._is_woken:
            self._is_woken = True
            world = self.node.world
            world.at(world.dice.random() * _WAKE_S, self.node, self._go_on, self._turn)

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until the fiber is woken, or for `timeout_s`; returns True if it was woken.

        Only the fiber itself may call this. The world's time advances in every wait, however short,
        so that a fiber which waits until a certain time sees it come.
        """
        if self._is_killed:
            raise Killed
        self._is_woken = False
        self._turn += 1
        if timeout_s is not None:
            wait_s = max(_TICK_S, timeout_s) if timeout_s > 0.0 else 0.0
            self.node.world.at(wait_s, self.node, self._go_on, self._turn)
        assert self._carrier is not None
        self._carrier.back.release()
        self._carrier.go.acquire()
        if self._is_killed:
            raise Killed
        return self._is_woken

    def kill(self) -> None:
        """Ends the fiber where it stands; not to be called by a fiber of the node."""
        self._is_killed = True
        if self._carrier is not None and not self.is_over:
            self._run()
        self.is_over = True

    def _begin(self) -> None:
        self._carrier = _Carrier.idle.pop() if _Carrier.idle else _Carrier()
        self._carrier.job = self._main
        self._run()

    def _go_on(self, turn: int) -> None:
        if turn == self._turn and not self.is_over:
            self._run()

    def _run(self) -> None:
        outer, Fiber.current = Fiber.current, self
        carrier = self._carrier
        assert carrier is not None
        carrier.go.release()
        has_waited = carrier.back.acquire(timeout=_REAL_WAIT_MAX_S)
        Fiber.current = outer
        if not has_waited:
            raise RuntimeError(f"a thread waits in real time: {carrier.where()}")
        if self.is_over:
            _Carrier.idle.append(carrier)
            if self in self.node.fibers:
                self.node.fibers.remove(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _main(self) -> None:
        try:
            self._target(*self._args)
        except Killed:
            pass
        except BaseException as error:
            self._error = None if self._is_killed else error
        self.is_over = True
        for other in self._joining:
            other.wake()


def running() -> Fiber:
    """Returns the running fiber."""
    assert Fiber.current is not None
    return Fiber.current


def wait(timeout_s: float | None) -> bool:
    """Has the running fiber wait to be woken; returns True if it was woken in time."""
    return running().wait(timeout_s)


class Process(Node):
    """A node whose threads are fibers."""

    def __init__(self, world: Any, name: str) -> None:
        super().__init__(world, name)
        self.fibers: list[Fiber] = []

    def spawn(self, target: Callable[..., None], *args: Any) -> Fiber:
        fiber = Fiber(target, args, node=self)
        fiber.start()
        return fiber

    def crash(self) -> None:
        """Kills the process (SIGKILL); not to be called by a fiber of the process."""
        self.die()
        for fiber in list(self.fibers):
            fiber.kill()
        self.fibers.clear()

    def crash_soon(self) -> None:
        """Kills the process at this very place of one of its fibers: nothing after it runs."""
        self.world.at(0.0, None, self.crash)
        wait(None)


class Lock:
    """A re-entrant lock."""

    def __init__(self) -> None:
        self._owner: Fiber | None = None
        self._depth = 0
        self._waiting: deque[Fiber] = deque()

    def acquire(self) -> bool:
        me = Fiber.current
        while self._depth and self._owner is not me:
            fiber = running()
            self._waiting.append(fiber)
            fiber.wait(None)
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        if self._owner is Fiber.current and self._depth:
            self._depth -= 1
            if not self._depth and self._waiting:
                self._waiting.popleft().wake()

    __enter__ = acquire

    def __exit__(self, *_exc: object) -> None:
        self.release()


class Condition:
    """A condition variable."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiting: list[Fiber] = []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        fiber = running()
        self._waiting.append(fiber)
        depth, self._lock._depth = self._lock._depth, 1
        self._lock.release()
        woken = fiber.wait(timeout_s)
        if fiber in self._waiting:
            self._waiting.remove(fiber)
        self._lock.acquire()
        self._lock._depth = depth
        return woken

    def wait_for(self, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
        deadline_s = None if timeout_s is None else STAGE.world.now_s + timeout_s
        while not predicate():
            left_s = None if deadline_s is None else deadline_s - STAGE.world.now_s
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            fiber.wake()

    notify = notify_all


class Event:
    """Stands for `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._changed = Condition()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout_s)


class SimpleQueue:
    """An unbounded queue; any code may put, only fibers may get."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[Fiber] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().wake()

    def get(self, timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else STAGE.world.now_s + timeout
        while not self._items:
            left_s = None if deadline_s is None else deadline_s - STAGE.world.now_s
            if left_s is not None and left_s <= 0:
                raise queue.Empty
            fiber = running()
            self._waiting.append(fiber)
            fiber.wait(left_s)
            if fiber in self._waiting:
                self._waiting.remove(fiber)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


def _now_s() -> float:
    return STAGE.world.now_s + (0.0 if STAGE.node is None else STAGE.node.offset_s)


THREADING = SimpleNamespace(
    Thread=Fiber,
    Lock=Lock,
    RLock=Lock,
    Condition=Condition,
    Event=Event,
    current_thread=lambda: Fiber.current,
)
QUEUE = SimpleNamespace(SimpleQueue=SimpleQueue, Empty=queue.Empty)
TIME = SimpleNamespace(monotonic=_now_s, perf_counter=_now_s, sleep=wait)

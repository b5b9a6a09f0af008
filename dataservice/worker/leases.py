"""A store of window leases for one reader's stream: leased ahead, handed out in order.

Knows two callables, to ask for leases and to give them back, and nothing of gRPC or of the contents
of a window. Asks for as many windows at once as are worked through in about `STORE_S`, so that tiny
windows do not cost a call each and large ones are not hoarded. Invariant: a lease that was granted
is either handed out or given back, even if its stream ended while the request was in flight,
because the dispatcher believes the lease to be with this worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dataservice.errors import CancelledError, DataServiceError, InternalError, NotFoundError
from dataservice.runtime.threads import RECHECK_S, StoppableThread
from dataservice.sharding import Split

logger = logging.getLogger(__name__)

LONG_POLL_S = 5.0
# How long the leases in store should last: long compared with a call to the dispatcher and its
# journal, short compared with the time that readers lose anyway when a worker is lost.
STORE_S = 0.1
# Bounds how many windows a stream with a stalled reader withholds from others, and a reply's size.
MAX_STORE = 1_024


class Lease(NamedTuple):
    """A window to run, from output row `start_row` on."""

    window: int
    generation: int
    start_row: int
    epoch: int
    window_in_epoch: int
    splits: tuple[Split, ...]


class Grant(NamedTuple):
    """The dispatcher's answer; `ended` means that there will be no more for this reader.

    `pause_s` above 0 means that the dispatcher cannot hold another long poll; the worker asks again
    after that time.
    """

    leases: tuple[Lease, ...]
    ended: bool
    pause_s: float = 0.0


Ask = Callable[[int, float], Grant]
GiveBack = Callable[[Sequence[Lease]], None]


class StoreSize:
    """The number of leases to keep in store: `least` at first, then as many as last for `STORE_S`.

    Doubles if the store lasts less long than that, or is empty when new leases come; halves if it
    lasts more than twice as long. Pure; not thread-safe.
    """

    def __init__(self, least: int) -> None:
        self.count = least
        self._least = least
        self._taken = 0
        self._since_s = 0.0

    def record_taken(self) -> None:
        """Counts a lease that was handed out."""
        self._taken += 1

    def record_granted(self, now_s: float, *, held: int) -> None:
        """Adapts `count`, when new leases come, to how long those taken since last time lasted.

        `held` is the number of leases that were left in store.
        """
        since_s, self._since_s = self._since_s, now_s
        taken, self._taken = self._taken, 0
        if not taken:
            return
        lasts_s = (now_s - since_s) * self.count / taken
        if not held or lasts_s < STORE_S:
            self.count = min(MAX_STORE, 2 * self.count)
        elif lasts_s > 2 * STORE_S:
            self.count = max(self._least, self.count // 2)


class LeaseFeed:
    """A thread that keeps leases in store: at least `ahead`, more if they are used up quickly.

    `lock` guards the state of the feed and of its owner, so that the owner can wait for leases and
    for its own work at once. The condition `changed` uses this lock; it is notified when the
    dispatcher grants leases or has none, and at the end. Methods whose names end in `_locked`
    expect the caller to hold the lock.
    """

    def __init__(self, ask: Ask, give_back: GiveBack, *, ahead: int, name: str) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._needed = threading.Condition(self.lock)
        self._ask = ask
        self._give_back = give_back
        self._store = StoreSize(ahead)
        self._leases: deque[Lease] = deque()
        self._dry = False
        self._ended = False
        self._not_before_s = float("-inf")
        self._failure: DataServiceError | None = None
        self._thread = StoppableThread(self._run, owner=name, name="leases")

    def start(self) -> None:
        """Starts asking for leases."""
        self._thread.start()

    def stop(self) -> None:
        """Stops asking and gives back the leases in store. Does not wait."""
        self._thread.request_stop()
        with self.lock:
            self._needed.notify_all()

    def take_locked(self) -> Lease | None:
        """Takes the next lease out of the store; None if the store is empty."""
        if not self._leases:
            return None
        self._store.record_taken()
        lease = self._leases.popleft()
        if self._wanted():
            self._needed.notify()
        return lease

    def is_dry_locked(self) -> bool:
        """True if the store is empty and the dispatcher had nothing more when last asked."""
        return not self._leases and (self._dry or self._ended)

    def holds_any_locked(self) -> bool:
        """True if a lease is in store."""
        return bool(self._leases)

    def is_over_locked(self) -> bool:
        """True if no lease is in store and none will come, at the end or after a failed request."""
        return not self._leases and (self._ended or self._failure is not None)

    def raise_failure_locked(self) -> None:
        """Raises the error that a request for leases failed with, if one did."""
        if self._failure is not None:
            raise self._failure

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set() and not self._ended:
                self._ask_once(stop)
        except DataServiceError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(InternalError(f"leasing windows failed: {error!r}"))
            raise
        finally:
            self._return_unused(stop)

    def _fail(self, error: DataServiceError) -> None:
        with self.lock:
            self._failure = error
            self.changed.notify_all()

    def _ask_once(self, stop: threading.Event) -> None:
        with self.lock:
            self._needed.wait_for(lambda: self._may_ask() or stop.is_set(), self._wait_s())
            if stop.is_set() or not self._may_ask():
                return
            count, wait_s = self._wanted(), LONG_POLL_S if self._dry else 0.0
        grant = self._ask(count, wait_s)
        with self.lock:
            self._store.record_granted(time.monotonic(), held=len(self._leases))
            self._leases.extend(grant.leases)
            self._dry = not grant.leases
            self._ended = grant.ended
            self._not_before_s = time.monotonic() + grant.pause_s
            self.changed.notify_all()

    def _may_ask(self) -> bool:
        return self._wanted() > 0 and time.monotonic() >= self._not_before_s

    def _wait_s(self) -> float:
        """Returns how long to wait: until the dispatcher's pause is over, at most `RECHECK_S`."""
        pause_s = self._not_before_s - time.monotonic()
        return min(pause_s, RECHECK_S) if pause_s > 0 else RECHECK_S

    def _wanted(self) -> int:
        """Returns how many leases to ask for; 0 until half of the store is used up."""
        size, held = self._store.count, len(self._leases)
        return size - held if held <= size // 2 else 0

    def _return_unused(self, stop: threading.Event) -> None:
        if not stop.is_set():
            return
        with self.lock:
            unused = tuple(self._leases)
            self._leases.clear()
            self._ended = True
            self.changed.notify_all()
        if not unused:
            return
        try:
            self._give_back(unused)
        except (CancelledError, NotFoundError):
            logger.debug("the worker has left, and its leases with it")
        except DataServiceError as error:
            logger.warning("could not give %d windows back: %s", len(unused), error)

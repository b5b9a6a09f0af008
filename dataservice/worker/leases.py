"""The windows that one reader's stream gets from this worker: leased ahead, handed out in order.

Knows how to ask and how to give back (callables), nothing of gRPC or of what a window contains.
Asks for as many at once as are worked through in a moment, so that tiny windows do not cost a call
each and large ones are not hoarded. Invariant: a lease that was granted is either handed out or
given back, even when its stream ended while the request was under way: the dispatcher believes it
to be with this worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dataservice.errors import CancelledError, DataServiceError, InternalError, NotFoundError
from dataservice.runtime.threads import StoppableThread
from dataservice.sharding import Split

logger = logging.getLogger(__name__)

LONG_POLL_S = 5.0
# Work to keep in store: long beside a call to the dispatcher and its journal, short beside the
# time that a lost worker costs its readers anyway.
STORE_S = 0.1
# Bounds what a stream whose reader stalls keeps from others, and the size of a reply.
MAX_STORE = 1_024
_RECHECK_S = 1.0


class Lease(NamedTuple):
    """One window to run, from output row `start_row` on."""

    window: int
    generation: int
    start_row: int
    epoch: int
    window_in_epoch: int
    splits: tuple[Split, ...]


class Grant(NamedTuple):
    """The dispatcher's answer; `ended` means that there will be no more for this reader.

    `pause_s`: the dispatcher lets nobody else wait, and is to be asked again after that.
    """

    leases: tuple[Lease, ...]
    ended: bool
    pause_s: float = 0.0


Ask = Callable[[int, float], Grant]
GiveBack = Callable[[Sequence[Lease]], None]


class StoreSize:
    """How many leases to keep in store: `least` at first, then as many as last for `STORE_S`.

    Doubles while a store is used up sooner than that, or before the next leases come; halves when
    it lasts twice as long. Pure; not thread safe.
    """

    def __init__(self, least: int) -> None:
        self.count = least
        self._least = least
        self._taken = 0
        self._since_s: float | None = None

    def note_taken(self) -> None:
        """A lease was handed out."""
        self._taken += 1

    def note_granted(self, now_s: float, *, held: int) -> None:
        """New leases came while `held` were left: sees how long those taken since then lasted."""
        since_s, self._since_s = self._since_s, now_s
        taken, self._taken = self._taken, 0
        if since_s is None or not taken:
            return
        lasts_s = (now_s - since_s) * self.count / taken
        if not held or lasts_s < STORE_S:
            self.count = min(MAX_STORE, 2 * self.count)
        elif lasts_s > 2 * STORE_S:
            self.count = max(self._least, self.count // 2)


class LeaseFeed:
    """Keeps leases in store, `ahead` at least, more where they are used up in no time.

    `lock` guards the feed's state, and that of its owner, so that one wait covers leases and the
    owner's work; `news`, a condition of it, is notified of new leases, of their absence and of the
    end. Methods ending in `_held` expect the lock to be held.
    """

    def __init__(self, ask: Ask, give_back: GiveBack, *, ahead: int, name: str) -> None:
        self.lock = threading.Lock()
        self.news = threading.Condition(self.lock)
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
        """Starts asking."""
        self._thread.start()

    def stop(self) -> None:
        """Stops asking and gives back what is in store. Does not wait."""
        self._thread.request_stop()
        with self.lock:
            self._needed.notify_all()

    def take_held(self) -> Lease | None:
        """The next lease, or None when there is none now."""
        if not self._leases:
            return None
        self._store.note_taken()
        lease = self._leases.popleft()
        if self._wanted():
            self._needed.notify()
        return lease

    def is_dry_held(self) -> bool:
        """The dispatcher has nothing for this reader now."""
        return not self._leases and (self._dry or self._ended)

    def holds_any_held(self) -> bool:
        """Whether a lease is in store."""
        return bool(self._leases)

    def is_over_held(self) -> bool:
        """No lease is in store and none will come: the end, or asking failed."""
        return not self._leases and (self._ended or self._failure is not None)

    def raise_failure_held(self) -> None:
        """Raises what asking failed with, if it did."""
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
            self.news.notify_all()

    def _ask_once(self, stop: threading.Event) -> None:
        with self.lock:
            self._needed.wait_for(lambda: self._may_ask() or stop.is_set(), self._patience_s())
            if stop.is_set() or not self._may_ask():
                return
            count, wait_s = self._wanted(), LONG_POLL_S if self._dry else 0.0
        grant = self._ask(count, wait_s)
        with self.lock:
            self._store.note_granted(time.monotonic(), held=len(self._leases))
            self._leases.extend(grant.leases)
            self._dry = not grant.leases
            self._ended = grant.ended
            self._not_before_s = time.monotonic() + grant.pause_s
            self.news.notify_all()

    def _may_ask(self) -> bool:
        return self._wanted() > 0 and time.monotonic() >= self._not_before_s

    def _patience_s(self) -> float:
        """Until the pause that the dispatcher asked for is over, or to look again."""
        pause_s = self._not_before_s - time.monotonic()
        return min(pause_s, _RECHECK_S) if pause_s > 0 else _RECHECK_S

    def _wanted(self) -> int:
        """How many to ask for; none before half of the store is used up."""
        size, held = self._store.count, len(self._leases)
        return size - held if held <= size // 2 else 0

    def _return_unused(self, stop: threading.Event) -> None:
        if not stop.is_set():
            return
        with self.lock:
            unused = tuple(self._leases)
            self._leases.clear()
            self._ended = True
            self.news.notify_all()
        if not unused:
            return
        try:
            self._give_back(unused)
        except (CancelledError, NotFoundError):
            logger.debug("the worker has left, and its leases with it")
        except DataServiceError as error:
            logger.warning("could not give %d windows back: %s", len(unused), error)

"""Where omissions are added up: one ledger for each pass, one page for each run of a part of it.

The time that operators take in other processes comes by the same notes. Thread safe. Knows nothing
of operators. Invariant: a run that is repeated replaces its page, so that a window that is replayed
is counted once.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections import OrderedDict
from typing import Final

from dataservice.dataset.timing import WorkLog
from dataservice.omissions import NOTHING, Omitted

logger = logging.getLogger(__name__)

_PAGES_KEPT: Final = 10_000
_PLACES_LOGGED: Final = 20
_NOTES_AT_ONCE: Final = 16
_UNREPEATED: Final = "+"
_WORK: Final = "work"
_WORK_EVERY_S: Final = 0.1


class Ledger:
    """What the runs of a pass left out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, Omitted] = OrderedDict()
        self._older = NOTHING
        # Asked for many times a second; None while it has to be added up anew.
        self._total: Omitted | None = NOTHING
        self._logged: set[str] = set()
        self._is_told = False
        self.work = WorkLog()

    def page(self, key: str | None = None) -> Page:
        """For a run that begins: what it leaves out replaces what was noted under `key`.

        Without a key the run is one that is never repeated.
        """
        return Page(self, key)

    def add(self, omitted: Omitted) -> None:
        """Notes something that is left out for good."""
        with self._lock:
            self._older += omitted
            self._total = self._exchanged(NOTHING, omitted)

    def record(self, key: str, omitted: Omitted) -> None:
        """Notes all that a run left out so far."""
        with self._lock:
            before = self._pages.pop(key, NOTHING)
            self._pages[key] = omitted
            self._total = self._exchanged(before, omitted)
            # So many runs that lose something are not replayed any more.
            if len(self._pages) > _PAGES_KEPT:
                self._older += self._pages.popitem(last=False)[1]

    def _exchanged(self, before: Omitted, omitted: Omitted) -> Omitted | None:
        """The total with one page for another."""
        known = self._total
        return known if known is None else known.exchanged(before, omitted)

    def record_all(self, notes: bytes) -> None:
        """Notes what an Outbox gave away."""
        for key, encoded in json.loads(notes):
            if key == _WORK:
                self.work.add(encoded)
                continue
            omitted = Omitted.from_json(encoded)
            if key.startswith(_UNREPEATED):
                self.add(omitted)
            else:
                self.record(key, omitted)

    def total(self) -> Omitted:
        """The sum over all runs."""
        with self._lock:
            if self._total is None:
                self._total = sum(self._pages.values(), self._older)
            return self._total

    def announce_total(self) -> None:
        """At the end of a pass: logs what is missing from it, once."""
        total = self.total()
        if total and not self._is_told:
            self._is_told = True
            logger.warning("the pass is complete but for %s; the first: %s", total, total.messages)

    def announce(self, place: str, message: str) -> None:
        """Logs the first omission at a place; the others are only counted."""
        with self._lock:
            if place in self._logged or len(self._logged) >= _PLACES_LOGGED:
                return
            self._logged.add(place)
            is_last = len(self._logged) == _PLACES_LOGGED
        rest = "; more places are only counted" if is_last else ""
        logger.warning("left out, as on_error='skip' asks: %s%s", message, rest)


class Page:
    """What one run leaves out. Thread safe without a key."""

    def __init__(self, ledger: Ledger, key: str | None) -> None:
        self.ledger = ledger
        self._key = key
        self._omitted = NOTHING

    def function_rows(self, rows: int, place: str, message: str) -> None:
        """A function failed on so many rows at `place`."""
        self._add(Omitted.of_function(rows, message), place, message)

    def split(self, path: str | None, rows: int | None, message: str) -> None:
        """A split is left out from some row on."""
        self._add(Omitted.of_split(path, rows, message), path or message, message)

    def _add(self, omitted: Omitted, place: str, message: str) -> None:
        self.ledger.announce(place, message)
        if self._key is None:
            self.ledger.add(omitted)
            return
        self._omitted += omitted
        self.ledger.record(self._key, self._omitted)


class Outbox(Ledger):
    """A ledger whose pages are to be sent elsewhere, and are forgotten when they were."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._work_told_s = 0.0

    def add(self, omitted: Omitted) -> None:
        # An entry of its own: the next one may be sent to somebody else.
        self.record(f"{_UNREPEATED}{next(self._numbers)}", omitted)

    def take(self, *, is_last: bool = False) -> bytes | None:
        """Some pages as JSON, for `record_all`; None when there is nothing new.

        Of the time that work takes there is something new now and then, and for the last call.
        """
        now_s = time.monotonic()
        work = []
        if is_last or now_s - self._work_told_s >= _WORK_EVERY_S:
            self._work_told_s = now_s
            work = self.work.take()
        if not self._pages and not work:
            return None
        taken: list[tuple[str, object]] = [(_WORK, work)] if work else []
        with self._lock:
            while self._pages and len(taken) < _NOTES_AT_ONCE:
                key, omitted = self._pages.popitem(last=False)
                taken.append((key, omitted.to_json()))
        return json.dumps(taken).encode()

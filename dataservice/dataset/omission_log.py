"""Adds up omissions: a log for each pass over the data, an entry for each run of a part of it.

The same notes also carry the time that operators take in other processes. Thread-safe. Knows
nothing of operators. Invariant: a repeated run replaces its entry, so that the omissions of a
window that is replayed are counted once.
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

_RUNS_KEPT: Final = 10_000
_PLACES_LOGGED: Final = 20
_NOTES_AT_ONCE: Final = 16
_UNREPEATED: Final = "+"
_WORK: Final = "work"
_WORK_EVERY_S: Final = 0.1


class OmissionLog:
    """The omissions of all runs of a pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, Omitted] = OrderedDict()
        self._older = NOTHING
        # Cached, since it is read many times a second; None if it has to be added up anew.
        self._total: Omitted | None = NOTHING
        self._logged: set[str] = set()
        self._is_announced = False
        self.work = WorkLog()

    def open_run(self, key: str | None = None) -> RunOmissions:
        """Begins a run, whose omissions replace those recorded under `key`.

        Without a key, the run is never repeated.
        """
        return RunOmissions(self, key)

    def add(self, omitted: Omitted) -> None:
        """Adds an omission that is final, since its run is never repeated."""
        with self._lock:
            self._older += omitted
            self._total = self._exchanged(NOTHING, omitted)

    def record(self, key: str, omitted: Omitted) -> None:
        """Records all omissions of a run so far, in place of those recorded under its key."""
        with self._lock:
            before = self._runs.pop(key, NOTHING)
            self._runs[key] = omitted
            self._total = self._exchanged(before, omitted)
            # An entry that is this many runs old belongs to a run that is not replayed any more.
            if len(self._runs) > _RUNS_KEPT:
                self._older += self._runs.popitem(last=False)[1]

    def _exchanged(self, before: Omitted, omitted: Omitted) -> Omitted | None:
        """Returns the total with one entry in place of another, or None to add it up anew."""
        known = self._total
        return known if known is None else known.exchanged(before, omitted)

    def record_all(self, notes: bytes) -> None:
        """Records the notes that `OmissionOutbox.take` returned, perhaps in another process."""
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
        """Returns the sum over all runs."""
        with self._lock:
            if self._total is None:
                self._total = sum(self._runs.values(), self._older)
            return self._total

    def announce_total(self) -> None:
        """Logs, once and at the end of a pass, what is missing from it."""
        total = self.total()
        if total and not self._is_announced:
            self._is_announced = True
            message = "the pass is complete but for %s, such as: %s; stats()['skipped'] has more"
            logger.warning(message, total, total.messages[0])

    def announce(self, place: str, message: str) -> None:
        """Logs the first omission at each of the first twenty places; others are only counted."""
        with self._lock:
            if place in self._logged or len(self._logged) >= _PLACES_LOGGED:
                return
            self._logged.add(place)
            is_last = len(self._logged) == _PLACES_LOGGED
        rest = "; more places are only counted" if is_last else ""
        logger.warning("left out, as on_error='skip' asks: %s%s", message, rest)


class RunOmissions:
    """The omissions of one run. Thread-safe only if it has no key."""

    def __init__(self, log: OmissionLog, key: str | None) -> None:
        self.log = log
        self._key = key
        self._omitted = NOTHING

    def function_rows(self, rows: int, place: str, message: str) -> None:
        """Records that a function failed on `rows` rows at `place`."""
        self._add(Omitted.of_function(rows, message), place, message)

    def split(self, path: str | None, rows: int | None, message: str) -> None:
        """Records that the rest of a split is left out: `rows` rows, None if not known."""
        self._add(Omitted.of_split(path, rows, message), path or message, message)

    def source_rows(self, path: str, rows: int, message: str) -> None:
        """Records that `rows` rows of a file are left out, but not what follows them."""
        self._add(Omitted.of_rows(path, rows, message), path, message)

    def _add(self, omitted: Omitted, place: str, message: str) -> None:
        self.log.announce(place, message)
        if self._key is None:
            self.log.add(omitted)
            return
        self._omitted += omitted
        self.log.record(self._key, self._omitted)


class OmissionOutbox(OmissionLog):
    """A log whose entries are sent to another process, and forgotten once they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._work_sent_s = 0.0

    def add(self, omitted: Omitted) -> None:
        # An entry of its own for each omission: the next one may be sent to another reader.
        self.record(f"{_UNREPEATED}{next(self._numbers)}", omitted)

    def take(self, *, is_last: bool = False) -> bytes | None:
        """Returns some entries as JSON, for `record_all`; None if there is nothing new.

        Operator times are included at most every 0.1 s, and in the last call.
        """
        now_s = time.monotonic()
        work = []
        if is_last or now_s - self._work_sent_s >= _WORK_EVERY_S:
            self._work_sent_s = now_s
            work = self.work.take()
        if not self._runs and not work:
            return None
        taken: list[tuple[str, object]] = [(_WORK, work)] if work else []
        with self._lock:
            while self._runs and len(taken) < _NOTES_AT_ONCE:
                key, omitted = self._runs.popitem(last=False)
                taken.append((key, omitted.to_json()))
        return json.dumps(taken).encode()

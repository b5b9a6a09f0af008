"""Settles what a lost trainer left behind, on the parameter servers and on the data services.

First every server fences the trainer, so that it can change nothing more there, and reports what it
had decided and prepared. Parts that were decided on any server are completed on all, parts that
were only prepared are dropped. A closure that made notes on its parts ends with the notes on the
decided parts, because the result of another run would not cover these. Then the data services are
told which rows counted; they give the others to other readers. Knows neither threads nor the
scheduler's state. Invariant: the trainer's other closures run again only after all this.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dataservice
from dataservice.errors import DataServiceError
from pstrain.coordinator.decide import DecidedClosure
from pstrain.errors import DataLossError
from pstrain.reader_marks import Marks
from pstrain.serialization import remote_errors, results
from pstrain.trainer.client import RemoteParameters

logger = logging.getLogger(__name__)


class LostRunNotes(NamedTuple):
    """The value of a closure that ended with the loss of its trainer: the notes it had made."""

    notes: list[Any]


class Settlement(NamedTuple):
    """The result of settling a lost trainer: decided closures, outcomes (value, error), marks."""

    decided: dict[int, DecidedClosure]
    outcomes: dict[int, tuple[Any, Exception | None]]
    marks: Marks


def settle_servers(servers: RemoteParameters, trainer: str) -> Settlement:
    """Fences the trainer and completes what it had decided; may raise UnavailableError."""
    reports = servers.fence(trainer)
    entries = {tuple(entry[:3]): entry for each in reports.values() for entry in each["decided"]}
    marks: Marks = {}
    for report in reports.values():
        marks = merged(marks, report["rows"].values())
    keys = {
        ps: [key for key in report["held"] if tuple(key) in entries]
        for ps, report in reports.items()
    }
    servers.complete(trainer, keys)
    parts: dict[int, list[list[Any]]] = {}
    for key in sorted(entries):
        parts.setdefault(key[0], []).append(entries[key])
    # A closure that only met the end of its data did nothing: it runs again.
    parts = {c: each for c, each in parts.items() if not (each[-1][3] or {}).get("met_end")}
    outcomes = {closure: _end_of(each) for closure, each in parts.items()}
    ended = {closure: end for closure, end in outcomes.items() if end is not None}
    decided = {
        closure: DecidedClosure(
            attempt=attempt,
            parts=plain,
            has_ended=closure in ended,
            is_error=outcome is not None and "value" not in outcome,
        )
        for closure, attempt, _, outcome, plain, _ in (each[-1] for each in parts.values())
    }
    return Settlement(decided, ended, marks)


def _end_of(parts: list[list[Any]]) -> tuple[Any, Exception | None] | None:
    """Returns the outcome of a closure from its decided parts, in order, or the notes it left.

    None if the closure has to run again.
    """
    _, attempt, _, outcome, _, _ = parts[-1]
    if outcome is not None:
        return _decoded(outcome)
    notes = [part[5] for part in parts if part[1] == attempt and part[5] is not None]
    if not notes:
        return None
    return LostRunNotes(
        [each for note in notes for each in results.decode(base64.b64decode(note))]
    ), None


def settle_services(trainer: str, services: Iterable[str], marks: Marks, timeout_s: float) -> None:
    """Tells the data services which rows of the lost trainer's readers counted."""
    targets = {mark["service"] for mark in marks.values()} | set(services)
    for service in sorted(targets):
        consumed = {
            reader: mark["marks"] for reader, mark in marks.items() if mark["service"] == service
        }
        try:
            count = dataservice.release_readers(service, trainer, consumed, timeout_s=timeout_s)
            logger.info("%s: %d readers of %s released", service, count, trainer)
        except DataServiceError as error:
            logger.warning(
                "could not tell %s which rows %s had used; it waits for some time and then gives "
                "all that were not acknowledged to other readers: %s", service, trainer, error
            )  # fmt: skip


def merged(marks: Marks, more: Iterable[Mapping[str, Any]]) -> Marks:
    """Merges ``more`` into ``marks``; of each window, the further mark stays."""
    result = dict(marks)
    for mark in more:
        known = result.get(mark["reader"])
        windows = {each[0]: each for each in ([] if known is None else known["marks"])}
        for each in mark["marks"]:
            if each[0] not in windows or windows[each[0]][2:] < each[2:]:
                windows[each[0]] = each
        result[mark["reader"]] = {**mark, "marks": list(windows.values())}
    return result


def _decoded(outcome: Mapping[str, Any]) -> tuple[Any, Exception | None]:
    if "value" in outcome:
        return results.decode(base64.b64decode(outcome["value"])), None
    if "error" in outcome:
        return None, remote_errors.decode(outcome["error"])
    return None, DataLossError(
        f"this closure's changes were made, but its trainer was lost before its value "
        f"({outcome['bytes']:,} bytes) arrived; values of up to 1 MiB are kept by the servers"
    )

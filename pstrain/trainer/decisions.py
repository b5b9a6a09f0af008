"""Encodes what servers and the coordinator are told of parts that commit together.

Pure. Invariant: a decision contains all that the coordinator has to know of the closures, because
the trainer that decides may be lost before it reports them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pstrain.paramserver.messages import Header, Message
from pstrain.serialization import results
from pstrain.trainer.staging import ClosureRun, PendingPart, one_message
from pstrain.trainer.turns import Ticket, last_receipts
from pstrain.vocabulary import OUTCOME_MAX_BYTES
from pstrain.wire import trainer_pb2 as pb


def by_server(group: Iterable[PendingPart]) -> dict[int, tuple[list[Header], Any]]:
    """Returns the changes of all members by server: their headers, and one body."""
    changes: dict[int, list[tuple[Header, Any]]] = {}
    for member in group:
        for ps, mine in member.run.changes.items():
            changes.setdefault(ps, []).extend(mine)
    return {ps: one_message(mine) for ps, mine in changes.items()}


def with_changes(header: Header, changes: tuple[list[Header], Any]) -> Message:
    return {**header, "changes": changes[0]}, changes[1]


def decision(header: Header, group: Sequence[PendingPart], tickets: Sequence[Ticket]) -> Header:
    """Returns the header of a decision; ``tickets``: those of all members."""
    return {
        **header,
        "kind": "decide",
        "entries": [_entry(member) for member in group],
        "rows": _marks(tickets),
    }


def tickets_of(group: Iterable[PendingPart]) -> list[Ticket]:
    return [ticket for member in group for ticket in member.run.tickets]


def _entry(member: PendingPart) -> list[Any]:
    token = member.run.token
    run, outcome = member.run, _outcome(member.result)
    entry = [token.closure, token.attempt, run.part, outcome, run.plain + (not run.tickets)]
    return entry if member.note is None else [*entry, member.note]


def _outcome(result: pb.ClosureResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    if result.WhichOneof("outcome") == "error_json":
        error = {"error": result.error_json}
        return {**error, "met_end": True} if result.ended_resource_ids else error
    if len(result.value) > OUTCOME_MAX_BYTES:
        return {"bytes": len(result.value)}
    return {"value": base64.b64encode(result.value).decode()}


def encoded_notes(run: ClosureRun) -> str | None:
    """Encodes the notes that a closure which goes on made on its current part; None if none."""
    if not run.notes:
        return None
    note = base64.b64encode(results.encode(run.notes)).decode()
    run.noted_bytes += len(note)
    return note


def _marks(tickets: Iterable[Ticket]) -> list[dict[str, Any]]:
    return [mark for receipt in last_receipts(tickets) for mark in receipt.marks()]


def encoded_marks(tickets: Iterable[Ticket]) -> str:
    """Returns, as JSON, the reader marks for the data services once these elements are used up."""
    return json.dumps(_marks(tickets))

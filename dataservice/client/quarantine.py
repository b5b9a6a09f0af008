"""How a reader treats windows in quarantine: given up because they killed their workers.

Responsible for the error or for counting the missing rows. Pure but for the ledger that it writes
to; knows no streams. Invariant: windows missing from an epoch are either an error at its end or, if
the user asked for that, counted as left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataservice.dataset.ledger import Ledger
from dataservice.errors import QuarantinedError
from dataservice.job_options import JobOptions
from dataservice.omissions import Omitted
from dataservice.wire import dispatcher_pb2 as pb

_NAMED = 10


def note(entries: Sequence[pb.Quarantined], omissions: Ledger) -> None:
    """Counts the windows as left out, each once."""
    for entry in entries:
        path = entry.path if entry.HasField("path") else None
        rows = entry.rows if entry.HasField("rows") else None
        message = f"in quarantine, since it killed its workers: {entry.what}"
        omissions.announce(f"quarantine {entry.window}", message)
        omissions.record(f"quarantine {entry.window}", Omitted.of_split(path, rows, message))


def failure(entries: Sequence[pb.Quarantined]) -> QuarantinedError:
    """Returns the error at the end of an epoch that lacks these windows."""
    listed = "; ".join(entry.what for entry in entries[:_NAMED])
    more = f"; and {len(entries) - _NAMED} more" if len(entries) > _NAMED else ""
    return QuarantinedError(
        f"the epoch is complete but for {len(entries)} windows in quarantine, each of which killed "
        f"three workers that ran it: {listed}{more}. Look for a crash or for lack of memory in the "
        "logs of the workers, repair or leave out those rows, or read with on_error='skip'"
    )


def judge(
    entries: Sequence[pb.Quarantined], options: JobOptions, omissions: Ledger, *, has_ended: bool
) -> QuarantinedError | None:
    """Returns the error to raise, if any; counts windows that the user agreed to leave out.

    Ordered reading fails at once, since the rows after a missing window cannot be delivered.
    """
    if options.on_error == "skip" and not options.ordered:
        note(entries, omissions)
        return None
    return failure(entries) if entries and (has_ended or options.ordered) else None

"""Parts of messages as the dispatcher's values, and the other way.

Responsible for what several calls have in common, as marks and leases. Knows no call and decides
nothing. Invariant: what a message left out, as older clients do, has the default of its value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dataservice.dispatcher.plans import RowMark
from dataservice.dispatcher.requests import Lease
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.snapshot_requests import Chunk, WrittenWindow
from dataservice.errors import InvalidArgumentError
from dataservice.job_options import JobOptions
from dataservice.omissions import Omitted
from dataservice.ranges import Consumed
from dataservice.wire import dispatcher_pb2 as pb


def job_options(message: pb.JobOptions) -> JobOptions:
    """How a job is read; what was left out is the default."""
    return JobOptions(
        ordered=message.ordered,
        num_consumers=message.num_consumers,
        target_workers=message.target_workers or "AUTO",
        cross_trainer_cache=message.cross_trainer_cache,
        on_error=message.on_error or "raise",
    )


def omitted_of(message: pb.Omitted) -> Omitted:
    """What a reader has left out so far."""
    return Omitted(
        function_rows=message.function_rows,
        source_rows=message.source_rows,
        splits=message.splits,
        files=tuple(message.files),
        messages=tuple(message.messages),
    )


def saved_position(message: pb.Position) -> SavedPosition:
    """A position that a reader goes on from; InvalidArgumentError where it is malformed."""
    try:
        consumed = json.loads(message.consumed_json)
    except ValueError as error:
        raise InvalidArgumentError(f"malformed position: {error}") from error
    return SavedPosition(
        consumed=Consumed.from_json(consumed),
        origins=tuple(message.origins),
        peers=tuple(message.peers),
        division=message.division,
    )


def row_marks(messages: Iterable[pb.Mark]) -> tuple[RowMark, ...]:
    """How far a reader is in each of these windows."""
    return tuple(RowMark(m.window, m.generation, m.row, m.final) for m in messages)


def written_window(message: pb.WrittenWindow) -> WrittenWindow:
    """A window of a snapshot, with the files that hold it."""
    chunks = (Chunk(c.number, c.rows, c.size_bytes, c.batches, c.tag) for c in message.chunks)
    return WrittenWindow(message.window, tuple(chunks))


def lease_message(lease: Lease) -> pb.WindowLease:
    """A window to run, as the worker gets it."""
    message = pb.WindowLease(
        window=lease.window_index,
        generation=lease.generation,
        start_row=lease.start_row,
        epoch=lease.epoch,
        window_in_epoch=lease.window.index,
    )
    add = message.splits.add
    for split in lease.window.splits:
        # Only what it has: to name a field takes time, also one without a value.
        added = add(path=split.path, size_bytes=split.size_bytes, version=split.version)
        if split.row_groups:
            added.row_groups.extend(split.row_groups)
        if split.start or split.stop:
            added.start, added.stop = split.start, split.stop
        if split.rows is not None:
            added.rows = split.rows
        if split.segment:
            added.segment = split.segment
    return message

"""Converts parts of messages to the dispatcher's values, and values to messages.

Responsible for what several calls have in common, such as marks and leases. Knows no call and
decides nothing. Invariant: fields that a message leaves out, as older clients do, get the default
of the value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from dataservice.dispatcher.requests import Lease
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.snapshot_requests import Chunk, WrittenWindow
from dataservice.errors import InvalidArgumentError
from dataservice.job_options import JobOptions
from dataservice.omissions import Omitted
from dataservice.ranges import Consumed, RowMark
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb


def sharding_policy(number: int) -> ShardingPolicy:
    """Returns the policy of this number; InvalidArgumentError if there is none."""
    try:
        return ShardingPolicy(number)
    except ValueError:
        raise InvalidArgumentError(f"unknown sharding policy {number}") from None


def job_options(message: pb.JobOptions) -> JobOptions:
    """Decodes the options of a job; absent fields get their defaults."""
    return JobOptions(
        ordered=message.ordered,
        num_consumers=message.num_consumers,
        target_workers=message.target_workers or "AUTO",
        cross_trainer_cache=message.cross_trainer_cache,
        on_error=message.on_error or "raise",
    )


def omitted_of(message: pb.Omitted) -> Omitted:
    """Decodes the counts of what a reader has left out so far."""
    return Omitted(
        function_rows=message.function_rows,
        source_rows=message.source_rows,
        splits=message.splits,
        files=tuple(message.files),
        messages=tuple(message.messages),
    )


def saved_position(message: pb.Position) -> SavedPosition:
    """Decodes the position that a reader resumes from; InvalidArgumentError if it is malformed."""
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
    """Decodes the marks that say how far a reader is in each of its windows."""
    return tuple(RowMark(m.window, m.generation, m.row, m.final) for m in messages)


def written_window(message: pb.WrittenWindow) -> WrittenWindow:
    """Decodes a written window of a snapshot, with the files that hold its rows."""
    chunks = (Chunk(c.number, c.rows, c.size_bytes, c.batches, c.tag) for c in message.chunks)
    return WrittenWindow(message.window, tuple(chunks))


def lease_message(lease: Lease) -> pb.WindowLease:
    """Encodes the lease of a window for the worker that runs it."""
    message = pb.WindowLease(
        window=lease.window_index,
        generation=lease.generation,
        start_row=lease.start_row,
        epoch=lease.epoch,
        window_in_epoch=lease.window.index,
    )
    add = message.splits.add
    for split in lease.window.splits:
        # Sets only the fields that have a value, since setting an empty one takes time as well.
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

"""A window table as values that a fact can hold.

Pure. Invariant: `table_of(image_of(table))` equals `table`, but for readers that own nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dataservice.dispatcher.grants import Grant
from dataservice.dispatcher.plans import WindowPlan, plan_from_json, plan_to_json
from dataservice.dispatcher.suspicion import Case, Quarantined
from dataservice.dispatcher.window_records import Phase, Round, WindowRecord
from dataservice.dispatcher.windows import WindowTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TableImage:
    """The parts of a window table that cannot be derived, with records in the order of its queues.

    `rounds`: (number, first window, unfinished windows) of each open round. `records`: (window,
    phase, generation, start row, consumed row, owner, worker, base row). `grants`: (worker, reader,
    sequence, windows). `finished`: (reader, first window, end). `cases`: (window, pairs of a
    lost worker and whether the window was alone with it as a suspect, pairs of an accused worker
    and whether the window was a suspect then).
    """

    plan: WindowPlan
    replays: bool
    cursor: int
    planned: int
    rounds_opened: int
    done: int
    rows_consumed: int
    is_exhausted: bool
    rounds: tuple[tuple[Any, ...], ...]
    records: tuple[tuple[Any, ...], ...]
    grants: tuple[tuple[Any, ...], ...]
    finished: tuple[tuple[Any, ...], ...] = ()
    cases: tuple[tuple[Any, ...], ...] = ()
    quarantined: tuple[tuple[Any, ...], ...] = ()
    lost_windows: int = 0
    lost_rows: int = 0
    lost_uncounted: int = 0


_COUNTERS = (
    *("cursor", "planned", "rounds_opened", "done", "rows_consumed", "is_exhausted"),
    *("lost_windows", "lost_rows", "lost_uncounted"),
)
_CASE_FIELDS = 3
_ROWS = ("rounds", "records", "grants", "finished", "cases", "quarantined")


def image_to_json(image: TableImage | None) -> dict[str, Any] | None:
    """Returns the image as JSON values."""
    if image is None:
        return None
    values = {name: getattr(image, name) for name in (*_COUNTERS, *_ROWS, "replays")}
    return {**values, "plan": plan_to_json(image.plan)}


def image_from_json(values: dict[str, Any] | None) -> TableImage | None:
    """Returns the image that `image_to_json` wrote."""
    if values is None:
        return None
    rows = {name: tuple(tuple(row) for row in values[name]) for name in _ROWS}
    # In older journals cases do not name the lost workers; such suspicions are dropped.
    rows["cases"] = tuple(row for row in rows["cases"] if len(row) == _CASE_FIELDS)
    return TableImage(**{**values, **rows, "plan": plan_from_json(values["plan"])})


def image_of(table: WindowTable) -> TableImage:
    """Returns the image of a table."""
    return TableImage(
        plan=table.plan,
        replays=table.replays,
        rounds=tuple((r.number, r.first, r.unfinished) for r in table.rounds),
        records=tuple(
            (
                i,
                r.phase.value,
                r.generation,
                r.start_row,
                r.consumed_row,
                r.owner,
                r.worker,
                r.base_row,
            )
            for i, r in _in_queue_order(table)
        ),
        grants=tuple(
            (worker, reader, sequence, list(windows))
            for (worker, reader), (sequence, windows) in table.grants.items()
        ),
        finished=tuple(
            (reader, first, end)
            for reader, mine in table.readers.items()
            for first, end in mine.finished.pairs()
        ),
        cases=tuple(
            (window, list(map(list, case.deaths.items())), list(map(list, case.accused.items())))
            for window, case in table.suspicions.cases.items()
        ),
        quarantined=tuple(tuple(entry) for entry in table.quarantined),
        **{name: getattr(table, name) for name in _COUNTERS},
    )


def _in_queue_order(table: WindowTable) -> Iterator[tuple[int, WindowRecord]]:
    queued = [*table.orphans]
    for mine in table.readers.values():
        queued.extend(mine.pending)
    for index in (*queued, *sorted(set(table.records) - set(queued))):
        yield index, table.records[index]


def table_of(image: TableImage) -> WindowTable:
    """Returns the table of an image, without readers that own nothing and have finished nothing."""
    table = WindowTable(image.plan, image.replays)
    for name in _COUNTERS:
        setattr(table, name, getattr(image, name))
    for number, first, unfinished in image.rounds:
        windows = image.plan.windows_of(number)
        table.rounds.append(Round(number, first, windows, unfinished))
    for index, phase, generation, start_row, consumed_row, owner, worker, base in image.records:
        table.records[index] = WindowRecord(
            generation, Phase(phase), start_row, consumed_row, owner, worker, base
        )
        _add_to_indexes(table, index, table.records[index])
    for reader, first, end in image.finished:
        table.add_reader(reader)
        table.readers[reader].finished.add(first, end)
    for worker, reader, sequence, windows in image.grants:
        table.grants[worker, reader] = Grant(sequence, tuple(windows))
    for window, deaths, accused in image.cases:
        table.suspicions.restore(window, Case(dict(deaths), dict(accused)))
    table.quarantined.extend(Quarantined(*entry) for entry in image.quarantined)
    return table


def _add_to_indexes(table: WindowTable, index: int, record: WindowRecord) -> None:
    if record.worker is not None:
        table.leases.setdefault(record.worker, set()).add(index)
    if record.owner is None:
        table.orphans[index] = None
        return
    table.add_reader(record.owner)
    mine = table.readers[record.owner]
    mine.owned.add(index)
    if record.phase is Phase.PENDING:
        mine.pending[index] = None
    elif record.phase is Phase.FENCING:
        mine.fencing.add(index)
    elif record.phase is Phase.RECEIVED:
        mine.received.add(index)

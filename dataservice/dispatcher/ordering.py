"""Decisions about iterations whose rows come in a fixed order: one reader, bounded lookahead.

Pure, like `leasing`. The reader puts windows in order, so windows that come early wait in its
memory. Rules: windows that were given back may be leased again at any time, since the reader may be
waiting for just those. Fresh ones are leased few at a time, so that neighbouring windows go to
different workers. Invariant: fresh windows are leased only up to `LOOKAHEAD` per worker beyond the
first unfinished one, which bounds what waits in the reader's memory.
"""

from __future__ import annotations

from typing import Final

from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.requests import LeaseWindows, OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.windows import WindowTable
from dataservice.errors import FailedPreconditionError
from dataservice.vocabulary import IterationId

LOOKAHEAD: Final = 8
_AT_ONCE: Final = 2


def is_ordered(state: DispatcherState, iteration_id: IterationId) -> bool:
    """True if the iteration exists and gives its rows in a fixed order."""
    iteration = state.iterations.get(iteration_id)
    return iteration is not None and state.jobs[iteration.job_id].options.ordered


def check_alone(state: DispatcherState, iteration: Iteration, request: OpenIteration) -> None:
    """Raises FailedPreconditionError for a second reader of an ordered iteration."""
    if not is_ordered(state, iteration.iteration_id):
        return
    others = [reader for reader in iteration.readers if reader != request.reader_id]
    if others:
        raise FailedPreconditionError(
            f"repetition {iteration.repetition} is read in order (ordered=True) by "
            f"{', '.join(others)}, and a sequence has one reader; give each reader a job of its "
            "own, or leave ordered=True out to share the rows"
        )


def grant_size(state: DispatcherState, table: WindowTable, request: LeaseWindows) -> int:
    """Returns how many windows a worker may get at present."""
    given_back = len(table.readers[request.reader_id].pending) + len(table.orphans)
    first_open = min(table.records, default=table.cursor)
    ahead = LOOKAHEAD * max(1, len(state.workers)) - (table.cursor - first_open)
    return max(0, min(request.count, _AT_ONCE, given_back + max(0, ahead)))

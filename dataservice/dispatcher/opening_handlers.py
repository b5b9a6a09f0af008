"""The dispatcher's answers to readers that open an iteration: lock and journal around `opening`.

A part of the service that works on its state store; decides nothing itself. Invariants: no answer
leaves before its facts are durable; splits are planned outside the lock. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dataservice.dispatcher import opening, shares
from dataservice.dispatcher.events import DatasetRegistered
from dataservice.dispatcher.listing_limit import ListingLimit
from dataservice.dispatcher.owners import OwnerWaits
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import OpenAnswer, OpenIteration
from dataservice.dispatcher.soft_state import SoftState
from dataservice.dispatcher.state_store import StateStore
from dataservice.dispatcher.worker_set import WorkersUpdate
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy

# From an encoded dataset plan and a repetition to the plan of its windows.
Planner = Callable[[bytes, int, JobOptions], WindowPlan]
# From an encoded dataset plan, a policy and a number of workers to a digest of the files dealt out.
Lister = Callable[[bytes, ShardingPolicy, int, JobOptions], str]


class OpeningHandlers:
    """Joins readers to iterations; plans an iteration first if it begins with the reader."""

    def __init__(
        self,
        store: StateStore,
        soft_state: SoftState,
        owners: OwnerWaits,
        listing_limit: ListingLimit,
        planner: Planner,
        lister: Lister,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._state = store.state
        self._transaction, self._commit = store.transaction, store.commit
        self._soft_state = soft_state
        self._presence = soft_state.presence
        self._owners = owners
        self._listing_limit = listing_limit
        self._planner = planner
        self._lister = lister
        self._clock = clock
        self._wall_clock = wall_clock

    def open(self, request: OpenIteration) -> tuple[OpenAnswer, DatasetRegistered, WorkersUpdate]:
        """Joins a reader; plans its repetition first if it begins with this reader.

        Blocks while the sources are listed; UnavailableError if the limit of such calls is reached.
        Also answers the dataset and the workers to read from.
        """
        request = replace(request, opened_s=self._wall_clock())
        needed = self._dataset_to_plan(request)
        if needed is None:
            return self._join(request, None)
        # All trainers of a job open it at the same moment, each perhaps under its own dataset id.
        name = request.job_name
        what = f"dataset {needed.dataset_id}" if name is None else f"job {name!r}"
        with self._listing_limit.exclusive(what):
            needed = self._dataset_to_plan(request)
            plan = None if needed is None else self._plan(needed, request)
            return self._join(request, plan)

    def _dataset_to_plan(self, request: OpenIteration) -> DatasetRegistered | None:
        with self._transaction() as transaction:
            transaction.answer_has_facts = False
            # A refused call is heard too: it may be repeated until a silent reader counts as lost.
            self._presence.hear(self._clock())
            if request.position is not None:
                self._make_way(request)
            return opening.dataset_to_plan(self._state, request)

    def _make_way(self, request: OpenIteration) -> None:
        """Ends the waits for owners that keep a repetition from going back to a position."""
        iteration = opening.find_iteration(self._state, request)
        if iteration is not None and request.reader_id not in iteration.readers:
            self._owners.give_way(iteration.job_id)

    def _plan(self, dataset: DatasetRegistered, request: OpenIteration) -> WindowPlan | str:
        if request.policy.is_static:
            count = len(self._state.worker_list)
            return self._lister(dataset.plan, request.policy, count, request.options)
        plan = self._planner(dataset.plan, request.repetition, request.options)
        position = request.position
        if position is not None and position.division == plan.division:
            plan.prepare_resume(position.consumed.end())
        return plan.prepare(0)

    def _join(
        self, request: OpenIteration, plan: WindowPlan | str | None
    ) -> tuple[OpenAnswer, DatasetRegistered, WorkersUpdate]:
        with self._transaction():
            now_s = self._clock()
            request = replace(request, silent=self._presence.silent_readers(now_s))
            notice = self._commit(opening.open_iteration(self._state, request, plan))
            answer = opening.answer_open(self._state, request.reader_id, notice)
            self._presence.renew_reader(request.reader_id, now_s)
            dataset = self._state.datasets[answer.dataset_id]
            iteration = self._state.iterations[answer.iteration_id]
            return (
                answer,
                dataset,
                shares.workers_to_read(self._state, iteration, self._soft_state.workers, 0),
            )

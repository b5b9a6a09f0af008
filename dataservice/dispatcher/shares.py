"""Decisions about static shares: the fixed worker list, its places, and which workers are missing.

Pure, like `decide`. Rules: a place of the list is bound to the first address that fits and stays
bound; a share is due until its readers have all of it, so it is neither given to another worker nor
skipped while its worker is away.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.requests import Decision, WorkerPlace
from dataservice.dispatcher.roster import check_places, describe_place, find_place
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.worker_set import WorkerSet, WorkersUpdate
from dataservice.errors import FailedPreconditionError, NotFoundError
from dataservice.vocabulary import ShardingPolicy, WorkerId


def set_worker_list(state: DispatcherState, addresses: Sequence[str]) -> Decision:
    """Sets the configured list; under a new list all workers have to register again.

    InvalidArgumentError if an address is listed twice, FailedPreconditionError if an unfinished
    iteration is divided by the old list.
    """
    if tuple(addresses) == state.worker_list:
        return Decision(())
    check_places(addresses)
    for iteration in state.iterations.values():
        if iteration.shards and not iteration.finished:
            raise FailedPreconditionError(
                f"worker_addresses changed from {list(state.worker_list)} to {list(addresses)} "
                f"while {iteration.iteration_id} is divided by the old list; start the dispatcher "
                "with the old list and delete that job, or with an empty work_dir"
            )
    lost = [ev.WorkerLost(worker_id=worker_id, left=True) for worker_id in state.workers]
    return Decision((*lost, ev.WorkerListSet(addresses=tuple(addresses))))


def bind_place(state: DispatcherState, address: str) -> list[ev.Event]:
    """Returns the fact that binds a place to the address, if there is a list and it is not bound.

    FailedPreconditionError for an address that has no place on the list.
    """
    if not state.worker_list:
        return []
    index = find_place(state.worker_list, state.bound, address)
    return [] if index in state.bound else [ev.PlaceBound(index=index, address=address)]


def place_of(state: DispatcherState, worker_id: WorkerId) -> WorkerPlace:
    """Returns the place of a registered worker on the list."""
    index = state.place_of(worker_id)
    return WorkerPlace(0, 0) if index is None else WorkerPlace(index, len(state.worker_list))


def check_list(state: DispatcherState, policy: ShardingPolicy) -> None:
    """Raises NotFoundError for a static policy without a worker list."""
    if policy.is_static and not state.worker_list:
        workers = ", ".join(sorted(state.worker_by_address)) or "none yet"
        raise NotFoundError(
            f"Failed to shard the dataset: ShardingPolicy.{policy.name} divides it by a fixed list "
            f"of workers, and no worker is in the workers list, which is empty (registered "
            f"workers: {workers}); set DispatcherConfig.worker_addresses "
            "(--worker-addresses), or use ShardingPolicy.DYNAMIC"
        )


def workers_to_read(
    state: DispatcherState, iteration: Iteration, worker_set: WorkerSet, known: int
) -> WorkersUpdate:
    """Returns the workers that readers should have streams to; none if the iteration is finished.

    `worker_set` yields the changes since version `known`; the workers of a static policy are listed
    in full after each change.
    """
    if iteration.finished:
        return WorkersUpdate(0, ())
    if not iteration.shards:
        return worker_set.since(known, state.workers)._replace(readers=len(iteration.readers))
    # The workers whose shards are due change with these alone, as a finished shard stays finished.
    version = worker_set.version_with(f"{iteration.iteration_id} {sum(iteration.shards)}")
    if known == version:
        return WorkersUpdate(version, (), is_change=True)
    due = (state.worker_at(index) for index, done in enumerate(iteration.shards) if not done)
    return WorkersUpdate(version, tuple(worker for worker in due if worker is not None))


def missing(state: DispatcherState, iteration: Iteration) -> tuple[str, ...]:
    """Returns descriptions of the places whose shards are due and whose workers are not there."""
    if len(state.worker_by_address) == len(state.worker_list):
        return ()  # every worker has a place, so every place has a worker
    return tuple(
        describe_place(state.worker_list, state.bound, index)
        for index, done in enumerate(iteration.shards)
        if not done and state.worker_at(index) is None
    )


def finish_shard(state: DispatcherState, worker_id: WorkerId, iteration: Iteration) -> Decision:
    """Records that readers have received a worker's whole shard; repeats change nothing."""
    index = state.place_of(worker_id)
    if index is None or iteration.shards[index]:
        return Decision(())
    return Decision((ev.ShardFinished(iteration_id=iteration.iteration_id, index=index),))

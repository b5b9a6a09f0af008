"""The place of a closure in words, for errors of calls that wait for it.

Pure: a state in, text out. Invariant: every closure that has not ended is somewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from pstrain.coordinator.state import CoordinatorState


def whereabouts(state: CoordinatorState, closure: int, label_of: Callable[[int], str]) -> str:
    """Returns a clause to follow "which": where the closure runs, or what it waits for.

    ``label_of`` returns the names of other closures.
    """
    run = state.running.get(closure)
    if run is not None:
        remedy = (
            ", where it is cancelled and does not return: that trainer's process has to be killed "
            "and started again"
        )
        suffix = remedy if closure in state.cancelling else ""
        return f"trainer {run.trainer} has taken on (attempt {run.attempt + 1}){suffix}"
    if closure in state.round.prepared or closure in state.round.decided:
        return "has run and waits for its round"
    if closure in state.queues.dependencies:
        missing = ", ".join(map(label_of, state.queues.dependencies.of(closure)))
        return f"waits for the value of {missing}"
    if closure in state.queues.bound:
        return f"waits for trainer {state.queues.bound[closure]}"
    if closure not in state.attempts:
        return "has ended by now"
    return f"waits in the queue, with {len(state.queues) - 1} others"


def first_unfinished(state: CoordinatorState, label_of: Callable[[int], str]) -> str:
    """Returns a clause to follow a count of closures: the first scheduled, and where it is."""
    if not state.attempts:
        return ""
    first = min(state.attempts)
    return f"; the first closure is {label_of(first)}, which {whereabouts(state, first, label_of)}"

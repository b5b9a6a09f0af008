"""The place of a closure in words, for the errors of those who wait for it.

Pure: a state in, text out.
"""

from __future__ import annotations

from collections.abc import Callable

from pstrain.coordinator.state import CoordinatorState


def whereabouts(state: CoordinatorState, closure: int, named: Callable[[int], str]) -> str:
    """To follow on "which": who has it, or what it waits for. ``named`` gives others' names."""
    run = state.running.get(closure)
    if run is not None:
        return f"trainer {run.trainer} has taken on (attempt {run.attempt + 1})"
    if closure in state.round.prepared or closure in state.round.decided:
        return "has run and waits for its round"
    if closure in state.inputs:
        missing = ", ".join(map(named, state.inputs.of(closure)))
        return f"waits for the value of {missing}"
    if closure in state.bound:
        return f"waits for trainer {state.bound[closure]}"
    if closure not in state.attempts:
        return "has ended by now"
    return f"waits in the queue, with {state.waiting_count - 1} others"

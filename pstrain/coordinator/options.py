"""Validates the options of a coordinator, and those of a closure besides function and arguments.

Pure. Invariant: options that pass can be obeyed under the cluster's rule of consistency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from dataservice.runtime.arguments import integer_at_least, is_integer, positive
from pstrain.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError

CLOSURES_IN_FLIGHT: Final = 3
QUEUE_CAPACITY: Final = 262_144
TRAINER_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The options with which a coordinator was made."""

    closures_in_flight: int = CLOSURES_IN_FLIGHT
    queue_capacity: int = QUEUE_CAPACITY
    trainer_timeout_s: float = TRAINER_TIMEOUT_S

    def __post_init__(self) -> None:
        integer_at_least(self.closures_in_flight, 1, "closures_in_flight")
        integer_at_least(self.queue_capacity, 1, "queue_capacity")
        positive(self.trainer_timeout_s, "trainer_timeout_s")

    def check_same(self, options: CoordinatorOptions) -> None:
        """Raises InvalidArgumentError if ``options`` differs from these and from the defaults."""
        for field in fields(self):
            value, wanted = getattr(self, field.name), getattr(options, field.name)
            if wanted not in (value, field.default):
                raise InvalidArgumentError(
                    f"the strategy already has a coordinator with {field.name}={value}, got "
                    f"{wanted}: pass the value where the first coordinator is made; fit, evaluate "
                    "and predict make one if there is none"
                )


def check_options(
    trainer: int | None,
    priority: int,
    deadline_s: float | None,
    *,
    indices: Sequence[int],
    in_rounds: bool,
) -> tuple[int | None, int]:
    """Returns the trainer and the priority as Python's integers; ``indices``: of all trainers.

    Raises an error for an invalid option.
    """
    if trainer is not None:
        _check_trainer(trainer, indices, in_rounds=in_rounds)
    if deadline_s is not None:
        positive(deadline_s, "deadline_s")
    if not is_integer(priority):
        raise InvalidTypeError(f"priority must be an integer, got {priority!r}")
    if priority and in_rounds:
        raise UnimplementedError(
            f"in rounds (sync) closures run in their order, got priority={priority}: leave it out"
        )
    return None if trainer is None else int(trainer), int(priority)


def _check_trainer(trainer: int, indices: Sequence[int], *, in_rounds: bool) -> None:
    if not is_integer(trainer):
        raise InvalidTypeError(f"trainer must be an index, got {type(trainer).__name__}")
    if trainer not in indices:
        raise InvalidArgumentError(f"there is no trainer {trainer}: the cluster has {indices}")
    if in_rounds:
        raise UnimplementedError(
            "in rounds (sync) closures can't be bound to a trainer, since each round has one "
            "closure for each in turn: leave out trainer="
        )

"""How a job is read, beyond its dataset, policy and delivery: one value for the whole way.

Pure. The same value is checked where the user gives it, compared where a job of that name exists,
journaled, and told to workers. Invariant: a value that exists is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dataservice.errors import InvalidArgumentError
from dataservice.runtime.arguments import check_choice

TARGETS: Final = ("AUTO", "ANY", "LOCAL")
ON_ERROR: Final = ("raise", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options that all readers of a job share.

    `ordered`: rows come in an order that the seed alone decides. `num_consumers`: 0, or how many
    consumers read in rounds. `target_workers`: "LOCAL" reads only from workers on the reader's
    host. `cross_trainer_cache`: trainers read the same elements instead of sharing them.
    `on_error`: "skip" leaves out, and counts, what cannot be read or what a function fails on.
    """

    ordered: bool = False
    num_consumers: int = 0
    target_workers: str = "AUTO"
    cross_trainer_cache: bool = False
    on_error: str = "raise"

    def __post_init__(self) -> None:
        if self.num_consumers < 0:
            raise InvalidArgumentError(
                f"num_consumers must be positive, got {self.num_consumers}; leave it out for reads "
                "that are not coordinated"
            )
        check_choice("target_workers", self.target_workers, TARGETS)
        check_choice("on_error", self.on_error, ON_ERROR)

    def differences(self, other: JobOptions) -> list[str]:
        """What an `other` asks for that this one, of an existing job, is not."""
        return [
            f"{entry.name} (existing {mine}, got {theirs})"
            for entry in fields(self)
            if (mine := getattr(self, entry.name)) != (theirs := getattr(other, entry.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form for journals and commands."""
        return asdict(self)

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> JobOptions:
        """The options that `to_json` was given; InvalidArgumentError where they are malformed."""
        try:
            return cls(**encoded)
        except TypeError as error:
            raise InvalidArgumentError(f"malformed job options {encoded!r}: {error}") from error


DEFAULT_OPTIONS: Final = JobOptions()

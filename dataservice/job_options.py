"""The options of a job, beyond its dataset, sharding policy and delivery guarantee.

Pure. The same value is checked where the user gives it, compared with the options of an existing
job of the same name, written to the journal, and sent to workers. Invariant: a value that exists is
valid.
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

    `ordered`: the order of rows depends on the seed alone. `num_consumers`: the number of consumers
    that read in rounds, or 0 for reads that are not coordinated. `target_workers`: "LOCAL" reads
    only from workers on the reader's host. `cross_trainer_cache`: every trainer reads the same
    elements, instead of the trainers sharing them out. `on_error`: "skip" leaves out, and counts,
    the sources that cannot be read and the rows that a function fails on.
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
        """Describes each option of the existing job (`self`) that has another value in `other`."""
        return [
            f"{entry.name} (existing {mine}, got {theirs})"
            for entry in fields(self)
            if (mine := getattr(self, entry.name)) != (theirs := getattr(other, entry.name))
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON-able form, for the journal and for commands to workers."""
        return asdict(self)

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> JobOptions:
        """Decodes the result of `to_json`; raises InvalidArgumentError if it is malformed."""
        try:
            return cls(**encoded)
        except TypeError as error:
            raise InvalidArgumentError(f"malformed job options {encoded!r}: {error}") from error


DEFAULT_OPTIONS: Final = JobOptions()

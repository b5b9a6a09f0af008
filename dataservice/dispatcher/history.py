"""The history of a job: which of its repetitions were read to their end.

Pure values, small however many repetitions there were: the latest with the names of their
programs, the others as ranges. Knows nothing of iterations, readers or clocks. Invariant: a
repetition that has ended once counts as ended from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dataservice.ranges import Ranges

# Enough for a message about any repetition that people still ask about.
ENDINGS_KEPT: Final = 32
PROGRAMS_KEPT: Final = 8


@dataclass(slots=True)
class JobHistory:
    """The ended repetitions of a job: the latest with their programs, the others as ranges.

    `idle_since_s` is the time of day at which the last reader left, None while the job is read.
    """

    endings: dict[int, tuple[str, ...]] = field(default_factory=dict)
    older: Ranges = field(default_factory=Ranges)
    idle_since_s: float | None = None

    def record_end(self, repetition: int, programs: tuple[str, ...]) -> None:
        """Records the end of a repetition; if it ended before, the earlier programs stay noted."""
        if self.has_ended(repetition):
            return
        self.endings[repetition] = programs
        while len(self.endings) > ENDINGS_KEPT:
            oldest = next(iter(self.endings))
            del self.endings[oldest]
            self.older.add(oldest, oldest + 1)

    def has_ended(self, repetition: int) -> bool:
        return repetition in self.endings or repetition in self.older

    def until(self, repetition: int) -> JobHistory:
        """Returns the ends of the repetitions before this one."""
        endings = {ended: by for ended, by in self.endings.items() if ended < repetition}
        older = ((first, min(end, repetition)) for first, end in self.older.pairs())
        return JobHistory(endings, Ranges(older))

    def count(self) -> int:
        """Returns how many repetitions have ended."""
        return len(self.endings) + len(self.older)

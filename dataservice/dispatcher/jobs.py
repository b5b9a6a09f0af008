"""Jobs, their iterations, and their history: parts of the dispatcher's state.

Values that only `state` changes, by applying facts. Invariants: a finished iteration has nothing
left for any reader; a repetition that has ended once counts as ended from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dataservice.dispatcher.events import ReaderJoined
from dataservice.dispatcher.resumption import Resumption
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.windows import WindowTable
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Ranges
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)

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


@dataclass(slots=True)
class Job:
    job_id: JobId
    name: str | None
    dataset_id: DatasetId
    policy: ShardingPolicy
    delivery: str
    options: JobOptions = DEFAULT_OPTIONS
    created_s: float = 0.0
    iterations: dict[int, IterationId] = field(default_factory=dict)
    history: JobHistory = field(default_factory=JobHistory)

    @property
    def has_tasks(self) -> bool:
        """True if each worker makes one pass, which ends, over an iteration."""
        return self.policy is ShardingPolicy.OFF and not self.options.num_consumers


def program_of(host: str, pid: int) -> str:
    """Returns the name under which a reading program is remembered."""
    return f"process {pid} on {host}"


def host_of(program: str) -> str:
    """Returns the host of a program that is remembered under this name."""
    return program.rpartition(" on ")[2]


@dataclass(slots=True)
class Iteration:
    """One repetition of a job: `windows` under DYNAMIC, `tasks` (True: finished) under OFF.

    Coordinated reads have `rounds` instead. Under a static policy, `shards` (True: finished) are
    indexed by the place of their worker, and `listing` is a digest of the files dealt out.
    `programs` names some of the programs that have or had readers here. `resumption` holds the
    saved positions from which the iteration resumes.
    """

    iteration_id: IterationId
    job_id: JobId
    repetition: int
    windows: WindowTable | None = None
    rounds: RoundTable | None = None
    tasks: dict[WorkerId, bool] = field(default_factory=dict)
    shards: list[bool] = field(default_factory=list)
    listing: str = ""
    readers: dict[ReaderId, ReaderJoined] = field(default_factory=dict)
    finished: bool = False
    programs: tuple[str, ...] = ()
    resumption: Resumption | None = None

    def workers(self) -> set[WorkerId]:
        """Returns the workers that have tasks, grants, leases, accusations or rounds here."""
        held = set(self.tasks)
        if self.windows is not None:
            held |= self.windows.grants.workers() | self.windows.leases.keys()
            held |= self.windows.suspicions.accused()
        return held if self.rounds is None else held | self.rounds.suspects

    def is_over_for(self, reader: ReaderId) -> bool:
        """True if nothing is left for this reader, as far as is known at present.

        Without windows, the reader's open streams may still bring rows.
        """
        if self.windows is None or self.finished:
            return self.finished or bool(self.tasks or self.shards)
        return self.windows.is_over_for(reader)

    def finish_if_done(self) -> None:
        """Marks the iteration as finished once all its windows, tasks or shards are finished."""
        if self.windows is not None:
            self.finished = self.windows.is_finished()
            if self.finished:
                self.windows.forget_plan()
            return
        parts = self.shards or self.tasks.values()
        self.finished = self.finished or (bool(parts) and all(parts))

"""Describes, as values, a cluster and the faults that it suffers, by a name or a seed.

Pure: `schedule_of` is a function of its argument, so that a failed run can be played again. Knows
no processes and no sockets. Invariants: every fault ends before `HEAL_S`; no target suffers two
lasting faults at once; workers die at most `MAX_DEATHS` times, at least `DEATH_GAP_S` apart, so
that an unlucky window is not taken for one that kills its workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

WORKER_TIMEOUT_MS: Final = 1_500
CLIENT_TIMEOUT_MS: Final = 6_000
# For a schedule that kills a reader: the loss is noticed soon, so outages have to be shorter.
SHORT_CLIENT_TIMEOUT_MS: Final = 2_500
HEAL_S: Final = 7.0
MAX_DEATHS: Final = 2
DEATH_GAP_S: Final = 1.2

CONTROL, READERS = "control", "readers"
"""The links to the dispatcher: of the workers, and of the readers."""


class Action(NamedTuple):
    """A step of a schedule, `at_s` seconds after the first row was delivered."""

    at_s: float
    verb: str
    target: str
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at_s:.2f} s: {self.verb} {self.target}{amount}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A cluster, its work, and the actions that disturb it.

    `seconds` is the time that the work takes one thread. Each `bad_every`-th row makes the user's
    function fail, and is left out. `is_saved`: the data workers save the rows to files, which are
    read at the end.
    """

    name: str
    workers: int = 2
    readers: int = 1
    has_doomed_reader: bool = False
    protocol: str | None = "flight"
    source: str = "range"
    rows: int = 6_400
    batch_rows: int = 64
    is_shuffled: bool = False
    bad_every: int | None = None
    is_saved: bool = False
    seconds: float = 6.0
    actions: tuple[Action, ...] = field(default=())

    @property
    def expected(self) -> frozenset[int]:
        """The ids that readers must get."""
        every = self.bad_every
        return frozenset(i for i in range(self.rows) if every is None or i % every)

    @property
    def on_error(self) -> str:
        return "raise" if self.bad_every is None else "skip"

    @property
    def client_timeout_ms(self) -> int:
        return SHORT_CLIENT_TIMEOUT_MS if self.has_doomed_reader else CLIENT_TIMEOUT_MS

    @property
    def restarts_only_dispatcher(self) -> bool:
        """True if every action hits the dispatcher, so that no other fault delays its recovery."""
        return all(a.target == "dispatcher" for a in self.actions)

    def __str__(self) -> str:
        readers = f"{self.readers} readers" + (" and one to die" if self.has_doomed_reader else "")
        readers = "a snapshot" if self.is_saved else readers
        return "\n  ".join(
            (
                f"{self.name}: {self.workers} workers, {readers}, {self.rows} rows of {self.source}"
                f" by {self.protocol or 'the default protocol'}",
                *map(str, self.actions),
            )
        )


def data_link(worker: int) -> str:
    """Returns the name of the link from the readers to a worker."""
    return f"data-{worker}"


def worker_name(worker: int) -> str:
    return f"worker-{worker}"


# Faults


def kill(at_s: float, target: str, away_s: float) -> tuple[Action, ...]:
    """A SIGKILL, and, after `away_s`, another process in its place and on its port."""
    return Action(at_s, "kill", target), Action(at_s + away_s, "start", target)


def freeze(at_s: float, target: str, seconds: float) -> tuple[Action, ...]:
    """A SIGSTOP, and a SIGCONT after so many seconds."""
    return Action(at_s, "freeze", target), Action(at_s + seconds, "thaw", target)


def disturb(
    at_s: float, verb: str, target: str, seconds: float, amount: float = 0.0
) -> tuple[Action, ...]:
    """A fault of a link: delay, slice, hold, hold-up, hold-down, refuse, cut-after."""
    return Action(at_s, verb, target, amount), Action(at_s + seconds, "heal", target)


def cut(at_s: float, target: str) -> tuple[Action, ...]:
    """A reset of all connections of a link; clients may connect again at once."""
    return (Action(at_s, "cut", target),)


def in_order(*faults: Sequence[Action]) -> tuple[Action, ...]:
    """Returns the actions of all faults in the order of their times."""
    return tuple(sorted(action for fault in faults for action in fault))


# Fixed schedules, which run always

LEASE_S = WORKER_TIMEOUT_MS / 1_000

FIXED: Final = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            name="worker-killed",
            protocol=None,
            source="parquet",
            bad_every=90,
            actions=kill(0.4, "worker-0", 0.3),
        ),
        Schedule(name="dispatcher-killed", actions=kill(0.3, "dispatcher", 0.5)),
        Schedule(
            name="all-killed",
            protocol=None,
            is_shuffled=True,
            actions=in_order(
                kill(0.3, "dispatcher", 0.3), *(kill(0.3, worker_name(i), 0.3) for i in range(2))
            ),
        ),
        Schedule(name="zombie-wakes", seconds=8.0, actions=freeze(0.3, "worker-1", LEASE_S + 1.0)),
        Schedule(
            name="reader-killed",
            protocol=None,
            has_doomed_reader=True,
            actions=(Action(0.5, "kill", "doomed"),),
        ),
        Schedule(
            name="streams-torn",
            source="parquet",
            batch_rows=256,
            actions=in_order(
                disturb(0.3, "cut-after", data_link(0), 3.0, 700.0),
                cut(0.5, data_link(1)),
                cut(0.8, data_link(0)),
                cut(0.9, data_link(1)),
            ),
        ),
        Schedule(
            name="half-open",
            readers=2,
            actions=in_order(
                disturb(0.3, "hold-down", CONTROL, LEASE_S + 0.7),
                disturb(0.4, "hold-up", data_link(0), 1.0),
                disturb(0.5, "hold", READERS, 0.8),
            ),
        ),
        Schedule(
            name="refused-and-late",
            workers=3,
            actions=in_order(
                disturb(0.1, "delay", data_link(1), 1.5, 0.05),
                disturb(0.2, "delay", READERS, 1.5, 0.1),
                disturb(0.3, "refuse", data_link(0), 1.0),
                disturb(0.6, "refuse", CONTROL, 0.8),
            ),
        ),
        Schedule(
            name="readers-and-dispatcher",
            readers=2,
            protocol=None,
            actions=in_order(
                disturb(0.2, "refuse", READERS, 0.7),
                kill(0.4, "dispatcher", 0.6),
                cut(1.4, READERS),
            ),
        ),
        Schedule(
            name="saving",
            is_saved=True,
            actions=in_order(
                kill(0.5, "worker-0", 0.4),
                disturb(0.7, "hold", CONTROL, 0.5),
                kill(1.4, "dispatcher", 0.3),
            ),
        ),
    )
}


# Random schedules

_HOLDS: Final = ("hold", "hold-up", "hold-down")
_AMOUNTS: Final = {
    "delay": (0.02, 0.1, 0.3),
    "slice": (1.0, 7.0, 100.0),
    "cut-after": (1.0, 300.0, 3_000.0),
}


class _Drawer:
    """A generator of one schedule's random faults, within the rules of this module."""

    def __init__(self, dice: Random, workers: int, *, has_doomed: bool) -> None:
        self._dice = dice
        self._workers = [worker_name(i) for i in range(workers)]
        self._links = [CONTROL, READERS, *(data_link(i) for i in range(workers))]
        self._max_outage_s = 0.8 if has_doomed else 2.0
        self._free_from_s = dict.fromkeys(("dispatcher", *self._workers, *self._links), 0.0)
        self._deaths: list[float] = []
        self.faults: list[tuple[Action, ...]] = []

    def draw(self, at_s: float) -> None:
        """Draws one more fault; adds nothing if the rules forbid the one that was drawn."""
        kills = (self._kill_worker, self._kill_dispatcher, self._kill_both)
        links = (self._disturb, self._disturb, self._disturb, self._cut, self._cut)
        kind = self._dice.choice((*kills, self._freeze, *links))
        kind(at_s)

    def _take(self, at_s: float, target: str, seconds: float) -> bool:
        """Reserves the target; False if it has another fault then, or this one ends too late."""
        end_s = at_s + seconds
        if self._free_from_s[target] > at_s or end_s > HEAL_S:
            return False
        self._free_from_s[target] = end_s + 0.1
        return True

    def _may_die(self, at_s: float) -> bool:
        near = any(abs(at_s - death_s) < DEATH_GAP_S for death_s in self._deaths)
        return len(self._deaths) < MAX_DEATHS and not near

    def _kill_worker(self, at_s: float) -> None:
        target = self._dice.choice(self._workers)
        away_s = self._dice.choice((0.05, 0.5, 2.0))
        if self._may_die(at_s) and self._take(at_s, target, away_s):
            self._deaths.append(at_s)
            self.faults.append(kill(at_s, target, away_s))

    def _kill_dispatcher(self, at_s: float) -> None:
        away_s = min(self._dice.choice((0.05, 0.4, 1.5)), self._max_outage_s)
        if self._take(at_s, "dispatcher", away_s):
            self.faults.append(kill(at_s, "dispatcher", away_s))

    def _kill_both(self, at_s: float) -> None:
        self._kill_dispatcher(at_s)
        self._kill_worker(at_s + self._dice.choice((0.0, 0.2)))

    def _freeze(self, at_s: float) -> None:
        """Freezes a process; a worker that is frozen past its lease counts as dead."""
        target = self._dice.choice(("dispatcher", *self._workers, *self._workers))
        seconds = self._dice.choice((0.5, LEASE_S + 0.5, LEASE_S + 1.5))
        is_death = seconds > LEASE_S and target != "dispatcher"
        if target == "dispatcher":
            seconds = min(seconds, self._max_outage_s)
        if is_death and not self._may_die(at_s):
            return
        if self._take(at_s, target, seconds):
            self._deaths += [at_s] if is_death else []
            self.faults.append(freeze(at_s, target, seconds))

    def _disturb(self, at_s: float) -> None:
        target = self._dice.choice(self._links)
        verb = self._dice.choice((*_HOLDS, "refuse", "delay", "slice", "cut-after"))
        longest_s = self._max_outage_s if target == READERS else 2.5
        seconds = self._dice.choice((0.2, 0.8, longest_s))
        # If no heartbeat reaches the dispatcher for a lease, all workers are lost at once.
        is_death = target == CONTROL and seconds >= LEASE_S and verb in (*_HOLDS, "refuse")
        if is_death and not self._may_die(at_s):
            return
        if self._take(at_s, target, seconds):
            self._deaths += [at_s] if is_death else []
            amount = self._dice.choice(_AMOUNTS.get(verb, (0.0,)))
            self.faults.append(disturb(at_s, verb, target, seconds, amount))

    def _cut(self, at_s: float) -> None:
        self.faults.append(cut(at_s, self._dice.choice(self._links)))


def schedule_of(name: str) -> Schedule:
    """Returns the fixed schedule of this name, or the random one whose seed is this number."""
    return FIXED[name] if name in FIXED else _random_schedule(int(name))


def _random_schedule(seed: int) -> Schedule:
    dice = Random(seed)
    workers = dice.choice((2, 2, 3))
    kind = dice.random()
    has_doomed, is_saved = kind < 0.25, kind > 0.85
    drawer = _Drawer(dice, workers, has_doomed=has_doomed)
    at_s = dice.uniform(0.05, 0.5)
    while at_s < HEAL_S - 2.0 and len(drawer.faults) < 8:
        drawer.draw(round(at_s, 3))
        at_s += dice.expovariate(1.6)
    if has_doomed:
        drawer.faults.append((Action(round(dice.uniform(0.3, 3.0), 3), "kill", "doomed"),))
    return Schedule(
        name=str(seed),
        workers=workers,
        readers=dice.choice((1, 1, 2)),
        has_doomed_reader=has_doomed,
        protocol=dice.choice((None, "flight", "flight")),
        source=dice.choice(("range", "parquet")),
        rows=dice.choice((3_000, 12_000, 40_000)),
        batch_rows=dice.choice((17, 64, 256)),
        is_shuffled=dice.random() < 0.5,
        bad_every=None if is_saved else dice.choice((None, None, 130)),
        is_saved=is_saved,
        # A worker has two threads: so the work lasts 3 or 5 s, in which most faults come.
        seconds=2 * workers * dice.choice((3.0, 5.0)),
        actions=in_order(*drawer.faults),
    )

"""The rounds of one consumer of coordinated reads: held, to be handed out, still to be asked for.

Pure: no threads, no network, no clock. Invariants: rounds are handed out strictly in order; a round
is handed out only once all consumers hold it, as given by one worker under one generation; once an
answer has told it to stop, it hands out nothing until another one tells it to go on; nothing
is asked for further ahead of the slowest consumer than the window, so what workers and consumers
hold is bounded.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, NamedTuple, TypeVar

from dataservice.wire.elements import Ask

Item = TypeVar("Item")

# Fewer would stop the consumers at every round; more than that only when elements are small.
MIN_WINDOW = 2
# How often to ask while waiting for the others: at first at once, later seldom.
POLL_FIRST_S = 0.002
POLL_MAX_S = 0.1
# Progress is told in groups, sooner when others may soon wait for it.
GROUP_S = 0.05
MIN_GAP_S = 0.001


class Block(NamedTuple):
    """Rounds [first, end) that a worker gives, under a generation."""

    first: int
    end: int
    worker_id: str
    generation: int


class Answer(NamedTuple):
    """What the dispatcher says of the rounds."""

    blocks: tuple[Block, ...]
    version: int
    complete: int
    low: int
    begin: int
    roll: int = 0


class Report(NamedTuple):
    """What a consumer says of itself."""

    version: int
    received: int
    consumed: int
    sought: int
    window: int
    roll: int


class _Held(NamedTuple, Generic[Item]):
    generation: int
    item: Item
    size_bytes: int


class RoundTracker(Generic[Item]):
    """One consumer's rounds. Not thread safe.

    `window` bounds the rounds ahead; `max_bytes` lowers it where elements are large.
    """

    def __init__(self, window: int, max_bytes: int) -> None:
        self.next_round = 0
        self._max_window = max(MIN_WINDOW, window)
        self._max_bytes = max_bytes
        self._largest_bytes = 1
        self._answer = Answer((), 0, 0, 0, 0)
        self._held: dict[int, _Held[Item]] = {}
        self._asked: dict[int, tuple[str, int]] = {}
        self._reported = (0, 0)
        self._stopped = 0
        self._sought = 0

    @property
    def window(self) -> int:
        """How many rounds ahead of the slowest consumer this one asks."""
        return max(MIN_WINDOW, min(self._max_window, self._max_bytes // self._largest_bytes))

    @property
    def low(self) -> int:
        """All consumers are done with the rounds below."""
        return self._answer.low

    @property
    def received(self) -> int:
        """Every round below is here, or was handed out."""
        number = self.next_round
        while number in self._held:
            number += 1
        return number

    @property
    def unreported(self) -> int:
        """Rounds received and consumed that the dispatcher does not know of."""
        received, consumed = self._reported
        return max(0, self.received - received) + max(0, self.next_round - consumed)

    def is_waited_for(self) -> bool:
        """Whether others may wait for word of what came, nothing more being on its way here, or for
        word that this one has stopped.
        """
        return self._stopped < self._answer.roll or (
            not self._asked and self.received > self._reported[0]
        )

    def take(self) -> Item | None:
        """The element of the next round; None while it must not be, or cannot be, handed out."""
        if not self.has_next():
            return None
        item = self._held.pop(self.next_round).item
        self.next_round += 1
        return item

    def receive(
        self, worker_id: str, number: int, generation: int, item: Item | None, size_bytes: int
    ) -> None:
        """An element came; None where the worker has none any more."""
        if self._asked.get(number) == (worker_id, generation):
            del self._asked[number]
        if item is None or number < self.next_round or number in self._held:
            return
        block = self._block_of(number)
        if block is None or (block.worker_id, block.generation) != (worker_id, generation):
            return
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        self._held[number] = _Held(generation, item, size_bytes)

    def lacks_work(self) -> bool:
        """Whether there is room for more and nothing to ask for until the others get further."""
        return not self._asked and self.received < self.next_round + self.window

    def has_next(self) -> bool:
        """Whether the next round may be handed out."""
        return self.next_round < self._answer.complete and self.next_round in self._held

    def asks(self, reachable: Container[str]) -> dict[str, list[Ask]]:
        """What to ask of each worker now, of those within reach; counts as asked from now on."""
        wanted: dict[str, list[Ask]] = {}
        limit = self._answer.low + self.window
        for block in self._answer.blocks:
            if block.worker_id not in reachable:
                continue
            for number in range(max(block.first, self.next_round), min(block.end, limit)):
                if number not in self._held and number not in self._asked:
                    self._asked[number] = (block.worker_id, block.generation)
                    _append(wanted.setdefault(block.worker_id, []), number, block.generation)
        return wanted

    def forget_worker(self, worker_id: str) -> None:
        """What a worker was asked for does not come: the way to it is lost."""
        self._asked = {n: asked for n, asked in self._asked.items() if asked[0] != worker_id}

    def report(self) -> Report:
        """What to tell the dispatcher."""
        consumed = self.next_round
        answer = self._answer
        return Report(
            answer.version, self.received, consumed, self._sought, self.window, answer.roll
        )

    def digest(self, report: Report, answer: Answer) -> bool:
        """Takes in the answer to a report; whether it brought anything on."""
        before = self._answer
        self._answer = answer
        # What was received under an older version does not count, and may have to be got again.
        is_current = report.version == answer.version
        self._reported = (report.received if is_current else answer.begin, report.consumed)
        self._stopped = report.roll
        self._sought = 0 if report.sought == self._sought else self._sought
        self._begin_at(answer.begin)
        self._drop_void()
        return before != answer

    def seek(self, number: int) -> None:
        """Goes on at this round, unless the others are further."""
        self._sought = max(self._sought, number)
        self._begin_at(number)

    def _begin_at(self, number: int) -> None:
        self.next_round = max(self.next_round, number)
        for passed in [held for held in self._held if held < self.next_round]:
            del self._held[passed]
        for passed in [asked for asked in self._asked if asked < self.next_round]:
            del self._asked[passed]

    def _drop_void(self) -> None:
        """Forgets incomplete rounds that another worker, or generation, gives now."""
        for number in [n for n in self._held if n >= self._answer.complete]:
            block = self._block_of(number)
            if block is None or block.generation != self._held[number].generation:
                del self._held[number]
        for number, asked in list(self._asked.items()):
            block = self._block_of(number)
            if block is None or (block.worker_id, block.generation) != asked:
                del self._asked[number]

    def _block_of(self, number: int) -> Block | None:
        blocks = (block for block in self._answer.blocks if block.first <= number < block.end)
        return next(blocks, None)


def _append(asks: list[Ask], number: int, generation: int) -> None:
    """Adds a round, to the last ask if it goes on there."""
    if asks and (asks[-1].end, asks[-1].generation) == (number, generation):
        asks[-1] = asks[-1]._replace(end=number + 1)
    else:
        asks.append(Ask(number, number + 1, generation))


class RoundPacing:
    """When a consumer speaks to the dispatcher: pure arithmetic on given times."""

    def __init__(self, heartbeat_s: float, now_s: float) -> None:
        self._own_s = self._heartbeat_s = heartbeat_s
        self._last_s = now_s - heartbeat_s
        self._poll_s = POLL_FIRST_S

    def due_s(self, *, urgent: bool, waits: bool, unreported: int, window: int) -> float:
        """The time of the next call.

        `urgent`: the dispatcher, or others through it, must know at once. `waits`: a taker has
        nothing to take, or nothing can be asked for, until others get further.
        """
        pauses_s = [self._heartbeat_s]
        if waits:
            pauses_s.append(self._poll_s)
        if urgent or (unreported and waits) or unreported >= max(1, window // 4):
            pauses_s.append(MIN_GAP_S)
        elif unreported:
            pauses_s.append(GROUP_S)
        return self._last_s + min(pauses_s)

    def note_interval(self, least_s: float) -> None:
        """The dispatcher wants to hear no more often than this of consumers without news."""
        self._heartbeat_s = max(self._own_s, least_s)

    def note_call(self, now_s: float, *, progress: bool) -> None:
        """A call was answered."""
        self._poll_s = POLL_FIRST_S if progress else min(2 * self._poll_s, POLL_MAX_S)
        self._last_s = now_s

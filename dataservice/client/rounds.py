"""The rounds of one consumer of coordinated reads: which it holds, may hand out, and must ask for.

Responsible for these three sets and for the times of calls. Pure: knows no threads, network or
clock. Invariants: rounds are handed out strictly in order; a round is handed out only once all
consumers hold it, as given by one worker under one generation; after an answer told the consumer to
stop, it hands out nothing until another answer tells it to go on; no round is asked for that is
further than the window ahead of the slowest consumer, which bounds what workers and consumers hold.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Generic, NamedTuple, TypeVar

from dataservice.wire.elements import Ask

Item = TypeVar("Item")

# A smaller window would stop the consumers at every round; only small elements get a larger one.
MIN_WINDOW = 2
# Pauses between calls while waiting for other consumers: the first, and the upper bound.
POLL_FIRST_S = 0.002
POLL_MAX_S = 0.1
# Progress is reported in groups, and sooner if others may soon wait for it.
GROUP_S = 0.05
MIN_GAP_S = 0.001


class Block(NamedTuple):
    """The rounds [first, end), given by one worker under one generation."""

    first: int
    end: int
    worker_id: str
    generation: int


class Answer(NamedTuple):
    """What the dispatcher says about the rounds; the fields are those of `SyncRoundsReply`.

    Rounds below `complete` may be handed out, all consumers are done with rounds below `low`, and
    this consumer begins at `begin`. `roll` counts the roll calls, in which all consumers stop.
    """

    blocks: tuple[Block, ...]
    version: int
    complete: int
    low: int
    begin: int
    roll: int = 0


class Report(NamedTuple):
    """What a consumer reports; the fields are those of `SyncRoundsRequest`.

    It has received all rounds below `received` and handed out all rounds below `consumed`.
    `version` and `roll` are those of the last answer; `sought` is the round that it was told to go
    on at.
    """

    version: int
    received: int
    consumed: int
    sought: int
    window: int
    roll: int


class RoundTracker(Generic[Item]):
    """The rounds of one consumer. Not thread safe.

    `window` bounds how far it asks ahead of the slowest consumer; `max_bytes` lowers this bound if
    elements are large.
    """

    def __init__(self, window: int, max_bytes: int) -> None:
        self.next_round = 0
        self._max_window = max(MIN_WINDOW, window)
        self._max_bytes = max_bytes
        self._largest_bytes = 1
        self._answer = Answer((), 0, 0, 0, 0)
        self._held: dict[int, tuple[int, Item]] = {}  # generation, element
        self._asked: dict[int, tuple[str, int]] = {}
        self._reported = (0, 0)
        self._stopped = 0
        self._sought = 0

    @property
    def window(self) -> int:
        """The number of rounds by which this consumer asks ahead of the slowest one."""
        return max(MIN_WINDOW, min(self._max_window, self._max_bytes // self._largest_bytes))

    @property
    def low(self) -> int:
        """The low-water mark: all consumers are done with the rounds below it."""
        return self._answer.low

    def givers(self) -> set[str]:
        """Returns the workers that give the rounds from the next one on, as far as is known."""
        return {block.worker_id for block in self._answer.blocks}

    @property
    def received(self) -> int:
        """The round up to which, exclusively, all rounds are held or were handed out."""
        number = self.next_round
        while number in self._held:
            number += 1
        return number

    @property
    def unreported(self) -> int:
        """The number of rounds received, plus rounds consumed, since the last answered report."""
        received, consumed = self._reported
        return max(0, self.received - received) + max(0, self.next_round - consumed)

    def is_waited_for(self) -> bool:
        """True if others may wait for a report that this consumer has stopped, or of what it holds.

        The latter only while no more rounds are in flight to it.
        """
        return self._stopped < self._answer.roll or (
            not self._asked and self.received > self._reported[0]
        )

    def take(self) -> Item | None:
        """Returns the element of the next round; None if it has not arrived or must wait."""
        if not self.has_next():
            return None
        _, item = self._held.pop(self.next_round)
        self.next_round += 1
        return item

    def receive(
        self, worker_id: str, number: int, generation: int, item: Item | None, size_bytes: int
    ) -> None:
        """Stores the element of a round; `item` None says that the worker no longer has it.

        Ignores elements of a worker or generation that does not give the round at present.
        """
        if self._asked.get(number) == (worker_id, generation):
            del self._asked[number]
        if item is None or number < self.next_round or number in self._held:
            return
        block = self._block_of(number)
        if block is None or (block.worker_id, block.generation) != (worker_id, generation):
            return
        self._largest_bytes = max(self._largest_bytes, size_bytes)
        self._held[number] = (generation, item)

    def lacks_work(self) -> bool:
        """True if there is room for more rounds, but none to ask for until others get further."""
        return not self._asked and self.received < self.next_round + self.window

    def has_next(self) -> bool:
        """True if the next round is held and may be handed out."""
        return self.next_round < self._answer.complete and self.next_round in self._held

    def asks(self, reachable: Container[str]) -> dict[str, list[Ask]]:
        """Returns the asks to send to each reachable worker, and counts them as in flight."""
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
        """Forgets the asks in flight to a worker whose stream broke."""
        self._asked = {n: asked for n, asked in self._asked.items() if asked[0] != worker_id}

    def report(self) -> Report:
        """Returns what to report to the dispatcher."""
        consumed = self.next_round
        answer = self._answer
        return Report(
            answer.version, self.received, consumed, self._sought, self.window, answer.roll
        )

    def apply_answer(self, report: Report, answer: Answer) -> bool:
        """Applies the answer to a report; returns whether it changed anything."""
        before = self._answer
        self._answer = answer
        # Rounds received under an older version do not count and may have to be fetched again.
        is_current = report.version == answer.version
        self._reported = (report.received if is_current else answer.begin, report.consumed)
        self._stopped = report.roll
        self._sought = 0 if report.sought == self._sought else self._sought
        self._begin_at(answer.begin)
        self._drop_void()
        return before != answer

    def seek(self, number: int) -> None:
        """Goes on at round `number`; the dispatcher lets it begin later if others are further."""
        self._sought = max(self._sought, number)
        self._begin_at(number)

    def _begin_at(self, number: int) -> None:
        self.next_round = max(self.next_round, number)
        for passed in [held for held in self._held if held < self.next_round]:
            del self._held[passed]
        for passed in [asked for asked in self._asked if asked < self.next_round]:
            del self._asked[passed]

    def _drop_void(self) -> None:
        """Drops incomplete rounds that were reassigned to another worker or generation."""
        for number in [n for n in self._held if n >= self._answer.complete]:
            block = self._block_of(number)
            if block is None or block.generation != self._held[number][0]:
                del self._held[number]
        for number, asked in list(self._asked.items()):
            block = self._block_of(number)
            if block is None or (block.worker_id, block.generation) != asked:
                del self._asked[number]

    def _block_of(self, number: int) -> Block | None:
        blocks = (block for block in self._answer.blocks if block.first <= number < block.end)
        return next(blocks, None)


def _append(asks: list[Ask], number: int, generation: int) -> None:
    """Adds a round to the asks; extends the last ask if the round follows it."""
    if asks and (asks[-1].end, asks[-1].generation) == (number, generation):
        asks[-1] = asks[-1]._replace(end=number + 1)
    else:
        asks.append(Ask(number, number + 1, generation))


class RoundPacing:
    """The schedule of a consumer's calls to the dispatcher: pure arithmetic on given times."""

    def __init__(self, heartbeat_s: float, now_s: float) -> None:
        self._own_s = self._heartbeat_s = heartbeat_s
        self._last_s = now_s - heartbeat_s
        self._poll_s = POLL_FIRST_S

    def due_s(self, *, urgent: bool, waits: bool, unreported: int, window: int) -> float:
        """Returns the time of the next call.

        `urgent`: the dispatcher, or others through it, must hear at once. `waits`: until others get
        further, a taker has nothing to take or no round can be asked for.
        """
        pauses_s = [self._heartbeat_s]
        if waits:
            pauses_s.append(self._poll_s)
        if urgent or (unreported and waits) or unreported >= max(1, window // 4):
            pauses_s.append(MIN_GAP_S)
        elif unreported:
            pauses_s.append(GROUP_S)
        return self._last_s + min(pauses_s)

    def record_interval(self, least_s: float) -> None:
        """Records the least interval that the dispatcher wants between calls without news."""
        self._heartbeat_s = max(self._own_s, least_s)

    def record_call(self, now_s: float, *, progress: bool) -> None:
        """Records that a call was answered, and whether the answer changed anything."""
        self._poll_s = POLL_FIRST_S if progress else min(2 * self._poll_s, POLL_MAX_S)
        self._last_s = now_s

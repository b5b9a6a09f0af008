"""A dispatcher of coordinated reads without threads or network, and its replies to consumers."""

from __future__ import annotations

from typing import Any

from dataservice.client.rounds import Answer, Block
from dataservice.dispatcher import decide, opening, rounds
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.requests import (
    Decision,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    RoundsAnswer,
    SyncRounds,
)
from dataservice.dispatcher.round_table import RoundTable
from dataservice.dispatcher.state import DispatcherState
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy

WINDOW = 6


class Cluster:
    """A dispatcher's state and the requests to it; all events are applied as read from JSON."""

    def __init__(self, consumers: int = 2, workers: int = 2, cardinality: int = -1) -> None:
        self.state = DispatcherState()
        self.consumers = consumers
        self._ids = 0
        self._rolls: dict[str, int] = {}
        self.commit(
            decide.register_dataset(
                self.state,
                RegisterDataset(plan=b"", schema=b"", cardinality=cardinality, compression="AUTO"),
            )
        )
        for _ in range(workers):
            self.add_worker()

    def commit(self, decision: Decision) -> None:
        for event in decode_frame(encode_frame(decision.events)):
            self.state.apply(event)
        check_invariants(self.state)

    def new_id(self, kind: str) -> str:
        self._ids += 1
        return f"{kind}{self._ids}"

    def add_worker(self) -> str:
        worker = self.new_id("w")
        self.commit(
            decide.register_worker(self.state, RegisterWorker(worker_id=worker, address=worker))
        )
        return worker

    def lose_worker(self, worker: str) -> None:
        self.commit(decide.lose_worker(self.state, worker))

    def join(self, index: int, **changed: Any) -> str:
        reader = self.new_id("r")
        fields: dict[str, Any] = {
            "dataset_id": "1000",
            "policy": ShardingPolicy.OFF,
            "job_name": "steps",
            "repetition": 0,
            "delivery": "exactly_once",
            "options": JobOptions(num_consumers=self.consumers),
            "reader_id": reader,
            "job_id": "j",
            "iteration_id": "i",
            "consumer_index": index,
        }
        request = OpenIteration(**{**fields, **changed})
        self.commit(opening.open_iteration(self.state, request, None))
        return reader

    def sync(self, reader: str, **marks: Any) -> RoundsAnswer:
        known = {"window": WINDOW, "version": 0, "roll": self._rolls.get(reader, 0)}
        request = SyncRounds(reader_id=reader, iteration_id="i", **{**known, **marks})
        decide.find_reader(self.state, reader, "i")
        for decision in rounds.sync(self.state, request):
            self.commit(decision)
        answer = rounds.answer(self.state, request)
        self._rolls[reader] = answer.roll
        return answer

    def meet(self, *readers: str, **marks: Any) -> None:
        """Has each reader sync twice: it learns of a roll call, and then stops for it."""
        for reader in readers * 2:
            self.sync(reader, **marks)

    @property
    def table(self) -> RoundTable:
        table = self.state.iterations["i"].rounds
        assert table is not None
        return table


def answer_of(*blocks: Block, version: int = 0, complete: int = 0, begin: int = 0) -> Answer:
    return Answer(blocks, version, complete, begin, begin)

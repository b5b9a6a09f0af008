"""Saved positions of readers: what they contain, and how to merge several into one.

Responsible for encoding, checking and merging positions. Pure: knows no connections. A position
counts what its reader consumed and what readers that had left by then consumed. So the positions
that all readers of a job save at one moment, while none of them reads, add up to all that was
consumed. Invariant: merging loses nothing and counts nothing twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dataservice.client.tasks import TaskMark
from dataservice.errors import InvalidArgumentError, UnimplementedError
from dataservice.ranges import Consumed
from dataservice.vocabulary import ANY_DIVISION, ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import RowSpan

_FORMAT: Final = 1
_KEY: Final = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """The position that a reader saves.

    `plan` is the fingerprint of the registered plan, `division` identifies the cut into windows,
    and `seeds` are the plan's seeds that were drawn because the user gave none. `origins` are the
    readers that saved the position, `peers` those that read the job when it was saved. An ordered
    reader cuts windows at multiples of `chunk_rows`. Under policies other than DYNAMIC, rows are
    counted by `tasks`, `division` identifies the list of files, and `shards` is the number of
    shares of a static policy, else 0. `varied`: a shuffle without a seed has an order of its own in
    each pass.
    """

    plan: str
    division: str
    policy: str
    delivery: str
    ordered: bool
    repetition: int
    seeds: tuple[int, ...]
    consumed: Consumed
    origins: tuple[str, ...]
    peers: tuple[str, ...]
    chunk_rows: int = 0
    shards: int = 0
    tasks: tuple[TaskMark, ...] = ()
    varied: bool = True

    @property
    def has_windows(self) -> bool:
        """True if rows are counted by window, so that other readers may go on from the position."""
        return self.policy == ShardingPolicy.DYNAMIC.name

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-able form, whose size grows with the number of windows in flight."""
        return {
            _KEY: _FORMAT,
            "plan": self.plan,
            "division": self.division,
            "policy": self.policy,
            "delivery": self.delivery,
            "ordered": self.ordered,
            "repetition": self.repetition,
            "seeds": list(self.seeds),
            "origins": list(self.origins),
            "peers": list(self.peers),
            "chunk_rows": self.chunk_rows,
            "shards": self.shards,
            "tasks": [task.to_json() for task in self.tasks],
            "varied": self.varied,
            **self.consumed.to_json(),
        }

    @classmethod
    def from_json(cls, encoded: Any) -> ReaderPosition:
        """Decodes what `to_json` returned; raises InvalidArgumentError for anything else."""
        if not isinstance(encoded, Mapping) or encoded.get(_KEY) != _FORMAT:
            raise InvalidArgumentError(
                f"not a position of a data service reader of version {_FORMAT}: {encoded!r:.200}"
            )
        try:
            return cls(
                plan=str(encoded["plan"]),
                division=str(encoded["division"]),
                policy=str(encoded["policy"]),
                delivery=str(encoded["delivery"]),
                ordered=bool(encoded["ordered"]),
                repetition=int(encoded["repetition"]),
                seeds=tuple(map(int, encoded["seeds"])),
                consumed=Consumed.from_json(encoded),
                origins=tuple(map(str, encoded["origins"])),
                peers=tuple(map(str, encoded["peers"])),
                chunk_rows=int(encoded["chunk_rows"]),
                shards=int(encoded.get("shards", 0)),
                tasks=tuple(map(TaskMark.from_json, encoded.get("tasks", ()))),
                # In states saved by older versions all passes have the same order.
                varied=bool(encoded.get("varied", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"malformed iterator state: {error!r}") from error

    def check_matches(self, **expected: object) -> None:
        """Raises InvalidArgumentError for a position in other data, or of data read another way."""
        for name, wanted in expected.items():
            found = getattr(self, name)
            if found != wanted:
                raise InvalidArgumentError(
                    f"the state was saved with another {name} ({found}, this is {wanted}); build "
                    "and distribute the dataset with the same sources, operators and arguments"
                )


def position_message(position: ReaderPosition | None) -> pb.Position | None:
    """Returns the part of a position that the dispatcher needs, None if it needs nothing."""
    if position is None or not position.has_windows:
        return None
    return pb.Position(
        consumed_json=json.dumps(position.consumed.to_json()),
        origins=position.origins,
        peers=position.peers,
        division=position.division,
    )


def rewind(consumed: Consumed, later: Iterable[tuple[RowSpan, ...]]) -> None:
    """Removes from `consumed` the rows of elements that were taken after the position."""
    for spans in later:
        for span in spans:
            if span.rows:
                consumed.rewind(span.window, span.first_row)


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the iterator states that all readers of a job saved into one.

    A single iterator that loads the merged state goes on where all readers stopped. The states must
    have been saved at one moment, while none of the readers read. Raises InvalidArgumentError for
    states of different datasets, two states of one reader, or states whose operators after
    `distribute` are at different positions.
    """
    is_list = isinstance(states, list | tuple) and all(isinstance(s, Mapping) for s in states)
    if not is_list or not states:
        raise InvalidArgumentError(
            f"merge_states() takes a list of at least one iterator state, got {states!r:.200}"
        )
    merged = dict(_merged(list(states), "state"))
    if not any(_positions(merged)):
        raise InvalidArgumentError(
            "merge_states() takes states of iterators that read the data service; these do not"
        )
    return merged


def is_service_state(state: Any) -> bool:
    """True if an iterator's state holds a position in a data service job under DYNAMIC.

    Another reader of the job can go on from such a state, and :func:`merge_states` accepts it.
    """
    dynamic = ShardingPolicy.DYNAMIC.name
    return any(position.get("policy") == dynamic for position in _positions(state))


def rewound_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of an iterator state in which nothing is consumed, by this or other readers.

    A single iterator that loads it begins the repetition again, if nobody else reads it.
    """
    if _KEY in state:
        position = ReaderPosition.from_json(state)
        division = ANY_DIVISION if position.has_windows else position.division
        return replace(
            position, consumed=Consumed(), tasks=(), peers=position.origins, division=division
        ).to_json()
    return {
        key: rewound_state(value) if isinstance(value, Mapping) else value
        for key, value in state.items()
    }


def _merged(values: list[Any], where: str) -> Any:
    first = values[0]
    if not all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
        if all(value == first for value in values):
            return first
        raise InvalidArgumentError(
            f"the states differ in {where} ({', '.join(map(repr, values)):.200}): states can "
            "be merged only if they are of one dataset, without operators after "
            "distribute() that keep a position of their own; load each state into an "
            "iterator of its own"
        )
    if _KEY in first:
        return _merged_positions([ReaderPosition.from_json(value) for value in values]).to_json()
    return {key: _merged([value[key] for value in values], f"{where}[{key!r}]") for key in first}


def _merged_positions(positions: list[ReaderPosition]) -> ReaderPosition:
    first, *others = positions
    if others and not first.has_windows:
        raise UnimplementedError(
            f"states of readers under ShardingPolicy.{first.policy} cannot be merged, since each "
            "reads a job of its own; load each into an iterator of its own, or distribute with "
            "ShardingPolicy.DYNAMIC"
        )
    consumed = first.consumed.copy()
    origins, peers = set(first.origins), set(first.peers)
    for other in others:
        for name in ("plan", "division", "policy", "delivery", "ordered", "repetition", "seeds"):
            other.check_matches(**{name: getattr(first, name)})
        again = origins & set(other.origins)
        if again:
            raise InvalidArgumentError(
                f"several of the states were saved by reader {', '.join(sorted(again))}; merge "
                "only the last state of each reader"
            )
        consumed.merge(other.consumed)
        origins.update(other.origins)
        peers.update(other.peers)
    return replace(
        first, consumed=consumed, origins=tuple(sorted(origins)), peers=tuple(sorted(peers))
    )


def _positions(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the encoded reader positions that an iterator's state contains."""
    if not isinstance(state, Mapping):
        return
    if _KEY in state:
        yield state
        return
    for value in state.values():
        yield from _positions(value)

"""The encoding of facts: a frame of the journal is one decision, as JSON of a list of facts.

Pure. Knows the types of the facts' fields, not what facts mean. Invariants: a torn tail loses a
whole decision or nothing; `decode_frame(encode_frame(events)) == events`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

from dataservice.dispatcher import events, round_events, snapshot_events
from dataservice.dispatcher.events import Event
from dataservice.dispatcher.images import image_from_json, image_to_json
from dataservice.dispatcher.plans import plan_from_json, plan_to_json
from dataservice.dispatcher.resumption import Resumption
from dataservice.errors import DataLossError
from dataservice.job_options import JobOptions
from dataservice.ranges import Consumed, RowMark
from dataservice.vocabulary import ShardingPolicy

# Not Event.__subclasses__(): slots=True makes a second class, and both would be listed.
FACTS: Final[dict[str, type[Event]]] = {
    name: value
    for module in (events, round_events, snapshot_events)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_marks(rows: list[list[int]]) -> tuple[RowMark, ...]:
    return tuple(RowMark(window, generation, row, bool(f)) for window, generation, row, f in rows)


# Encoders of the field types that JSON lacks, by the name of the type.
_ENCODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": _encode_bytes,
    "Consumed": Consumed.to_json,
    "JobOptions": JobOptions.to_json,
    "Resumption | None": lambda value: None if value is None else value.to_json(),
    "WindowPlan": plan_to_json,
    "TableImage | None": image_to_json,
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": base64.b64decode,
    "Consumed": Consumed.from_json,
    "JobOptions": JobOptions.from_json,
    "Resumption | None": lambda row: None if row is None else Resumption.from_json(row),
    "WindowPlan": plan_from_json,
    "TableImage | None": image_from_json,
    "ShardingPolicy": ShardingPolicy,
    "tuple[tuple[Any, ...], ...]": lambda rows: tuple(tuple(row) for row in rows),
    "tuple[int, ...]": tuple,
    "tuple[str, ...]": tuple,
    "tuple[bool, ...]": tuple,
    "tuple[RowMark, ...]": _decode_marks,
}


def encode_frame(facts: Sequence[Event]) -> bytes:
    """Encodes one decision."""
    return json.dumps([_encode(event) for event in facts], separators=(",", ":")).encode()


def decode_frame(frame: bytes) -> tuple[Event, ...]:
    """Decodes the facts of a frame; DataLossError if it holds anything else."""
    try:
        return tuple(_decode(item) for item in json.loads(frame))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"the journal holds a frame that is not a list of known facts ({error!r}); was it "
            "written by a newer version? Use that version, or start with an empty work_dir"
        ) from error


# The fields of each fact, as pairs of name and type.
_FIELDS: Final = {
    name: [(entry.name, str(entry.type)) for entry in fields(cls)] for name, cls in FACTS.items()
}


def _encode(event: Event) -> list[Any]:
    fact = type(event).__name__
    values: dict[str, Any] = {}
    for name, kind in _FIELDS[fact]:
        value, encode = getattr(event, name), _ENCODERS.get(kind)
        values[name] = value if encode is None else encode(value)
    return [fact, values]


def _decode(item: list[Any]) -> Event:
    fact, values = item
    arguments: dict[str, Any] = {}
    for name, kind in _FIELDS[fact]:
        value, decode = values[name], _DECODERS.get(kind)
        arguments[name] = value if decode is None else decode(value)
    return FACTS[fact](**arguments)

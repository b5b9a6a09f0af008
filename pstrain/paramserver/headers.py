"""Schemas of the requests to a parameter server: the fields of each kind, and their shapes.

Pure: knows nothing of shards, nor of how a request is handled. Invariant: a checked header has
every field that its kind needs, of the type that it needs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.messages import Header
from pstrain.paramserver.shapes import (
    INTEGER_MAX,
    Fault,
    Shape,
    integer,
    integer_rows,
    list_of,
    map_of,
    number,
    object_of,
    of_type,
    one_of,
    or_none,
    row,
)
from pstrain.paramserver.transport import BFLOAT16, FLOAT32, INT32, INT64
from pstrain.vocabulary import VARIABLE_DTYPES

_SHOWN_MAX: Final = 200
_WHOLE: Final = -1

_TEXT = of_type(str, "text")
_TRUTH = of_type(bool, "true or false")
_OBJECT = of_type(dict, "an object")
_COUNT = integer(0)
# Variables of sessions without a coordinator have ids below 0.
_ID = integer(-INTEGER_MAX)
_SHARD = row(_ID, _COUNT)
_SHARDS = integer_rows(2)
_KEY = row(_COUNT, _COUNT, _COUNT)
_NAMED = list_of(row(_TEXT, _COUNT))


def _spec(value: Any) -> Fault | None:
    fault = _SPEC_FIELDS(value)
    if fault is not None:
        return fault
    rows = value["shape"][0] if value["shape"] else 1
    for index, (_, start, stop) in enumerate(value["shards"]):
        if not start <= stop <= rows:
            return Fault(f".shards[{index}]", value["shards"][index], f"in rows [0, {rows})")
    return None


_SPEC_FIELDS = object_of(
    {
        "id": _ID,
        "name": _TEXT,
        "shape": list_of(_COUNT),
        "dtype": one_of(*VARIABLE_DTYPES),
        "trainable": _TRUTH,
        "initializer": object_of(
            {"name": _TEXT},
            {"parameters": map_of(number), "seed": of_type(int, "an integer")},
        ),
        "shards": integer_rows(3),
    }
)


@functools.lru_cache(maxsize=256)
def _optimizer_of(text: str) -> Fault | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Fault("", text, "the JSON form of an optimizer")
    return _OPTIMIZER_FIELDS(value)


def _optimizer(value: Any) -> Fault | None:
    """Checks an optimizer's text; cached, because each step sends the same text."""
    return _TEXT(value) or _optimizer_of(value)


_OPTIMIZER_FIELDS = object_of(
    {
        "name": _TEXT,
        "learning_rate": number,
        "l2": number,
        "parameters": map_of(number),
        "slots": list_of(number),
        "row_slots": list_of(number),
    }
)


def _outcome(value: Any) -> Fault | None:
    if type(value) is not dict or len(_OUTCOMES.keys() & value.keys()) != 1:
        return Fault("", value, "an object with a value, an error or bytes")
    return _OUTCOME_FIELDS(value)


_OUTCOMES = {"value": _TEXT, "error": _TEXT, "bytes": _COUNT}
_OUTCOME_FIELDS = object_of({}, {**_OUTCOMES, "met_end": _TRUTH})


def _entry(value: Any) -> Fault | None:
    """Checks an entry of a decision: 4 fields, optionally followed by ``plain`` and ``note``."""
    size = len(value) if type(value) is list else 0
    return _ENTRIES.get(size, _ENTRIES[4])(value)


_ENTRY_FIELDS = (_COUNT, _COUNT, _COUNT, or_none(_outcome), _COUNT, _TEXT)
_ENTRIES = {size: row(*_ENTRY_FIELDS[:size]) for size in (4, 5, 6)}


def _hexadecimal(value: Any) -> Fault | None:
    is_fine = type(value) is str and value != "" and not value.strip("0123456789abcdef")
    return None if is_fine else Fault("", value, "a hexadecimal number")


_MARKS = object_of(
    {
        "reader": _TEXT,
        "service": _TEXT,
        "marks": list_of(row(_COUNT, _COUNT, _COUNT, number)),
    }
)
_LEDGER = object_of(
    {"low_water": _COUNT, "applied": list_of(row(_COUNT, _COUNT, _hexadecimal))},
    {"fenced": list_of(_TEXT)},
)
_CHANGES: dict[str, Shape] = {"changes": list_of(_OBJECT)}
_PART: dict[str, Shape] = {"trainer": _TEXT, "key": _KEY, "low_water": _COUNT}
_TRY: dict[str, Shape] = {"try": _COUNT}
_COMMITS: dict[str, Shape] = {"commits": integer_rows(3)}
_DTYPES: dict[str, Shape] = {
    "transport_dtype": one_of(FLOAT32, BFLOAT16),
    "ids_dtype": one_of(INT64, INT32),
}
_LOAD: dict[str, Shape] = {
    "directory": _TEXT,
    "variables": _NAMED,
    "saved": object_of({"shards": list_of(_OBJECT)}),
    "load": _TEXT,
}

CHANGES: Final[Mapping[str, Shape]] = {
    "push": object_of(
        {"items": integer_rows(3, least=_WHOLE), "optimizer": _optimizer},
        {"iterations": or_none(_SHARD), "owner": or_none(_COUNT), **_DTYPES},
    ),
    "assign": object_of({"op": _TEXT, "shard": _SHARD, "start": _COUNT, "count": _COUNT}),
    "scatter": object_of({"op": _TEXT, "shard": _SHARD, "count": _COUNT}),
}
"""The shapes of changes to values, which come alone or among the ``changes`` of a part."""

REQUESTS: Final[Mapping[str, Shape]] = {
    **CHANGES,
    "change": object_of(_CHANGES),
    "create": object_of({"spec": _spec, "shards": list_of(_COUNT)}, {"has_values": _TRUTH}),
    "delete": object_of({"variables": list_of(_ID)}),
    "slots": object_of({"shards": _SHARDS, "optimizer": _optimizer}),
    "pull": object_of({"items": integer_rows(4, least=_WHOLE)}, _DTYPES),
    "both": object_of({"first": _OBJECT, "then": _OBJECT}),
    "read": object_of({"shard": _SHARD, "rows": row(_COUNT, _COUNT)}, _DTYPES),
    "claim": object_of({"items": integer_rows(3), "is_training": _TRUTH}),
    "count_keys": object_of({"shards": _SHARDS}),
    "count_idle": object_of({"items": integer_rows(4)}),
    "idle_keys": object_of({"items": integer_rows(6)}),
    "reset_rows": object_of({"items": integer_rows(4)}),
    "remove_keys": object_of({"items": integer_rows(5)}),
    "check": object_of(_CHANGES),
    "prepare": object_of({**_PART, **_CHANGES}, {**_TRY, **_COMMITS}),
    "decide": object_of(
        {**_PART, **_CHANGES, "entries": list_of(_entry), "rows": list_of(_MARKS)}, _COMMITS
    ),
    "commit": object_of({"trainer": _TEXT, "low_water": _COUNT, **_COMMITS}),
    "abort": object_of(_PART, _TRY),
    "apply_round": object_of({"parts": list_of(row(_TEXT, _KEY)), "gradients": _COUNT}),
    "fence": object_of({"trainer": _TEXT}),
    "complete": object_of({"trainer": _TEXT, "keys": integer_rows(3)}),
    "snapshot": object_of(
        {"snapshot": _TEXT, "variables": _NAMED},
        {"since": or_none(_TEXT), "ended": list_of(_TEXT)},
    ),
    "write": object_of(
        {"snapshot": _TEXT, "directory": _TEXT, "writer": _TEXT},
        {"base": or_none(object_of({"folder": _TEXT, "shards": list_of(_OBJECT)}))},
    ),
    "drop": object_of({"snapshot": _TEXT}),
    "verify": object_of(_LOAD),
    "load": object_of({**_LOAD, "ledger": or_none(_LEDGER)}),
    "give_up_load": object_of({"load": _TEXT}),
}
"""The shapes of requests to the store of a session."""

ACTIONS: Final[Mapping[str, Shape]] = {
    "reset": object_of(
        {"session": _TEXT}, {"replaced": or_none(_TEXT), "incarnation": or_none(_TEXT)}
    ),
    "advance": object_of({"session": _TEXT, "low_water": _COUNT}),
    "leave": object_of({"session": _TEXT}),
}
"""The shapes of requests to the server itself."""


def check_header(shapes: Mapping[str, Shape], kind: str, header: Header) -> None:
    """Raises InvalidArgumentError, naming the field and its value, if the header does not fit."""
    fault = shapes[kind](header)
    if fault is None:
        return
    shown = repr(fault.value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[:_SHOWN_MAX]}..."
    raise InvalidArgumentError(
        f"{fault.place.removeprefix('.')} of a request to {kind!r} must be {fault.wanted}, got "
        f"{shown}: have the program, its trainers and parameter servers run one version of pstrain"
    )

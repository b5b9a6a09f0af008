"""What a request to a parameter server has to say: the fields of each kind, and their shapes.

Pure: knows JSON values, nothing of shards, nor of what is done with a request. A shape finds the
first value that does not fit; fields that no shape names are let through. Invariant: whoever reads
a header that was checked finds every field that its kind needs, of the type that it needs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from dataservice.runtime.arguments import in_words
from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.transport import BFLOAT16, FLOAT32, INT32, INT64
from pstrain.vocabulary import VARIABLE_DTYPES

Header = dict[str, Any]

INTEGER_MAX: Final = (1 << 63) - 1
_SHOWN_MAX: Final = 200
_WHOLE: Final = -1


class Fault(NamedTuple):
    """A value that does not fit, where it is, as in ``items[0][2]``, and what was wanted there."""

    place: str
    value: Any
    wanted: str

    def inside(self, place: str) -> Fault:
        """As seen from what holds it there."""
        return self._replace(place=place + self.place)


Shape = Callable[[Any], Fault | None]


def _of_type(kind: type, wanted: str) -> Shape:
    def find(value: Any) -> Fault | None:
        return None if type(value) is kind else Fault("", value, wanted)

    return find


def _integer(least: int) -> Shape:
    def find(value: Any) -> Fault | None:
        if type(value) is int and least <= value <= INTEGER_MAX:
            return None
        return Fault("", value, f"an integer of at least {least}")

    return find


def _number(value: Any) -> Fault | None:
    is_number = type(value) in (float, bool) or (type(value) is int and abs(value) <= INTEGER_MAX)
    return None if is_number else Fault("", value, "a number")


def _one_of(*choices: str) -> Shape:
    def find(value: Any) -> Fault | None:
        is_known = type(value) is str and value in choices
        return None if is_known else Fault("", value, in_words(choices))

    return find


def _or_none(shape: Shape) -> Shape:
    return lambda value: None if value is None else shape(value)


def _list_of(shape: Shape) -> Shape:
    def find(value: Any) -> Fault | None:
        if type(value) is not list:
            return Fault("", value, "a list")
        for index, each in enumerate(value):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def _row(*shapes: Shape) -> Shape:
    def find(value: Any) -> Fault | None:
        if type(value) is not list or len(value) != len(shapes):
            return Fault("", value, f"a list of {len(shapes)}")
        for index, (shape, each) in enumerate(zip(shapes, value, strict=True)):
            if (fault := shape(each)) is not None:
                return fault.inside(f"[{index}]")
        return None

    return find


def _rows(count: int, least: int = 0) -> Shape:
    """Lists of so many integers of at least this; they are many, and come with every step."""
    find = _list_of(_row(*[_integer(least)] * count))

    def fit(value: Any) -> bool:
        if type(value) is not list or not {list}.issuperset(map(type, value)):
            return False
        numbers = list(chain.from_iterable(value))
        return (
            {count}.issuperset(map(len, value))
            and {int}.issuperset(map(type, numbers))
            and least <= min(numbers, default=least)
            and max(numbers, default=least) <= INTEGER_MAX
        )

    return lambda value: None if fit(value) else find(value)


def _map_of(shape: Shape) -> Shape:
    def find(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault("", value, "an object")
        for name, each in value.items():
            if (fault := shape(each)) is not None:
                return fault.inside(f".{name}")
        return None

    return find


def _object(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None) -> Shape:
    def find(value: Any) -> Fault | None:
        if type(value) is not dict:
            return Fault("", value, "an object")
        for name, shape in (optional or {}).items():
            if name in value and (fault := shape(value[name])) is not None:
                return fault.inside(f".{name}")
        for name, shape in needed.items():
            if name not in value:
                return Fault(f".{name}", None, "given")
            if (fault := shape(value[name])) is not None:
                return fault.inside(f".{name}")
        return None

    return find


_TEXT = _of_type(str, "text")
_TRUTH = _of_type(bool, "true or false")
_OBJECT = _of_type(dict, "an object")
_COUNT = _integer(0)
# Those below 0 are of sessions without a coordinator.
_ID = _integer(-INTEGER_MAX)
_SHARD = _row(_ID, _COUNT)
_SHARDS = _rows(2)
_KEY = _row(_COUNT, _COUNT, _COUNT)
_NAMED = _list_of(_row(_TEXT, _COUNT))


def _spec(value: Any) -> Fault | None:
    fault = _SPEC_FIELDS(value)
    if fault is not None:
        return fault
    rows = value["shape"][0] if value["shape"] else 1
    for index, (_, start, stop) in enumerate(value["shards"]):
        if not start <= stop <= rows:
            return Fault(f".shards[{index}]", value["shards"][index], f"in rows [0, {rows})")
    return None


_SPEC_FIELDS = _object(
    {
        "id": _ID,
        "name": _TEXT,
        "shape": _list_of(_COUNT),
        "dtype": _one_of(*VARIABLE_DTYPES),
        "trainable": _TRUTH,
        "initializer": _object(
            {"name": _TEXT},
            {"parameters": _map_of(_number), "seed": _of_type(int, "an integer")},
        ),
        "shards": _rows(3),
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
    """It comes with every step, and is the same each time."""
    return _TEXT(value) or _optimizer_of(value)


_OPTIMIZER_FIELDS = _object(
    {
        "name": _TEXT,
        "learning_rate": _number,
        "l2": _number,
        "parameters": _map_of(_number),
        "slots": _list_of(_number),
        "row_slots": _list_of(_number),
    }
)


def _outcome(value: Any) -> Fault | None:
    if type(value) is not dict or len(_OUTCOMES.keys() & value.keys()) != 1:
        return Fault("", value, "an object with a value, an error or bytes")
    return _object({}, {**_OUTCOMES, "met_end": _TRUTH})(value)


_OUTCOMES = {"value": _TEXT, "error": _TEXT, "bytes": _COUNT}


def _entry(value: Any) -> Fault | None:
    """Those of one more field say how many parts took no element."""
    fields = (_COUNT, _COUNT, _COUNT, _or_none(_outcome))
    is_longer = type(value) is list and len(value) > len(fields)
    return _row(*fields, *([_COUNT] * is_longer))(value)


def _hexadecimal(value: Any) -> Fault | None:
    is_fine = type(value) is str and value != "" and not value.strip("0123456789abcdef")
    return None if is_fine else Fault("", value, "a hexadecimal number")


_MARKS = _object(
    {
        "reader": _TEXT,
        "service": _TEXT,
        "marks": _list_of(_row(_COUNT, _COUNT, _COUNT, _number)),
    }
)
_LEDGER = _object(
    {"low_water": _COUNT, "applied": _list_of(_row(_COUNT, _COUNT, _hexadecimal))},
    {"fenced": _list_of(_TEXT)},
)
_CHANGES: dict[str, Shape] = {"changes": _list_of(_OBJECT)}
_PART: dict[str, Shape] = {"trainer": _TEXT, "key": _KEY, "low_water": _COUNT}
_TRY: dict[str, Shape] = {"try": _COUNT}
_DTYPES: dict[str, Shape] = {
    "transport_dtype": _one_of(FLOAT32, BFLOAT16),
    "ids_dtype": _one_of(INT64, INT32),
}
_LOAD: dict[str, Shape] = {
    "directory": _TEXT,
    "variables": _NAMED,
    "saved": _object({"shards": _list_of(_OBJECT)}),
    "load": _TEXT,
}

CHANGES: Final[Mapping[str, Shape]] = {
    "push": _object(
        {"items": _rows(3, least=_WHOLE), "optimizer": _optimizer},
        {"iterations": _or_none(_SHARD), "owner": _or_none(_COUNT), **_DTYPES},
    ),
    "assign": _object({"op": _TEXT, "shard": _SHARD, "start": _COUNT, "count": _COUNT}),
    "scatter": _object({"op": _TEXT, "shard": _SHARD, "count": _COUNT}),
}
"""Of what changes values, alone or among the ``changes`` of a part."""

REQUESTS: Final[Mapping[str, Shape]] = {
    **CHANGES,
    "create": _object({"spec": _spec, "shards": _list_of(_COUNT)}),
    "slots": _object({"shards": _SHARDS, "optimizer": _optimizer}),
    "pull": _object({"items": _rows(4, least=_WHOLE)}, _DTYPES),
    "both": _object({"first": _OBJECT, "then": _OBJECT}),
    "read": _object({"shard": _SHARD, "rows": _row(_COUNT, _COUNT)}, _DTYPES),
    "claim": _object({"items": _rows(3)}),
    "count_keys": _object({"shards": _SHARDS}),
    "check": _object(_CHANGES),
    "prepare": _object({**_PART, **_CHANGES}, _TRY),
    "decide": _object({**_PART, **_CHANGES, "entries": _list_of(_entry), "rows": _list_of(_MARKS)}),
    "commit": _object(_PART),
    "abort": _object(_PART, _TRY),
    "apply_round": _object({"parts": _list_of(_row(_TEXT, _KEY)), "gradients": _COUNT}),
    "fence": _object({"trainer": _TEXT}),
    "complete": _object({"trainer": _TEXT, "keys": _rows(3)}),
    "snapshot": _object(
        {"snapshot": _TEXT, "variables": _NAMED},
        {"since": _or_none(_TEXT), "ended": _list_of(_TEXT)},
    ),
    "write": _object(
        {"snapshot": _TEXT, "directory": _TEXT, "writer": _TEXT},
        {"base": _or_none(_object({"folder": _TEXT, "shards": _list_of(_OBJECT)}))},
    ),
    "drop": _object({"snapshot": _TEXT}),
    "verify": _object(_LOAD),
    "load": _object({**_LOAD, "ledger": _or_none(_LEDGER)}),
    "give_up_load": _object({"load": _TEXT}),
}
"""Of what is asked of the store of a session."""

ACTIONS: Final[Mapping[str, Shape]] = {
    "reset": _object({"session": _TEXT}, {"replaced": _or_none(_TEXT)}),
    "advance": _object({"session": _TEXT, "low_water": _COUNT}),
    "leave": _object({"session": _TEXT}),
}
"""Of what is asked of the server itself."""


def check_header(shapes: Mapping[str, Shape], kind: str, header: Header) -> None:
    """InvalidArgumentError, naming the field and its value, unless the header has its shape."""
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

"""How many Python calls a step makes: on a server they take most of a small step's time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain.features.schema import FeatureSchema
from pstrain.paramserver import shard_rows
from pstrain.paramserver.messages import Call
from pstrain.paramserver.requests import answer
from pstrain.paramserver.store import Store
from pstrain.trainer.outgoing import Push, both
from pstrain.trainer.pull import Pull
from pstrain.vocabulary import Fetch, InitializerSpec, OptimizerSpec, ShardSpec, VariableSpec
from tests.unit.counted_calls import calls_of

RULE = OptimizerSpec(name="adagrad", learning_rate=0.1, parameters={"epsilon": 1e-7}, slots=(0.1,))


def variable(number: int) -> VariableSpec:
    return VariableSpec(
        id=number,
        name=f"v{number}",
        shape=(4, 2),
        dtype="float32",
        trainable=True,
        initializer=InitializerSpec(name="constant"),
        shards=(ShardSpec(ps=0, row_start=0, row_stop=4),),
    )


def calls_of_a_step(variables: int) -> int:
    """Counts the calls of a server from request to reply.

    The server applies a step and reads the values for the next one.
    """
    store, specs = Store(), [variable(number) for number in range(variables)]
    push = Push()
    for spec in specs:
        store.create(spec, 0)
        push.add(spec, 0, None, np.ones((4, 2), np.float32))
    change, arrays = push.message(optimizer=RULE.text, owner=None, iterations=None)
    pulls = Pull([Fetch(spec) for spec in specs], {}, 1 << 20).messages()
    calls = []
    for closure in range(2):  # the first one makes the slots
        decide = {"kind": "decide", "trainer": "t", "key": [closure, 0, 0], "low_water": 0}
        decide |= {"entries": [[closure, 0, 0, {"value": ""}, 0]], "rows": [], "changes": [change]}
        header, body = both((decide, arrays), pulls[0])
        request = Call(header, body.to_buffer())

        def serve(request: Call = request) -> None:
            reply, late = answer(store, request)
            assert reply["first"] == {"applied": True}
            late.to_buffer()  # type: ignore[union-attr]

        calls.append(calls_of(serve))
    return calls[-1]


def test_server_step_stays_within_python_call_budget() -> None:
    one, nine = calls_of_a_step(1), calls_of_a_step(9)
    assert (nine - one) / 8 <= 12
    assert one <= 136


def test_pull_checks_id_range_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, spec, looks = Store(), variable(0), []
    store.create(spec, 0)
    first_outside = shard_rows.updates.first_outside

    def look(ids: Any, start: int, stop: int) -> int:
        looks.append(len(ids))
        return int(first_outside(ids, start, stop))

    monkeypatch.setattr(shard_rows.updates, "first_outside", look)
    header, ids = Pull([Fetch(spec, np.array([3, 1]))], {}, 1).messages()[0]
    _, late = answer(store, Call(header, ids.to_buffer()))
    late.to_buffer()  # type: ignore[union-attr]
    assert looks == [2]


def calls_of_encoding(columns: int) -> int:
    batch = pa.record_batch({f"c{column}": np.arange(4) for column in range(columns)})
    schema = FeatureSchema.from_arrow(batch.schema, label=None)
    schema.encode(batch)  # compiles
    return calls_of(lambda: schema.encode(batch))


def test_categorical_column_encoding_stays_within_python_call_budget() -> None:
    assert (calls_of_encoding(12) - calls_of_encoding(4)) / 8 <= 14

"""Which functions a trainer keeps; closures that wait still run a function forgotten since."""

from __future__ import annotations

import functools
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dataservice.runtime.pickling.shipping import unpickling
from pstrain.coordinator.sent_functions import SentFunctions
from pstrain.serialization import pickling
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.trainer_session import TrainerSession
from pstrain.wire import trainer_pb2 as pb


def test_least_recently_used_function_is_forgotten() -> None:
    sent = SentFunctions(functions_max=2)
    for name in "abc":
        assert not sent.use(name)
        sent.add(name, 1)
    assert sent.use("a")
    assert sent.forget() == ["b"]
    assert not sent.use("b")
    assert sent.use("a")
    assert sent.forget() == []


def test_functions_beyond_byte_limit_are_forgotten_except_newest() -> None:
    sent = SentFunctions(bytes_max=100)
    for name in "abc":
        sent.add(name, 60)
    assert sent.forget() == ["a", "b"]
    sent.add("d", 200)
    assert sent.forget() == ["c"]
    assert sent.use("d")


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), max_size=30),
    st.integers(1, 3),
)
def test_function_not_sent_again_is_still_held_by_trainer(
    batches: list[list[str]], functions_max: int
) -> None:
    sent, held = SentFunctions(functions_max=functions_max), set[str]()
    for used in batches:
        held.difference_update(sent.forget())
        assert len(held) <= functions_max
        for name in used:
            if not sent.use(name):
                assert name not in held
                sent.add(name, 1)
                held.add(name)
            assert name in held


def trainer(**request: Any) -> TrainerSession:
    parameters = RemoteParameters(["localhost:1"], session="s", token="-")
    return TrainerSession(pb.ConfigureRequest(session="s", trainer_count=4, **request), parameters)


def message(*names: str, dropped: tuple[str, ...] = ()) -> pb.RunRequest:
    functions = [
        pb.Definition(
            id=name, pickled=pickling.dumps_function(functools.partial(str, name), lambda _: None)
        )
        for name in names
    ]
    return pb.RunRequest(functions=functions, dropped_function_ids=dropped)


def test_closure_keeps_its_function_after_trainer_forgets_it() -> None:
    made = trainer()
    made.define(message("a"))
    order = made.order(pb.Closure(id=1, function_id="a"))
    made.define(message("b", dropped=("a",)))
    assert list(made._functions) == ["b"]
    assert order.function.get() is order.function.get()
    assert order.function.get()() == "a"
    made.close()


def test_trainer_strategy_knows_num_replicas_in_sync() -> None:
    made = trainer(num_replicas_in_sync=4)
    strategy = made._resolve(("strategy",))
    assert strategy.num_replicas_in_sync == 4
    assert made._context.get_per_replica_batch_size(64) == 16
    made.close()
    earlier = trainer()
    assert earlier._resolve(("strategy",)).num_replicas_in_sync == 1
    earlier.close()


def test_trainer_unpickles_in_one_thread_at_a_time() -> None:
    pickled = pickling.dumps((1, 2), lambda _: None)
    loading = threading.Thread(target=pickling.loads, args=(pickled, dict), daemon=True)
    with unpickling:
        loading.start()
        loading.join(0.1)
        assert loading.is_alive()
    loading.join(10.0)
    assert not loading.is_alive()

"""Ctrl-C: held back while rows are in hand, and harmless to operators if it is let through."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset import anchor, iterator
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import FailedPreconditionError
from dataservice.runtime.process.interrupts import HeldInterrupts
from tests.unit.dataservice.dataset.checkpoint_checker import numbers, open_stream, values


def _interrupt_within(interrupts: HeldInterrupts, rest: Callable[[], object]) -> None:
    with interrupts:
        signal.raise_signal(signal.SIGINT)
        rest()


def test_held_interrupt_is_raised_at_end_of_block() -> None:
    interrupts, done = HeldInterrupts(), []
    with pytest.raises(KeyboardInterrupt):
        _interrupt_within(interrupts, lambda: done.append("the rest"))
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_held_interrupt_is_raised_where_block_lets_it_through() -> None:
    interrupts = HeldInterrupts()
    interrupts.let_through()
    with pytest.raises(KeyboardInterrupt) as raised:
        _interrupt_within(interrupts, interrupts.let_through)
    assert interrupts.raised(raised.value)


def test_let_through_in_other_thread_raises_no_interrupt() -> None:
    interrupts, failures = HeldInterrupts(), []

    def elsewhere() -> None:
        try:
            interrupts.let_through()
        except KeyboardInterrupt as error:
            failures.append(error)

    def wait_for_another() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)

    with pytest.raises(KeyboardInterrupt):
        _interrupt_within(interrupts, wait_for_another)
    assert not failures


def test_second_interrupt_is_raised_at_once() -> None:
    interrupts, done = HeldInterrupts(), []

    def interrupt_again() -> None:
        done.append("once")
        signal.raise_signal(signal.SIGINT)
        done.append("twice")

    with pytest.raises(KeyboardInterrupt) as raised:
        _interrupt_within(interrupts, interrupt_again)
    assert done == ["once"]
    assert not interrupts.raised(raised.value)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_restored_after_its_block_raises_at_once() -> None:
    interrupts = HeldInterrupts()
    with interrupts:
        kept = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, kept)
    try:
        with pytest.raises(KeyboardInterrupt):
            _interrupt_within(interrupts, lambda: None)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_custom_sigint_handler_of_program_is_kept() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        with HeldInterrupts():
            signal.raise_signal(signal.SIGINT)
            assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


class _InterruptedStream(BatchStream):
    """A stream that is interrupted once before each batch."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream
        self._armed = True

    def __next__(self) -> pa.RecordBatch:
        self._armed = not self._armed
        if not self._armed:
            raise KeyboardInterrupt
        return next(self._stream)

    def state(self) -> State:
        return self._stream.state()

    def restore(self, state: State) -> None:
        self._stream.restore(state)

    def close(self) -> None:
        self._stream.close()


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda d: d.batch(4),
        lambda d: d.batch(7, drop_remainder=True),
        lambda d: d.batch(2).map(lambda c: {"x": c["x"] * 2}),
        lambda d: d.take(11),
        lambda d: d.skip(6),
        lambda d: d.filter(ds.col("x") % 3 == 0),
        lambda d: d.enumerate(),
        lambda d: d.shuffle(8, seed=3),
        lambda d: d.map(lambda c: {"x": c["x"] + 1}).batch(5),
    ],
)
def test_interrupted_operator_loses_no_rows_and_has_exact_state(
    pipeline: Callable[[Dataset], Dataset],
) -> None:
    dataset = pipeline(numbers(20))
    node = dataset.node
    assert isinstance(node, Operator)
    expected = values(list(open_stream(dataset)))
    stream = node.attach(_InterruptedStream(node.input.run(RunContext())), RunContext())
    seen: list[pa.RecordBatch] = []
    interruptions = 0
    while True:
        try:
            seen.append(next(stream))
        except KeyboardInterrupt:
            interruptions += 1
            with open_stream(dataset) as again:
                again.restore(stream.state())
                assert values([*seen, *again]) == expected
        except StopIteration:
            break
    assert values(seen) == expected
    assert interruptions > 1


class _InterruptingFunction:
    """A function of columns that raises SIGINT during its calls with these numbers."""

    def __init__(self, *calls: int) -> None:
        self._calls = calls
        self._count = 0

    def __call__(self, columns: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        if self._count in self._calls:
            signal.raise_signal(signal.SIGINT)
        return {"x": columns["x"] * 2}


@pytest.mark.parametrize(
    ("pipeline", "calls"),
    [
        (lambda d, function: d.map(function), (2, 3, 6)),
        (lambda d, function: d.map(function).batch(3), (2, 3, 6)),
        (lambda d, function: d.shuffle(8, seed=3).batch(2).map(function).repeat(2), (2, 3, 6)),
        (lambda d, function: d.map(function).concatenate(d).batch(7), (2, 3, 6)),
        (lambda d, function: d.prefetch(2).map(function), (2, 3, 6)),
        # Read ahead on another thread: only at first is the main thread certain to be in `next`.
        (lambda d, function: d.map(function).prefetch(2), (1,)),
    ],
)
def test_local_iterator_resumes_at_its_position_after_interrupt(
    pipeline: Callable[..., Dataset], calls: tuple[int, ...]
) -> None:
    expected = values(list(pipeline(numbers(20), _InterruptingFunction())))
    iterator = iter(pipeline(numbers(20), _InterruptingFunction(*calls)))
    seen: list[pa.RecordBatch] = []
    states: list[tuple[int, dict[str, Any]]] = []
    while True:
        try:
            seen.append(next(iterator))
        except KeyboardInterrupt:
            assert "closed" not in repr(iterator)
            # Saving takes the iterator back to its position, and may be interrupted too.
            with contextlib.suppress(KeyboardInterrupt):
                states.append((len(seen), iterator.state_dict()))
        except StopIteration:
            break
    assert values(seen) == expected
    assert states
    for count, state in states:
        again = iter(pipeline(numbers(20), _InterruptingFunction()))
        again.load_state_dict(state)
        assert values([*seen[:count], *again]) == expected


def test_interrupt_during_conversion_in_next_as_loses_no_rows() -> None:
    function = _InterruptingFunction(2)
    iterator = iter(numbers(20).batch(8))
    seen = []
    while len(seen) < 3:
        with contextlib.suppress(KeyboardInterrupt):
            seen.append(iterator.next_as(lambda batch: function({"x": np.array(batch["x"])})["x"]))
    assert np.concatenate(seen).tolist() == [2 * x for x in range(20)]


def test_interrupt_before_element_is_counted_loses_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed, calls = anchor.Anchor.count_element, []

    def interrupted(self: anchor.Anchor) -> None:
        calls.append(self)
        if len(calls) in (2, 3):
            signal.raise_signal(signal.SIGINT)
        passed(self)

    monkeypatch.setattr(anchor.Anchor, "count_element", interrupted)
    iterator, seen = iter(numbers(20)), []
    while len(seen) < 5:
        with contextlib.suppress(KeyboardInterrupt):
            seen.append(next(iterator))
    expected = list(numbers(20))
    assert values([*seen, *iterator]) == values(expected)
    assert len(calls) > 2


def test_element_whose_conversion_failed_is_not_repeated_after_interrupt() -> None:
    def fail(_: object) -> None:
        raise ValueError("no form")

    iterator = iter(numbers(20).map(_InterruptingFunction(3)))
    seen = [next(iterator)]
    with pytest.raises(ValueError, match="no form"):
        iterator.next_as(fail)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert values([*seen, *iterator]) == [2 * x for x in range(20) if x != 3]


@pytest.mark.parametrize("reads_service", [False, True])
def test_failed_conversion_is_followed_by_next_element(
    reads_service: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iterator, "goes_on_after_interrupt", lambda _: reads_service)
    batches = iter(numbers(20).batch(5))
    with pytest.raises(ZeroDivisionError):
        batches.next_as(lambda _: 1 / 0)
    assert values(list(batches)) == list(range(5, 20))


@pytest.mark.parametrize("moves_every_s", [0.0, 3600.0])
def test_interrupted_iterator_resumes_exactly_however_old_its_anchor(
    moves_every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchor, "_MOVES_EVERY_S", moves_every_s)
    data = numbers(40, [5] * 8).map(_InterruptingFunction(4, 6, 7)).batch(2)
    iterator = iter(data)
    seen: list[pa.RecordBatch] = []
    while len(seen) < 20:
        with contextlib.suppress(KeyboardInterrupt):
            seen.append(next(iterator))
        if len(seen) == 13:
            iterator.load_state_dict(iterator.state_dict())
    assert values(seen) == [2 * x for x in range(40)]


def test_interrupt_closes_iterator_of_nondeterministic_dataset() -> None:
    data = numbers(20).map(_InterruptingFunction(2), deterministic=False)
    iterator = iter(data)
    next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert "closed" in repr(iterator)
    with pytest.raises(FailedPreconditionError, match=r"interrupt ended it.*make a new one"):
        next(iterator)


def test_interrupted_iterator_stays_closed_once_closed() -> None:
    iterator = iter(numbers(20).map(_InterruptingFunction(1)))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    iterator.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        next(iterator)

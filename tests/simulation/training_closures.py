"""The functions that closures of simulated training programs run.

Closures name their changes by tags; the seed determines which servers a tag concerns. Each function
takes the iterator and the parameters of its trainer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pstrain.errors import ClosureInputError, InvalidArgumentError, ServerLostError
from pstrain.trainer.staging import note
from pstrain.variables.parameters import current_staging, current_step
from pstrain.vocabulary import Fetch
from tests.simulation.fibers import running, wait
from tests.simulation.training_checker import REFUSED, Tag
from tests.simulation.training_values import COUNTER, counters
from tests.simulation.world import STAGE

_AWAY_S = 0.2
_LINGER_S = 0.02
_STEPS = 3
_NOTES_MAX_BYTES = (10, 50)

MadeUp = ArithmeticError  # the error of failing closures; nothing else here raises it
FAILURES = (MadeUp, InvalidArgumentError, ClosureInputError)


def change(*tag: Any) -> None:
    """Stages a change on the tag's servers."""
    run, checker = running_closure(), STAGE.world.checker
    run.touch([COUNTER])
    checker.changes(run.token, tag)
    for ps in checker.places(tag):
        run.add(ps, {"kind": "push", "tag": list(tag)}, None)


def read() -> None:
    """Prepares a read of what was changed, for which the changes must be committed."""
    run = running_closure()
    run.before_read([COUNTER])


def pull(parameters: Any) -> None:
    """Pulls, and checks that the closure sees its own changes and those its thread held back."""
    run, checker = running_closure(), STAGE.world.checker
    # Some closures never pull, and in rounds there is nothing to see.
    if run.token.closure % 4 == 0 or STAGE.world.breaks_orders:
        return
    held = run.held
    run.saw_held = held is not None and held.is_done
    while True:
        try:
            (counts,) = parameters.fetch([Fetch(counters(len(STAGE.world.servers)), None)])
            break
        except ServerLostError:
            # A short failure of the network is no loss of a server.
            if not all(server.alive for server in STAGE.world.servers):
                raise
            wait(_AWAY_S)
    is_seen = run.saw_held and held.result.WhichOneof("outcome") != "error_json"
    checker.sees(counts[:, 0], run.token, held.run.token if is_seen else None)


def running_closure() -> Any:
    return current_staging()


def closure_tag(part: int) -> Tag:
    run = running_closure()
    return ("closure", run.token.closure, part)


def compute() -> None:
    run = running_closure()
    STAGE.world.checker.runs(run.token.closure, running().node.name)
    wait(STAGE.world.dice.random() * STAGE.world.compute_s)


def names_its_rows(program: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function: if its changes are refused, the error names the rows it took."""

    @functools.wraps(program)
    def run(*args: Any) -> Any:
        try:
            return program(*args)
        except InvalidArgumentError as error:
            raise STAGE.world.checker.named(current_step()) from error

    return run


@names_its_rows
def count(_iterator: Any, parameters: Any) -> None:
    pull(parameters)
    compute()
    change(*closure_tag(0))


@names_its_rows
def count_twice(_iterator: Any, parameters: Any) -> None:
    change(*closure_tag(0))
    compute()
    pull(parameters)
    read()
    change(*closure_tag(1))


@names_its_rows
def train(iterator: Any, parameters: Any) -> tuple[str, list[int]] | None:
    try:
        rows = next(iterator)
    except StopIteration:
        return None
    pull(parameters)
    compute()
    change("row", *rows)
    change(*closure_tag(0))
    return "trained", rows


@names_its_rows
def train_to_the_end(iterator: Any, parameters: Any) -> tuple[str, list[int]]:
    """Trains one row, in a loop that ends with the data; raises StopIteration at their end."""
    rows = next(iterator)
    pull(parameters)
    compute()
    change("row", *rows)
    change(*closure_tag(0))
    return "trained", rows


@names_its_rows
def train_two_rows(iterator: Any, parameters: Any) -> None:
    """Trains two rows in two parts; the closure's own tag belongs to the second part."""
    for _ in range(2):
        rows = next(iterator, None)
        pull(parameters)
        compute()
        if rows is not None:
            change("row", *rows)
    change(*closure_tag(0))


@names_its_rows
def train_on_two(iterator: Any, parameters: Any) -> None:
    """Trains two rows in one part; other closures may take rows between them."""
    rows = []
    for _ in range(2):
        rows += next(iterator, [])
        compute()
    pull(parameters)
    for row in rows:
        change("row", row)
    change(*closure_tag(0))


@names_its_rows
def train_and_count(iterator: Any, parameters: Any) -> None:
    rows = next(iterator, None)
    if rows is not None:
        change("row", *rows)
    read()
    pull(parameters)
    compute()
    change(*closure_tag(0))


@names_its_rows
def fit(iterator: Any, parameters: Any) -> tuple[str, list[int]]:
    """Trains several rows, each in a part of its own, and notes each for the report.

    Every second closure has room for one note or none, so it ends early.
    """
    run, rows = running_closure(), []
    if run.token.closure % 2:
        run.notes_max_bytes = _NOTES_MAX_BYTES[run.token.closure // 2 % 2]
    while len(rows) < _STEPS and (taken := next(iterator, None)) is not None:
        pull(parameters)
        compute()
        change("row", *taken)
        change("fitted", *taken)
        rows += taken
        if not note(taken):
            break
    return "trained", rows


@names_its_rows
def evaluate(iterator: Any, parameters: Any) -> tuple[str, list[int]]:
    """Changes nothing; its row counts as used by the value that it returns."""
    rows = next(iterator, [])
    pull(parameters)
    compute()
    return "evaluated", rows


@names_its_rows
def fail(iterator: Any, parameters: Any) -> None:
    rows = next(iterator, [])
    pull(parameters)
    if rows:
        change("row", *rows)
    compute()
    raise MadeUp("rows:" + ",".join(map(str, rows)))


def fail_alone(_iterator: Any, parameters: Any) -> None:
    """Fails without taking a row, since another run could take a different one."""
    pull(parameters)
    compute()
    raise MadeUp("nothing was taken")


@names_its_rows
def linger(_iterator: Any, _parameters: Any) -> None:
    """Runs until the earlier closure that its thread holds back is committed."""
    held = running_closure().held
    while held is not None and not held.is_done:
        wait(_LINGER_S)
    change(*closure_tag(0))


@names_its_rows
def refuse(iterator: Any, parameters: Any) -> None:
    """Makes a change that servers refuse, at the end of the closure or in its middle."""
    next(iterator, [])
    pull(parameters)
    change(*closure_tag(0))
    change(REFUSED, *closure_tag(0))
    if running_closure().token.closure % 2:
        read()


PROGRAMS: dict[Callable[..., Any], int] = {
    count: 1,
    count_twice: 2,
    train: 1,
    train_two_rows: 1,
    train_on_two: 1,
    train_and_count: 1,
    evaluate: 0,
    linger: 1,
    fail: 0,
    refuse: 1,
}
"""The functions, each with the number of its own tags that a finished closure has applied."""
LOOP = (train_to_the_end, count)
"""The functions of a loop to the end of the data."""
ONE_STEP = (count, train, evaluate, fail)
"""The functions that read and take nothing after their first change, as rounds require."""
FAILING = (fail, refuse)
STEADY = (count,)
"""The functions that always change something, and take no row."""

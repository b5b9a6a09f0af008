"""Plans of windows: encoded and decoded, computed ahead, the same in every process."""

from __future__ import annotations

import base64
import json
import zlib
from unittest import mock

import pytest

from dataservice.dispatcher.invariants import check_windows
from dataservice.dispatcher.plans import (
    WindowPlan,
    plan_from_json,
    plan_to_json,
    with_division,
)
from dataservice.dispatcher.windows import WindowTable
from dataservice.ranges import Consumed, Ranges
from dataservice.sharding import Split
from dataservice.windowing import make_windows

SPLITS = tuple(
    Split(path=f"part-{number:03}.csv", size_bytes=10, version=f"v{number}") for number in range(40)
)


def plan(**fields: object) -> WindowPlan:
    return WindowPlan(**{"splits": SPLITS, "target_rows": 5, "target_bytes": 400_000, **fields})  # type: ignore[arg-type]


def test_window_plan_survives_json() -> None:
    written = json.loads(json.dumps(plan_to_json(plan(shuffle_seed=3, rounds=None, tail_rows=2))))
    assert plan_from_json(written) == plan(shuffle_seed=3, rounds=None, tail_rows=2)


@pytest.mark.parametrize("is_packed", [False, True])
def test_plan_of_older_journal_is_read(is_packed: bool) -> None:
    rows: dict[str, object] = {
        "files": [["a.csv", 7, "v"]],
        "splits": [[0, 0, [1, 2], 0, 4, 4], [1, 0, None, 3, 9, 6]],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(rows).encode())).decode()
    written = {
        **({"packed": packed} if is_packed else rows),
        "target_rows": 5,
        "rounds": 1,
        "shuffle_seed": None,
        "reshuffles": True,
        "repetition": 2,
    }
    split = Split(path="a.csv", row_groups=(1, 2), stop=4, rows=4, size_bytes=7, version="v")
    other = split._replace(segment=1, row_groups=None, start=3, stop=9, rows=6)
    assert plan_from_json(written) == WindowPlan(splits=(split, other), target_rows=5, repetition=2)


@pytest.mark.parametrize("seed", [None, 3])
def test_prepared_plan_equals_unprepared_plan(seed: int | None) -> None:
    ready = plan(shuffle_seed=seed, rounds=3).prepare(1)
    fresh = plan(shuffle_seed=seed, rounds=3)
    assert ready == fresh
    assert [ready.windows_of(r) for r in (1, 0, 2)] == [
        plan(shuffle_seed=seed, rounds=3).windows_of(r) for r in (1, 0, 2)
    ]
    assert plan_to_json(ready) == plan_to_json(fresh)


def test_prepared_or_decoded_plan_does_no_long_work_again() -> None:
    ready = plan(shuffle_seed=3, rounds=3).prepare(1)
    plans = "dataservice.dispatcher.plans."
    with (
        mock.patch(plans + "make_windows", wraps=make_windows) as made,
        mock.patch(plans + "zlib.compress", wraps=zlib.compress) as compressed,
    ):
        ready.windows_of(1)
        plan_to_json(plan_from_json(plan_to_json(ready)))
    assert not made.called
    assert not compressed.called


@pytest.mark.parametrize(("reshuffles", "epoch"), [(True, 11), (False, 0)])
def test_windows_are_cut_by_all_sizes_of_plan_and_by_epoch(reshuffles: bool, epoch: int) -> None:
    ranges = (Split(start=10 * i, stop=10 * i + 10, rows=10) for i in range(20))
    sizes = {"shuffle_seed": 3, "target_rows": 5, "tail_rows": 2, "target_bytes": 400_000}
    made = plan(splits=(*SPLITS, *ranges), rounds=2, repetition=5, reshuffles=reshuffles, **sizes)
    assert made.windows_of(1) == make_windows(made.splits, epoch=epoch, **sizes)


def test_unshuffled_rounds_share_their_windows() -> None:
    still = plan(rounds=3)
    assert still.windows_of(0) is still.windows_of(2)


@pytest.mark.parametrize(
    "changed",
    [
        {"splits": (*SPLITS[:-1], Split(path="x.csv", size_bytes=10))},
        {"splits": (*SPLITS[:-1], Split(path="part-039.csv", size_bytes=11))},
        {"splits": SPLITS[:-1]},
        {"rounds": 2},
    ],
    ids=["path", "size", "windows", "rounds"],
)
def test_division_ignores_only_file_versions(changed: dict[str, object]) -> None:
    touched = tuple(Split(path=s.path, size_bytes=10, version="new") for s in SPLITS)
    known = with_division(plan()).division
    assert with_division(plan(splits=touched)).division == known
    assert with_division(plan(**changed)).division != known


def test_division_is_fixed_for_ever() -> None:
    assert with_division(plan(shuffle_seed=3)).division == "5998fd8efdd4350d"


@pytest.mark.parametrize("fields", [{"shuffle_seed": 3}, {"shuffle_seed": 3, "rounds": 40}, {}])
def test_resume_skips_consumed_rounds_without_making_their_windows(
    fields: dict[str, object],
) -> None:
    fields = {"rounds": None, **fields}
    consumed = Consumed(Ranges([(0, 300), (302, 303)]), {301: 2})
    prepared = plan(**fields)
    prepared.prepare_resume(consumed.end())
    table, whole = WindowTable(prepared), WindowTable(plan(**fields))
    with mock.patch("dataservice.dispatcher.plans.make_windows", wraps=make_windows) as made:
        table.resume(consumed)
    assert made.call_count <= 2
    check_windows(table)
    assert sorted(table.records) == [300, 301]
    while whole.planned < consumed.end():
        whole.open_round()
    assert (table.planned, table.rounds_opened) == (whole.planned, whole.rounds_opened)
    assert table.rounds_opened > 5
    assert table.locate(300) == whole.locate(300)


def test_position_beyond_the_last_round_counts_no_further_rounds() -> None:
    with mock.patch("dataservice.dispatcher.plans.make_windows", wraps=make_windows) as made:
        plan(shuffle_seed=3, rounds=2).prepare_resume(1_000)
    assert made.call_count == 2


def test_resume_after_all_rounds_is_finished() -> None:
    twice = plan(shuffle_seed=3, rounds=2)
    table = WindowTable(twice)
    table.resume(Consumed(Ranges([(0, twice.count_of(0) + twice.count_of(1))])))
    assert table.is_finished()
    check_windows(table)

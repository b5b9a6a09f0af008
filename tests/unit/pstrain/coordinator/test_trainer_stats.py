"""Rates and times of trainers, and which trainers are stragglers by them."""

from __future__ import annotations

from statistics import median

from pstrain.coordinator.trainer_stats import (
    RUNS_REMEMBERED,
    SLOW_TIMES,
    Load,
    Record,
    TrainerTable,
    table,
)

NOW_S = 100.0


def record(*seconds: float, since_s: float = 90.0) -> Record:
    """Returns a record with one report a second, each of one run."""
    made = Record()
    made.begin_work(since_s)
    for number, each in enumerate(seconds):
        made.add_report(since_s + number, [each])
    return made


def stats(records: dict[int, Record], running: int = 1, now_s: float = NOW_S) -> TrainerTable:
    return table(records, {trainer: Load(running, trainer) for trainer in records}, now_s)


def test_times_and_rates_cover_latest_runs() -> None:
    (row,) = stats({3: record(*[0.1] * 9, 1.1)}, now_s=99.0)
    assert (row.trainer, row.finished, row.running, row.is_live) == (3, 10, 1, True)
    assert (row.median_s, row.p90_s) == (0.1, 1.1)
    assert abs(row.mean_s - 0.2) < 1e-9
    assert row.per_second == 1.0
    (row,) = stats({3: record(*[0.1] * 9, 1.1)}, now_s=108.0)
    assert row.per_second == 0.5, "it slows down while nothing is told"


def test_remembered_runs_and_reports_are_bounded() -> None:
    made = record(*[0.1] * 10_000)
    assert len(made.seconds) == RUNS_REMEMBERED
    assert len(made._reports) < 100
    assert made.finished == 10_000


def test_trainer_with_longer_runs_is_straggler() -> None:
    made = stats({0: record(*[0.1] * 10), 1: record(*[0.12] * 10), 2: record(*[0.3] * 10)})
    assert [each.trainer for each in made.stragglers] == [2]
    assert made[2].verdict == "slow: its runs take 2.7 times as long as the others'"


def test_straggler_is_slow_against_the_median_of_the_others() -> None:
    durations_s = [0.1, 0.1, 0.2, 0.31, 0.4, 0.5]
    made = stats({trainer: record(*[s] * 10) for trainer, s in enumerate(durations_s)})
    for row in made:
        others_s = median(each.median_s for each in made if each is not row)
        assert row.is_straggler == (row.median_s > SLOW_TIMES * others_s), row


def test_copy_of_a_record_does_not_follow_it() -> None:
    made = record(0.1, 0.3)
    copied = made.copy()
    assert stats({0: copied}) == stats({0: made})
    made.add_report(99.0, [0.5])
    assert stats({0: copied}) != stats({0: made})
    assert copied.finished == len(copied.seconds) == len(copied._reports) == 2


def test_few_runs_or_single_trainer_give_no_straggler() -> None:
    assert not stats({0: record(*[0.1] * 10), 1: record(*[0.9] * 7)}, running=0).stragglers
    assert not stats({0: record(*[9.0] * 20)}, now_s=110.0).stragglers
    assert not stats({0: Record(), 1: Record()}, now_s=0.0).stragglers


def test_trainer_silent_while_it_has_work_is_straggler() -> None:
    records = {0: record(*[0.1] * 10), 1: record(*[0.1] * 10)}
    records[0].add_report(119.5, [0.1])
    made = stats(records, running=2, now_s=120.0)
    assert [each.trainer for each in made.stragglers] == [1]
    assert made[1].verdict.startswith(
        "silent for 21.0 s while it runs 2; nine of ten runs take 100"
    )
    assert (made[0].silent_s, made[1].silent_s) == (0.5, 21.0)
    records[1].begin_work(119.9)
    assert not stats(records, now_s=120.0).stragglers, "it had nothing to do until now"
    assert not stats(records, running=0, now_s=300.0).stragglers


def test_lost_trainer_is_listed_as_not_live_and_no_straggler() -> None:
    made = table({0: record(*[0.1] * 10)}, {1: Load(0, 2)}, 500.0)
    assert [(each.trainer, each.is_live, each.staleness) for each in made] == [
        (0, False, 0),
        (1, True, 2),
    ]
    assert not made.stragglers


def test_table_repr_aligns_columns_and_shows_verdict() -> None:
    made = stats({0: record(*[0.0015] * 10), 1: record(*[2.5] * 10)}, running=2)
    assert repr(made).splitlines() == [
        "   trainer  finished     per s   running    median      mean       p90     ahead  verdict",
        "         0        10       0.9         2    1.5 ms    1.5 ms    1.5 ms         0",
        "         1        10       0.9         2     2.5 s     2.5 s     2.5 s         1"
        "  slow: its runs take 1666.7 times as long as the others'",
    ]

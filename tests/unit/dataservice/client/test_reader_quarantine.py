"""Windows in quarantine at the reader: an error, when it comes, or rows that count as left out."""

from __future__ import annotations

import logging

import pytest

from dataservice.client.quarantine import check_quarantined, failure
from dataservice.dataset.omission_log import OmissionLog
from dataservice.errors import DataLossError
from dataservice.job_options import JobOptions
from dataservice.wire import dispatcher_pb2 as pb

ENTRIES = [
    pb.Quarantined(window=3, what="'a.parquet' rows 0..9", path="a.parquet", rows=10),
    pb.Quarantined(window=4, what="element 7"),
]


def test_error_names_the_first_windows_counts_the_others_and_tells_what_to_do() -> None:
    error = failure(ENTRIES)
    assert isinstance(error, DataLossError)
    assert "2 windows" in str(error)
    assert "'a.parquet' rows 0..9; element 7. Look" in str(error)
    assert "on_error='skip'" in str(error)
    many = [pb.Quarantined(window=number, what=f"element {number}") for number in range(12)]
    assert "element 9; and 2 more. Look" in str(failure(many))


@pytest.mark.parametrize(
    ("options", "fails"),
    [
        (JobOptions(), ["at the end"]),
        (JobOptions(on_error="skip"), []),
        (JobOptions(ordered=True), ["before", "at the end"]),
        (JobOptions(ordered=True, on_error="skip"), ["before", "at the end"]),
    ],
)
def test_reader_fails_at_the_end_or_at_once_if_ordered_unless_windows_may_be_left_out(
    options: JobOptions, fails: list[str]
) -> None:
    log = OmissionLog()
    for when, has_ended in (("before", False), ("at the end", True)):
        assert check_quarantined([], options, log, has_ended=has_ended) is None
        error = check_quarantined(ENTRIES, options, log, has_ended=has_ended)
        assert (error is not None) == (when in fails)
    assert log.total().splits == (0 if fails else len(ENTRIES))


def test_windows_left_out_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = OmissionLog()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # each reply of the dispatcher has them all
            check_quarantined(ENTRIES, JobOptions(on_error="skip"), log, has_ended=False)
    total = log.total()
    assert (total.splits, total.source_rows, total.files) == (2, 10, ("a.parquet",))
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2
    assert logged[0].endswith("it killed its workers: 'a.parquet' rows 0..9")

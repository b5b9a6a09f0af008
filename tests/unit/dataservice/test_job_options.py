"""A job's options: always valid, unchanged by a journal, and compared by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher import events as ev
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.errors import InvalidArgumentError
from dataservice.job_options import ON_ERROR, TARGETS, JobOptions
from dataservice.vocabulary import DatasetId, JobId, ShardingPolicy

OPTIONS = st.builds(
    JobOptions,
    ordered=st.booleans(),
    num_consumers=st.integers(0, 9),
    target_workers=st.sampled_from(TARGETS),
    cross_trainer_cache=st.booleans(),
    on_error=st.sampled_from(ON_ERROR),
)


@given(OPTIONS)
def test_job_options_survive_journal(options: JobOptions) -> None:
    created = ev.JobCreated(
        job_id=JobId("j"),
        name="n",
        dataset_id=DatasetId("1000"),
        policy=ShardingPolicy.OFF,
        delivery="exactly_once",
        options=options,
    )
    assert decode_frame(encode_frame([created])) == (created,)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_consumers": -1}, "num_consumers must be positive"),
        ({"target_workers": "NEAR"}, "'NEAR'"),
        ({"on_error": "ignore"}, "'ignore'"),
    ],
)
def test_invalid_job_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        JobOptions(**values)


def test_unknown_job_option_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="malformed"):
        JobOptions.from_json({"colour": "red"})


def test_job_option_differences_name_option_and_both_values() -> None:
    differences = JobOptions(ordered=True).differences(JobOptions(num_consumers=2))
    assert differences == [
        "ordered (existing True, got False)",
        "num_consumers (existing 0, got 2)",
    ]
    assert not JobOptions().differences(JobOptions())

"""The number of a plan's elements before any file is looked at."""

from __future__ import annotations

import pytest

from dataservice import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Dataset
from dataservice.dataset.uncounted import uncounted_cardinality

NO_FILE = "there-is-no-such-file"
FILES = [
    Dataset.from_parquet(NO_FILE),
    Dataset.from_ipc(NO_FILE),
    Dataset.from_csv(NO_FILE),
    Dataset.list_files(NO_FILE),
]


@pytest.mark.parametrize("files", FILES, ids=lambda files: files.node.kind)
def test_no_file_is_looked_at(files: Dataset) -> None:
    rows = Dataset.range(10).rename({"id": "number"})
    for finite in (files, files.shuffle(5).batch(2).unbatch(), files.take(3), files.repeat(2)):
        assert uncounted_cardinality(finite.node) == UNKNOWN_CARDINALITY
    for endless in (files.repeat(), files.repeat().batch(4), rows.repeat().concatenate(files)):
        assert uncounted_cardinality(endless.node) == INFINITE_CARDINALITY
    assert uncounted_cardinality(files.repeat(0).node) == 0
    assert uncounted_cardinality(files.repeat().take(3).node) == 3


def test_rows_in_memory_are_counted() -> None:
    assert uncounted_cardinality(Dataset.range(10).batch(4).node) == 3
    assert uncounted_cardinality(Dataset.range(0).repeat().node) == 0

"""Options of file systems: which may be sent, and that no message or repr shows their values."""

from __future__ import annotations

import pathlib

import fsspec
import pytest

import dataservice as ds
from dataservice.dataset.sources.files import find_files
from dataservice.dataset.sources.paths import check_storage_options
from dataservice.dispatcher.snapshot_requests import StartSnapshot
from dataservice.errors import InvalidTypeError, SourceError
from dataservice.vocabulary import DatasetId, SnapshotId

SECRET = "nobody-may-see-this"


def test_json_storage_options_are_accepted() -> None:
    check_storage_options(None)
    check_storage_options({"key": "k", "anon": False, "client_kwargs": {"timeout": 3, "ca": None}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([SECRET], "a dict by name, got list"),
        ({SECRET.encode(): 1}, "must be text, got a bytes"),
        ({"secret": SECRET.encode()}, r"storage_options\['secret'\] must be .*got bytes"),
        ({"client_kwargs": {"token": (SECRET,)}}, r"storage_options\['token'\]"),
    ],
)
def test_unencodable_storage_option_is_refused_without_its_value(
    options: object, message: str
) -> None:
    with pytest.raises(InvalidTypeError, match=message) as caught:
        check_storage_options(options)
    assert SECRET not in str(caught.value)


def test_storage_option_values_appear_in_no_repr(tmp_path: pathlib.Path) -> None:
    options = {"secret": SECRET}
    sources = [
        make("s3://bucket/x", storage_options=options)
        for make in (
            ds.Dataset.from_parquet,
            ds.Dataset.from_csv,
            ds.Dataset.from_json,
            ds.Dataset.from_ipc,
            ds.Dataset.list_files,
        )
    ]
    sources.append(
        ds.Dataset.from_tfrecord("s3://b/x", features={"x": "int64"}, storage_options=options)
    )
    request = StartSnapshot(
        snapshot_id=SnapshotId("s"),
        dataset_id=DatasetId("d"),
        path=str(tmp_path),
        compression="NONE",
        storage_options=f'{{"secret":"{SECRET}"}}',
    )
    assert SECRET not in "".join(repr(source._node) for source in sources) + repr(request)


def test_hidden_files_of_remote_folder_are_ignored() -> None:
    store = fsspec.filesystem("memory")
    for name in ("a.csv", "b.csv", "_b.csv", ".c.csv", "notes.txt"):
        store.pipe_file(f"/storage-options/{name}", b"x")
    try:
        found = [f.path for f in find_files(("memory://storage-options",), (".csv",), None)]
        assert [path.rpartition("/")[2] for path in found] == ["a.csv", "b.csv"]
    finally:
        store.rm("/storage-options", recursive=True)


@pytest.mark.parametrize("path", ["*.csv", "", "a.csv"])
def test_remote_csv_files_found_by_listing_are_read(path: str) -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/storage-listing/a.csv", b"x\n1\n")
    try:
        found = ds.Dataset.from_csv(f"memory://storage-listing/{path}")
        assert found.to_table().to_pydict() == {"x": [1]}
    finally:
        store.rm("/storage-listing", recursive=True)


def test_protocol_without_its_package_is_source_error() -> None:
    with pytest.raises(SourceError, match=r"'nosuch://x/y'.*"):
        list(find_files(("nosuch://x/y",), (".csv",), {"secret": SECRET}))

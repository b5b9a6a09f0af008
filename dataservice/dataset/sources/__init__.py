"""The sources of rows, one module each. Importing this package registers every source."""

from dataservice.dataset.sources.base import Source
from dataservice.dataset.sources.csv import CsvSource
from dataservice.dataset.sources.file_list import FileListSource
from dataservice.dataset.sources.generator import GeneratorSource
from dataservice.dataset.sources.ipc import IpcSource
from dataservice.dataset.sources.json import JsonSource
from dataservice.dataset.sources.parquet import ParquetSource
from dataservice.dataset.sources.range import RangeSource
from dataservice.dataset.sources.snapshot import SnapshotSource
from dataservice.dataset.sources.table import TableSource
from dataservice.dataset.sources.tfrecord import TFRecordSource

__all__ = [
    "CsvSource",
    "FileListSource",
    "GeneratorSource",
    "IpcSource",
    "JsonSource",
    "ParquetSource",
    "RangeSource",
    "SnapshotSource",
    "Source",
    "TFRecordSource",
    "TableSource",
]

"""The operators of plans, one module each. Importing this package registers every operator."""

from dataservice.dataset.operators.base import Operator, RowOperator
from dataservice.dataset.operators.batch import Batch
from dataservice.dataset.operators.bucket import BucketBySequenceLength
from dataservice.dataset.operators.cache import Cache
from dataservice.dataset.operators.concatenate import Concatenate, Conform
from dataservice.dataset.operators.enumerate import Enumerate
from dataservice.dataset.operators.filter import Filter
from dataservice.dataset.operators.group_by_window import GroupByWindow
from dataservice.dataset.operators.interleave import Interleave
from dataservice.dataset.operators.map import FlatMap, Map
from dataservice.dataset.operators.mix import ChooseFromDatasets, SampleFromDatasets
from dataservice.dataset.operators.pad import Pad
from dataservice.dataset.operators.prefetch import Prefetch
from dataservice.dataset.operators.project import Project
from dataservice.dataset.operators.repeat import Repeat
from dataservice.dataset.operators.select import Rename, Select
from dataservice.dataset.operators.shard import Shard
from dataservice.dataset.operators.shuffle import Shuffle
from dataservice.dataset.operators.take import Skip, Take
from dataservice.dataset.operators.unbatch import Unbatch
from dataservice.dataset.operators.with_column import WithColumn
from dataservice.dataset.operators.zip import Zip

__all__ = [
    "Batch",
    "BucketBySequenceLength",
    "Cache",
    "ChooseFromDatasets",
    "Concatenate",
    "Conform",
    "Enumerate",
    "Filter",
    "FlatMap",
    "GroupByWindow",
    "Interleave",
    "Map",
    "Operator",
    "Pad",
    "Prefetch",
    "Project",
    "Rename",
    "Repeat",
    "RowOperator",
    "SampleFromDatasets",
    "Select",
    "Shard",
    "Shuffle",
    "Skip",
    "Take",
    "Unbatch",
    "WithColumn",
    "Zip",
]

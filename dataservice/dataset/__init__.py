"""Datasets: lazy plans of rows, how they run, and how they are divided.

Importing the package registers every source and every operator, so that any plan can be decoded.
"""

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import Expression, col, lit
from dataservice.dataset.iterator import DatasetIterator
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.dataset.statistics import DatasetStats

__all__ = [
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "Dataset",
    "DatasetIterator",
    "DatasetStats",
    "Expression",
    "col",
    "lit",
]

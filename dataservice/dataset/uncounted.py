"""What is known of the number of a plan's elements before any file is looked at.

Responsible for the question whether a plan is endless, which every process that reads a job asks:
if each of them opened all files to count their rows, starting would take the longer the more files
and processes there are. Invariant: opens, lists and stats no file.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pyarrow as pa

from dataservice.dataset.node import UNKNOWN_CARDINALITY, Node, rewrite
from dataservice.dataset.sources.base import FileSource
from dataservice.dataset.sources.file_list import FileListSource
from dataservice.dataset.stream import BatchStream, RunContext


def uncounted_cardinality(root: Node) -> int:
    """Returns a plan's cardinality, UNKNOWN_CARDINALITY where it depends on what files hold.

    A plan that repeats files without end is taken for endless, even if they turn out to be empty.
    """
    return rewrite(root, _uncounted).cardinality()


def _uncounted(node: Node) -> Node:
    return _Uncounted(node) if isinstance(node, FileSource | FileListSource) else node


@dataclasses.dataclass(frozen=True, eq=False)
class _Uncounted(Node):
    """Stands for a source of files whose rows nobody has counted."""

    kind: ClassVar[str] = "uncounted"
    source: Node

    @property
    def batched(self) -> bool:
        return self.source.batched

    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    def open(self, context: RunContext) -> BatchStream:
        return self.source.open(context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return self.source.sample(context)

"""Rewrites a plan so that it reads less and yields the same.

A select directly above Parquet or Arrow IPC files chooses the columns to read; a filter expression
above Parquet files skips row groups by their statistics. Invariant: the rewritten plan yields the
same rows in the same order. Positions of the original and the rewritten plan are not
interchangeable, so a plan is always run rewritten.
"""

from __future__ import annotations

from dataservice.dataset.node import Node, rewrite
from dataservice.dataset.operators.filter import Filter
from dataservice.dataset.operators.select import Select
from dataservice.dataset.sources.ipc import IpcSource
from dataservice.dataset.sources.parquet import ParquetSource


def optimise(root: Node) -> Node:
    """Returns the plan to run in place of `root`."""
    return rewrite(root, _push_down)


def _push_down(node: Node) -> Node:
    if isinstance(node, Select) and isinstance(node.input, ParquetSource | IpcSource):
        source = node.input
        readable = source.columns is None or set(node.columns) <= set(source.columns)
        return source.narrowed(columns=node.columns) if readable else node
    if isinstance(node, Filter) and isinstance(node.input, ParquetSource):
        return _filtered(node, node.input)
    return node


def _filtered(node: Filter, source: ParquetSource) -> Node:
    condition = node.function.expression
    if condition is None:
        return node
    if source.columns is not None and not condition.columns() <= set(source.columns):
        return node
    both = condition if source.filter is None else source.filter & condition
    return source.narrowed(filter=both)

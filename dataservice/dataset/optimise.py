"""Rewrites a plan so that it reads less and yields the same.

A select, or a map with expressions, directly above Parquet or Arrow IPC files chooses the columns
to read; a filter expression above Parquet files, or renames of their columns, skips row groups by
their statistics. Invariant: the rewritten plan yields the same rows in the same order. Positions of
the original and the rewritten plan are not interchangeable, so a plan is always run rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping

from dataservice.dataset.expressions import Expression
from dataservice.dataset.node import Node, rewrite
from dataservice.dataset.operators.filter import Filter
from dataservice.dataset.operators.project import Project
from dataservice.dataset.operators.select import Rename, Select
from dataservice.dataset.sources.ipc import IpcSource
from dataservice.dataset.sources.parquet import ParquetSource


def optimise(root: Node) -> Node:
    """Returns the plan to run in place of `root`."""
    return rewrite(root, _push_down)


def _push_down(node: Node) -> Node:
    if isinstance(node, Select) and isinstance(node.input, ParquetSource | IpcSource):
        return _reading(node.input, node.columns) or node
    if isinstance(node, Project) and isinstance(node.input, ParquetSource | IpcSource):
        source = _reading(node.input, tuple(sorted(node.reads))) if node.reads else None
        return node if source is None else node.with_inputs(source)
    return _filtered(node) if isinstance(node, Filter) else node


def _reading(source: ParquetSource | IpcSource, columns: tuple[str, ...]) -> Node | None:
    """Returns the source with only these columns; None if it does not read them all."""
    readable = source.columns is None or set(columns) <= set(source.columns)
    return source.narrowed(columns=columns) if readable else None


def _filtered(node: Filter) -> Node:
    """Returns the plan that yields what a filter does, with its condition in the source."""
    condition, below = node.function.expression, node.input
    renames: list[Rename] = []
    while condition is not None and isinstance(below, Rename):
        renames.append(below)
        condition, below = _before(below.names, condition), below.input
    if condition is None or not isinstance(below, ParquetSource):
        return node
    if below.columns is not None and not condition.columns() <= set(below.columns):
        return node
    both = condition if below.filter is None else below.filter & condition
    plan: Node = below.narrowed(filter=both)
    for rename in reversed(renames):
        plan = rename.with_inputs(plan)
    return plan


def _before(names: Mapping[str, str], condition: Expression) -> Expression | None:
    """Returns the condition over the columns before a rename; None if it, or that, is an error."""
    before = {new: old for old, new in names.items()}
    is_ambiguous = len(before) < len(names)
    # A column of such a name is there before the rename, but not after it.
    gone = names.keys() - before.keys()
    return None if is_ambiguous or condition.columns() & gone else condition.over(before)

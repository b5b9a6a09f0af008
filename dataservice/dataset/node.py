"""The nodes that plans consist of, their registry, and traversals of plans.

A node is a frozen dataclass that holds its inputs and its parameters. Nodes are lazy: making a node
reads nothing. Knows nothing of the encoding of plans (`plan`). Invariant: a plan is a graph without
cycles, and a node never changes.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa

from dataservice import vocabulary
from dataservice.dataset.columns import no_rows
from dataservice.dataset.stream import SAMPLE_ROWS, BatchStream, RunContext
from dataservice.dataset.timed_stream import timed
from dataservice.dataset.timing import OperatorTimes
from dataservice.errors import (
    InvalidArgumentError,
    SourceError,
    UserFunctionError,
)

INFINITE_CARDINALITY: Final = vocabulary.INFINITE_CARDINALITY
UNKNOWN_CARDINALITY: Final = vocabulary.UNKNOWN_CARDINALITY
# Python allows 1,000 nested calls; the rest are left to the program that reads.
_MAX_CALLS: Final = 850

logger = logging.getLogger(__name__)

NodeClass = TypeVar("NodeClass", bound="type[Node]")


@dataclasses.dataclass(frozen=True, eq=False)
class Node(ABC):
    """A source or an operator. Fields that are nodes are its inputs, all others its parameters.

    The field named by `variadic` is a tuple of nodes, which are inputs too. A parameter is None, a
    boolean, a number, a string, a Function, an Expression, an Arrow schema or table, or a tuple or
    string-keyed mapping of these. `__post_init__` checks the parameters, both when a user makes the
    node and when a plan is decoded.
    """

    kind: ClassVar[str]
    # Parameters that may change without making saved positions invalid.
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset()
    variadic: ClassVar[str | None] = None
    # True if a first input of the same kind runs as a part of this node, so that a chain of such
    # nodes adds no depth.
    absorbs_first: ClassVar[bool] = False
    # The most Python calls that nest in this node when it asks an input for a batch.
    nested_calls: ClassVar[int] = 6

    @functools.cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this node reads."""
        single = tuple(value for _, value in node_fields(self) if isinstance(value, Node))
        return single if self.variadic is None else (*single, *getattr(self, self.variadic))

    @functools.cached_property
    def depth_calls(self) -> int:
        """The most Python calls that nest while the plan up to this node is read."""
        for child in self.inputs:
            if "depth_calls" not in child.__dict__:
                # Bottom up: each depth is found from cached ones, without recursion.
                for node in walk(child):
                    _ = node.depth_calls
        depths = [child.depth_calls + self.nested_calls for child in self.inputs]
        if self.absorbs_first and self.inputs[0].kind == self.kind:
            depths[0] -= self.nested_calls
        return max(depths, default=self.nested_calls)

    @property
    def batched(self) -> bool:
        """True if an element is a record batch rather than a row."""
        node = self
        # A loop, not recursion: chains of operators may be longer than Python's stack is deep.
        while len(node.inputs) == 1 and type(node).batched is Node.batched:
            node = node.inputs[0]
        if type(node).batched is not Node.batched:
            return node.batched
        return any(child.batched for child in node.inputs)

    @property
    def has_fixed_order(self) -> bool:
        """True if it yields its rows in the same order each time, given that its inputs do."""
        return True

    @property
    def is_shared(self) -> bool:
        """True if other readers may have taken all rows of a pass; later passes may have rows."""
        return False

    @property
    def lacks_schema(self) -> bool:
        """True if the types of the columns are to be inferred from the first rows made."""
        return getattr(self, "schema", ()) is None

    @property
    def unrepeatable(self) -> str:
        """Names the function declared not to yield the same when it runs again; "" if none is."""
        return ""

    @abstractmethod
    def open(self, context: RunContext) -> BatchStream:
        """Opens a stream of the node's record batches, at the beginning."""

    def run(self, context: RunContext) -> BatchStream:
        """Opens the stream for an operator that reads it, timed if the run gathers times."""
        return timed(self.open(context), context.times, id(self))

    @abstractmethod
    def sample(self, context: RunContext) -> pa.RecordBatch:
        """Returns a few rows, with exactly the schema of the stream.

        Returns no rows if the schema is known without them and the context asks for none.
        """

    def cardinality(self) -> int:
        """Returns the number of elements, INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return UNKNOWN_CARDINALITY

    def with_inputs(self, *inputs: Node) -> Node:
        """Returns the same node over other inputs."""
        given = {name for name, _ in parameters(self)}
        names = [name for name, _ in node_fields(self) if name not in given]
        return dataclasses.replace(self, **input_fields(type(self), inputs, names))


_kinds: dict[str, type[Node]] = {}


def node_class(kind: object) -> type[Node]:
    """Returns the node class registered for `kind`; InvalidArgumentError if there is none."""
    cls = _kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidArgumentError(
            f"unknown operator {kind!r} in a plan; "
            "run the same version of dataservice on both sides"
        )
    return cls


def register_node(cls: NodeClass) -> NodeClass:
    """Registers a node class (as its decorator), so that plans with `cls.kind` can be decoded.

    Raises InvalidArgumentError if the kind is taken by another class.
    """
    holder = _kinds.setdefault(cls.kind, cls)
    if holder is not cls:
        raise InvalidArgumentError(f"node kind {cls.kind!r} is taken by {holder.__name__}")
    return cls


def node_fields(node: Node) -> Iterator[tuple[str, Any]]:
    """Yields names and values of a node's fields, in order: inputs and parameters."""
    for field in dataclasses.fields(node):
        yield field.name, getattr(node, field.name)


def input_fields(cls: type[Node], inputs: Sequence[Node], names: Sequence[str]) -> dict[str, Any]:
    """Assigns `inputs` to the input fields `names`; raises ValueError if the numbers differ."""
    single = [name for name in names if name != cls.variadic]
    if len(inputs) < len(single) or (len(inputs) > len(single) and cls.variadic is None):
        raise ValueError(f"{cls.kind} takes {len(single)} inputs, got {len(inputs)}")
    fields: dict[str, Any] = dict(zip(single, inputs, strict=False))
    if cls.variadic is not None:
        fields[cls.variadic] = tuple(inputs[len(single) :])
    return fields


def parameters(node: Node) -> Iterator[tuple[str, Any]]:
    """Yields names and values of the fields that are not inputs, in order."""
    for name, value in node_fields(node):
        if not isinstance(value, Node) and name != node.variadic:
            yield name, value


def walk(root: Node) -> list[Node]:
    """Returns every node of the plan once, inputs before the nodes that read them."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))
    return order


def check_depth(root: Node) -> None:
    """Raises InvalidArgumentError for a plan whose nested calls would overflow Python's stack."""
    if root.depth_calls > _MAX_CALLS:
        raise InvalidArgumentError(
            f"too many operators follow each other: of the {len(walk(root)):,} of this dataset, "
            f"the last are {root.depth_calls} calls away from the first, and Python allows about "
            f"{_MAX_CALLS}; make one map() of several, one condition of several filters, or save() "
            "what is in between"
        )


def times_of(nodes: Sequence[Node]) -> OperatorTimes:
    """Returns empty times for a run of these nodes, such as a segment's source and operators."""
    return OperatorTimes([node.kind for node in nodes], [id(node) for node in nodes])


def sum_of_cardinalities(parts: Sequence[int]) -> int:
    """Returns how many elements several datasets have together."""
    for special in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY):
        if special in parts:
            return special
    return sum(parts)


def none_or_endless(elements: int) -> int:
    """Returns the cardinality of a plan of which is only known that it preserves 0 and infinity."""
    return elements if elements in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY


def unrepeatable(root: Node) -> str:
    """Names the functions because of which a plan cannot be replayed; "" if it can be."""
    return ", ".join(node.unrepeatable for node in walk(root) if node.unrepeatable)


def rewrite(root: Node, change: Callable[[Node], Node]) -> Node:
    """Returns the plan with `change(node)` in place of every node, from the inputs up."""
    changed: dict[int, Node] = {}
    for node in walk(root):
        changed[id(node)] = change(_over(node, changed))
    return changed[id(root)]


def _over(node: Node, changed: Mapping[int, Node]) -> Node:
    """Returns the node over the changed versions of its inputs."""
    inputs = tuple(changed[id(child)] for child in node.inputs)
    same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
    return node if same else node.with_inputs(*inputs)


def freeze_schemas(root: Node) -> Node:
    """Returns the plan with every schema filled in that its nodes would infer.

    Otherwise each process that runs a part of the plan would infer schemas from the rows that it
    sees. Reads the beginning of the sources and runs functions on a few rows.
    """
    context = RunContext()
    tried: dict[int, Node] = {}
    frozen: dict[int, Node] = {}
    for node in walk(root):
        changed = _over(node, frozen)
        tried[id(node)] = over_samples = _over(node, tried)
        if node.lacks_schema:
            # Sampled over `tried`, whose samples have rows: a frozen node may give no rows, on
            # which a function may fail or return other types.
            sample = over_samples.sample(context)
            tried[id(node)] = _Sampled(over_samples, sample)
            changed = dataclasses.replace(changed, schema=sample.schema)  # type: ignore[call-arg]
        frozen[id(node)] = changed
    return frozen[id(root)]


def rows_of_known(
    schema: pa.Schema,
    sample: Callable[[RunContext], pa.RecordBatch],
    context: RunContext,
    kind: str,
) -> pa.RecordBatch:
    """Returns the sample of a node of that kind, whose schema is known without one.

    Its rows are needed only to try the functions above the node. If this process cannot make them,
    because it lacks the files or what a function needs, those functions are tried on no rows.
    """
    known = no_rows(schema)
    if not context.sample_rows:
        return known
    try:
        return sample(context)
    except (SourceError, UserFunctionError) as error:
        logger.info(
            "functions after %s are not tried on a sample, since it has no rows here: %s",
            kind,
            error,
        )
        return known


@dataclasses.dataclass(frozen=True, eq=False)
class _Sampled(Node):
    """A node with its sample, so that sampling the nodes above does not run its function again."""

    kind: ClassVar[str] = "sampled"
    node: Node
    rows: pa.RecordBatch

    @functools.cached_property
    def batched(self) -> bool:  # type: ignore[override]
        return self.node.batched

    def open(self, context: RunContext) -> BatchStream:
        return self.node.open(context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        enough = context.sample_rows <= SAMPLE_ROWS and self.rows.num_rows
        return self.rows if enough or not context.sample_rows else self.node.sample(context)

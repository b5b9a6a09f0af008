"""Plans on the wire and in saved positions: encoding, decoding, fingerprints.

An encoded plan is a magic number with a version, a JSON list of nodes (inputs before the nodes that
read them) and binary blobs: pickled functions, embedded tables, schemas. Importing the package
`dataservice.dataset` registers every kind of node that may occur. Invariant: decoding validates
everything and runs nothing; functions stay bytes until a stream is opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.expressions import Expression
from dataservice.dataset.function import Function
from dataservice.dataset.node import (
    Node,
    check_depth,
    input_fields,
    node_class,
    parameters,
    walk,
)
from dataservice.errors import InvalidArgumentError

_MAGIC: Final = b"DSPLAN01"
_LENGTHS: Final = struct.Struct("<II")  # bytes of JSON, number of blobs
_BLOB_LENGTH: Final = struct.Struct("<Q")
# A plan has to fit into one control message.
_MAX_PLAN_BYTES: Final = 60 << 20
_MAX_NODES: Final = 10_000


def encode_plan(root: Node) -> bytes:
    """Encodes a plan; raises InvalidArgumentError for a function or table that cannot be sent."""
    blobs: list[bytes] = []
    listed, _ = _encode_nodes(root, blobs)
    tree = json.dumps(listed, separators=(",", ":")).encode()
    size = len(tree) + sum(len(blob) for blob in blobs)
    if size > _MAX_PLAN_BYTES:
        raise InvalidArgumentError(
            f"the plan takes {size:,} bytes, more than the {_MAX_PLAN_BYTES:,} that may be sent; "
            "write tables to Parquet files and read these with from_parquet, and have functions "
            "load large arrays from files"
        )
    head = _MAGIC + _LENGTHS.pack(len(tree), len(blobs))
    lengths = b"".join(_BLOB_LENGTH.pack(len(blob)) for blob in blobs)
    return b"".join((head, lengths, tree, *blobs))


def _encode_nodes(root: Node, blobs: list[bytes]) -> tuple[list[Any], dict[int, int]]:
    indices: dict[int, int] = {}
    listed: list[Any] = []
    for node in walk(root):
        encoded = {name: _encode_value(value, blobs) for name, value in parameters(node)}
        inputs = [indices[id(child)] for child in node.inputs]
        indices[id(node)] = len(listed)
        listed.append({"kind": node.kind, "inputs": inputs, "with": encoded})
    return listed, indices


def _encode_value(value: Any, blobs: list[bytes]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [_encode_value(item, blobs) for item in value]}
    if isinstance(value, Mapping):
        return {"mapping": {str(key): _encode_value(item, blobs) for key, item in value.items()}}
    if isinstance(value, Expression):
        return {"expression": value.to_json()}
    if isinstance(value, Function):
        return {"function": _encode_function(value, blobs)}
    if isinstance(value, pa.Schema):
        blobs.append(value.serialize().to_pybytes())
        return {"schema": len(blobs) - 1}
    if isinstance(value, pa.Table):
        blobs.append(_table_bytes(value))
        return {"table": len(blobs) - 1}
    raise InvalidArgumentError(f"a plan cannot hold {value!r:.200}")


def _encode_function(function: Function, blobs: list[bytes]) -> dict[str, Any]:
    if function.expression is not None:
        return {"expression": function.expression.to_json()}
    if function.reference is not None:
        return {"reference": function.reference}
    blob, python = function.pickled()
    blobs.append(blob)
    return {"blob": len(blobs) - 1, "python": python, "name": function.name}


def _table_bytes(table: pa.Table) -> bytes:
    if table.nbytes > _MAX_PLAN_BYTES:
        raise InvalidArgumentError(
            f"a table of {table.nbytes:,} bytes is too large to be sent with the plan; "
            "write it to Parquet files and read these with from_parquet"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode_plan(encoded: bytes) -> Node:
    """Decodes the result of `encode_plan`; raises InvalidArgumentError for other bytes.

    Runs no function and reads no file.
    """
    try:
        tree, blobs = _unpack(encoded)
        return _decode_nodes(tree, blobs)
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error) as error:
        raise InvalidArgumentError(f"malformed plan: {type(error).__name__}: {error}") from error
    except (RecursionError, OSError, pa.ArrowException) as error:
        raise InvalidArgumentError(f"malformed plan: {error}") from error


def _unpack(encoded: bytes) -> tuple[Any, list[bytes]]:
    if len(encoded) > _MAX_PLAN_BYTES + (1 << 20):
        raise InvalidArgumentError(f"malformed plan: {len(encoded):,} bytes are too many")
    if encoded[: len(_MAGIC)] != _MAGIC:
        raise InvalidArgumentError(
            "malformed plan: it does not begin as one of this version; "
            "run the same version of dataservice on both sides"
        )
    tree_bytes, blob_count = _LENGTHS.unpack_from(encoded, len(_MAGIC))
    position = len(_MAGIC) + _LENGTHS.size
    lengths = [
        _BLOB_LENGTH.unpack_from(encoded, position + index * _BLOB_LENGTH.size)[0]
        for index in range(blob_count)
    ]
    position += blob_count * _BLOB_LENGTH.size
    if position + tree_bytes + sum(lengths) != len(encoded):
        raise ValueError(f"{len(encoded)} bytes are not the number that the head announces")
    tree = json.loads(encoded[position : position + tree_bytes])
    position += tree_bytes
    blobs = []
    for length in lengths:
        blobs.append(encoded[position : position + length])
        position += length
    return tree, blobs


def _decode_nodes(tree: Any, blobs: list[bytes]) -> Node:
    if not isinstance(tree, list) or not 0 < len(tree) <= _MAX_NODES:
        raise ValueError(f"a plan has between 1 and {_MAX_NODES} nodes")
    nodes: list[Node] = []
    for item in tree:
        indices = item["inputs"]
        if not all(isinstance(i, int) and 0 <= i < len(nodes) for i in indices):
            raise ValueError(f"inputs {indices!r} of node {len(nodes)} do not come before it")
        inputs = [nodes[index] for index in indices]
        node = _decode_node(item, inputs, blobs)
        check_depth(node)
        nodes.append(node)
    return nodes[-1]


def _decode_node(item: Any, inputs: list[Node], blobs: list[bytes]) -> Node:
    cls = node_class(item["kind"])
    decoded = {name: _decode_value(value, blobs) for name, value in item["with"].items()}
    # Parameters with a default may be missing, as in plans of an earlier version.
    inputs_of = [
        field.name
        for field in dataclasses.fields(cls)
        if str(field.type).startswith("Node") or field.name == cls.variadic
    ]
    if any(decoded.get(name) is not None for name in inputs_of):
        raise ValueError(f"{cls.kind} has parameters in place of its inputs")
    names = [name for name in inputs_of if name not in decoded]
    node = cls(**input_fields(cls, inputs, names), **decoded)
    if node.inputs != tuple(inputs):
        raise ValueError(f"{cls.kind} has parameters in place of its inputs")
    return node


def _decode_value(encoded: Any, blobs: list[bytes]) -> Any:
    if not isinstance(encoded, dict):
        if isinstance(encoded, list):
            raise ValueError("a bare list is not a parameter")
        return encoded
    ((tag, content),) = encoded.items()
    if tag == "tuple":
        return tuple(_decode_value(item, blobs) for item in content)
    if tag == "mapping":
        return {key: _decode_value(item, blobs) for key, item in content.items()}
    if tag == "expression":
        return Expression.from_json(content)
    if tag == "function":
        return _decode_function(content, blobs)
    if tag == "schema":
        return pa.ipc.read_schema(pa.py_buffer(_blob(blobs, content)))
    if tag == "table":
        table = pa.ipc.open_stream(_blob(blobs, content)).read_all()
        table.validate(full=True)
        return table
    raise ValueError(f"unknown parameter tag {tag!r}")


def _blob(blobs: list[bytes], index: Any) -> bytes:
    if not isinstance(index, int) or not 0 <= index < len(blobs):
        raise ValueError(f"there is no blob {index!r}")
    return blobs[index]


def _decode_function(content: Any, blobs: list[bytes]) -> Function:
    if "expression" in content:
        return Function.of(Expression.from_json(content["expression"]))
    if "reference" in content:
        return Function.of(str(content["reference"]))
    blob = _blob(blobs, content["blob"])
    return Function(blob=blob, python=str(content["python"]), name=str(content["name"]))


def fingerprint(root: Node) -> str:
    """Returns a digest that identifies a plan in saved positions: equal if a program runs again.

    Of functions only the names count, of tables only the schema and the number of rows; parameters
    that a node lists in `outside_fingerprint` do not count.
    """
    listed = []
    nodes = walk(root)
    indices = {id(node): index for index, node in enumerate(nodes)}
    for node in nodes:
        outlined = {
            name: _outline(value)
            for name, value in parameters(node)
            if name not in node.outside_fingerprint
        }
        listed.append([node.kind, [indices[id(child)] for child in node.inputs], outlined])
    digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _outline(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_outline(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _outline(item) for key, item in value.items()}
    if isinstance(value, Expression):
        return value.to_json()
    if isinstance(value, Function):
        return value.name
    if isinstance(value, pa.Schema):
        return str(value)
    if isinstance(value, pa.Table):
        return [str(value.schema), value.num_rows]
    return value

"""The source of TFRecord files: tf.train.Example as columns, or the records themselves.

Reads the files without TensorFlow. One split per file, since the format has no index. Invariant:
both checksums of every record are checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import no_rows, require_distinct
from dataservice.dataset.node import register_node, rows_of_known
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources.opening import decompressed, opened
from dataservice.dataset.sources.whole_files import WholeFilesSource, with_compressions
from dataservice.dataset.stream import CHUNK_ROWS, RunContext
from dataservice.errors import InvalidArgumentError, SourceError
from dataservice.runtime.arguments import check_choice
from dataservice.sharding import Split

_BLOCK_BYTES: Final = 8 << 20
_MAX_RECORD_BYTES: Final = 1 << 30
_RECORDS: Final = pa.schema([("record", pa.binary())])
_COMPRESSIONS: Final = ("AUTO", "GZIP", "ZLIB", None)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class TFRecordSource(WholeFilesSource):
    """The rows of TFRecord files; without `features`, the records in a binary column `record`."""

    kind: ClassVar[str] = "tfrecord"
    suffixes: ClassVar[tuple[str, ...]] = with_compressions(".tfrecord", ".tfrecords", ".tfrec")
    paths: tuple[str, ...]
    features: pa.Schema | None = None
    compression: str | None = "AUTO"
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("compression", self.compression, list(_COMPRESSIONS))
        if self.features is not None:
            object.__setattr__(self, "features", _checked_features(self.features))

    def batches(
        self,
        split: Split,
        context: RunContext,  # noqa: ARG002
    ) -> Generator[pa.RecordBatch, None, None]:
        assert split.path is not None
        path = split.path
        # Numba is imported where records are read, not where a plan is built.
        parser = importlib.import_module("dataservice.dataset.sources.tfrecord_parser")
        starts, ends = np.empty(CHUNK_ROWS, np.int64), np.empty(CHUNK_ROWS, np.int64)
        held, offset, row = b"", 0, 0
        with self._handle(path) as handle:
            ended, wanted = False, _BLOCK_BYTES
            while not ended or held:
                if not ended and len(held) < wanted:
                    more = _read(handle, wanted - len(held), path, row)
                    ended = not more
                    held += more
                data = np.frombuffer(held, np.uint8)
                count, used, problem, needed = parser.frame(data, starts, ends)
                if count:
                    where = f"{path!r} records {row}..{row + count - 1}"
                    yield parser.parse(data, starts[:count], ends[:count], self.features, where)
                _check(path, problem, row + count, offset + used)
                if ended and held and not count:
                    raise SourceError(
                        f"{path!r} is cut short: record {row} at byte {offset} has {len(held):,} "
                        f"of its bytes; write or copy the file again"
                    )
                if needed > _MAX_RECORD_BYTES:
                    raise SourceError(
                        f"{path!r}, record {row + count}: it has {needed:,} bytes, more than the "
                        f"{_MAX_RECORD_BYTES:,} that can be read"
                    )
                wanted = max(_BLOCK_BYTES, needed)
                held, offset, row = held[used:], offset + used, row + count

    @contextlib.contextmanager
    def _handle(self, path: str) -> Iterator[Any]:
        with opened(path, self.storage_options) as handle:
            if self.compression in ("GZIP", "ZLIB"):
                # Arrow's "gzip" reads both formats; it tells them apart by their first bytes.
                yield pa.CompressedInputStream(handle, "gzip")
            else:
                yield handle if self.compression is None else decompressed(handle, path)

    def empty(self) -> pa.RecordBatch:
        schema = _RECORDS if self.features is None else self.features
        return no_rows(schema)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        if self.features is None:
            return super().sample(context)
        return rows_of_known(self.empty().schema, super().sample, context, self.kind)


def _read(handle: Any, wanted: int, path: str, row: int) -> bytes:
    """Reads up to `wanted` bytes; fewer only at the end of the file."""
    parts: list[bytes] = []
    while wanted > 0:
        try:
            part = handle.read(wanted)
        except SourceError:
            raise
        except (pa.ArrowException, OSError, EOFError) as error:
            raise SourceError(
                f"{path!r} cannot be read after record {row}: {error}; it is damaged, cut short or "
                "compressed otherwise: write or copy it again, or state compression="
            ) from error
        if not part:
            break
        parts.append(part)
        wanted -= len(part)
    return b"".join(parts)


def _check(path: str, problem: str, record: int, offset: int) -> None:
    if problem:
        raise SourceError(
            f"{path!r}, record {record} at byte {offset}: the checksum of its {problem} does not "
            "match; the file is damaged, compressed, or no TFRecord file: write or copy it again, "
            "or state compression="
        )


def _checked_features(features: Any) -> pa.Schema:
    """Returns the features as a schema; InvalidArgumentError for a type no Example can hold."""
    if isinstance(features, Mapping):
        try:
            features = pa.schema(list(features.items()))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"features must map names to Arrow types, got {features!r:.200}: {error}"
            ) from error
    if not isinstance(features, pa.Schema) or not len(features):
        raise InvalidArgumentError(
            "features must be a dict of Arrow types, such as {'label': pa.float32(), 'ids': "
            f"pa.list_(pa.int64())}}, or a pyarrow.Schema, got {features!r:.200}"
        )
    require_distinct(features.names, what="the schema given as features")
    for field in plain_schema(features):
        kind = field.type
        if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        floats = pa.types.is_float32(kind) or pa.types.is_float64(kind)
        text = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if not (floats or text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            raise InvalidArgumentError(
                f"features[{field.name!r}] is {field.type}; an Example holds int64, float and "
                "bytes: use an integer, float, string or binary type, or a list of one"
            )
    return plain_schema(features)

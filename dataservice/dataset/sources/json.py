"""The source of JSON lines: one object per line, plain or compressed, read as a stream.

Without a schema, types are inferred from the first block of the first file, and every later line of
every file must have them. A field that a line lacks is null. Large files that are not compressed
are read in parts. Invariant: all rows of all files have one schema.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa
import pyarrow.json as pajson

from dataservice.dataset.node import register_node
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources import json_lines
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.json_lines import (
    ObjectLinesFile,
    Refused,
    TooLongError,
    agreeing_lines,
    blocks_of_lines,
    first_lines,
    read_blocks,
)
from dataservice.dataset.sources.opening import decompressed, opened
from dataservice.dataset.sources.read_ahead import ReadAheadBatches
from dataservice.dataset.sources.reference import Reference
from dataservice.dataset.sources.text_files import TextFilesSource
from dataservice.dataset.sources.text_parts import TextPart, part_of
from dataservice.dataset.sources.unsigned import with_unsigned
from dataservice.dataset.sources.whole_files import stated_schema, with_compressions
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    DataServiceError,
    InvalidArgumentError,
    SchemaError,
    SourceError,
)
from dataservice.job_options import ON_ERROR
from dataservice.runtime.arguments import check_choice
from dataservice.sharding import Split

_Batches: TypeAlias = Generator[pa.RecordBatch, None, None]

_BLOCK_BYTES: Final = 4 << 20
_MAX_BLOCK_BYTES: Final = 1 << 30
_EMPTY: Final = "Empty JSON stream"
_NO_TEXT: Final = "Invalid UTF8"
_SKIPPED: Final = "; from_json(..., on_error='skip') leaves out such lines"
_ARRAY: Final = "Column() changed from object to array"
_OTHER_SCHEMA: Final = (
    "changed from",
    "unexpected field",
    "Failed to convert JSON",
)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class JsonSource(TextFilesSource):
    """The rows of JSON lines; with `schema`, exactly its columns with its types.

    A line must fit into a block of `block_size_bytes`. By default, fields that are not in the
    schema are ignored if the user stated the schema, and are an error if it was inferred, also
    where the inferred schema was filled in afterwards. With `on_error` "skip", a line that cannot
    be read, or does not have the schema, is left out by itself.
    """

    kind: ClassVar[str] = "json"
    suffixes: ClassVar[tuple[str, ...]] = with_compressions(".jsonl", ".ndjson", ".json")
    paths: tuple[str, ...]
    schema: pa.Schema | None = None
    block_size_bytes: int = _BLOCK_BYTES
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    unexpected_fields: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema is not None:
            object.__setattr__(self, "schema", stated_schema(self.schema, "from_json"))
        if self.unexpected_fields is None:
            unexpected = "error" if self.schema is None else "ignore"
            object.__setattr__(self, "unexpected_fields", unexpected)
        else:
            check_choice("unexpected_fields", self.unexpected_fields, ("error", "ignore"))
        check_choice("on_error", self.on_error, ON_ERROR)
        size = self.block_size_bytes
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _MAX_BLOCK_BYTES:
            raise InvalidArgumentError(
                f"block_size_bytes must be an integer from 1 to {_MAX_BLOCK_BYTES:,}, got {size!r}"
            )

    @property
    def has_cuts(self) -> bool:
        return True

    def batches(self, split: Split, context: RunContext) -> Generator[pa.RecordBatch, None, None]:
        schema, part = self.row_schema, part_of(split)
        rows_read = 0
        read = self._lines_that_fit if self.on_error == "skip" else self._all_lines
        with (
            self._named_errors(part, lambda: rows_read),
            contextlib.closing(read(part, schema, context)) as batches,
        ):
            for batch in batches:
                rows_read += batch.num_rows
                if batch.num_rows:
                    yield batch.select(schema.names)

    def _all_lines(self, part: TextPart, schema: pa.Schema, context: RunContext) -> _Batches:
        with self._reader(part, schema, context) as reader:
            for batch in reader or ():
                # Arrow's parser does not check the bytes of strings.
                batch.validate(full=True)
                yield batch

    def _lines_that_fit(self, part: TextPart, schema: pa.Schema, context: RunContext) -> _Batches:
        def refuse(line: Refused) -> None:
            if context.omitted is not None:
                told = f"{part.path!r}: {line.message}: {line.text!r}"
                context.omitted.source_rows(part.path, 1, told)

        options = self._parse_options(schema)
        with opened(part.path, self.storage_options, part.ahead_bytes) as handle:
            lines = part.lines(decompressed(handle, part.path))
            blocks = blocks_of_lines(lines, self.block_size_bytes)
            yield from read_blocks(blocks, options, refuse, use_threads=context.threads > 1)

    def infer(self, file: InputFile) -> Reference:
        whole = TextPart(file.path)
        with (
            self._named_errors(whole, lambda: 0),
            self._reader(whole, None, RunContext()) as reader,
        ):
            if reader is None:
                return Reference(file.path, pa.schema([]))
            fits = functools.partial(self._fits, whole)
            return Reference(file.path, plain_schema(with_unsigned(reader.schema, reader, fits)))

    def _fits(self, whole: TextPart, column: pa.Field) -> bool:
        """True if that field of the first block can be read with the type of `column`."""
        alone = dataclasses.replace(self, unexpected_fields="ignore")
        try:
            with alone._reader(whole, pa.schema([column]), RunContext()):
                return True
        except pa.ArrowInvalid:
            return False

    def require_convertible(self, schema: pa.Schema) -> None:
        json_lines.require_convertible(schema)

    @contextlib.contextmanager
    def _reader(
        self, part: TextPart, schema: pa.Schema | None, context: RunContext
    ) -> Iterator[ReadAheadBatches | None]:
        """Opens a reader of the file; None for a file without lines.

        With `on_error` "skip", only types are read with it: of the first block's lines that agree.
        """
        read = pajson.ReadOptions(use_threads=context.threads > 1, block_size=self.block_size_bytes)
        parse = self._parse_options(schema)
        with opened(part.path, self.storage_options, part.ahead_bytes) as handle:
            lines = part.lines(decompressed(handle, part.path))
            if self.on_error == "skip":
                lines = io.BytesIO(agreeing_lines(first_lines(lines, self.block_size_bytes)))
            faults: list[pa.ArrowInvalid] = []
            try:
                batches = ReadAheadBatches(
                    ObjectLinesFile(lines, faults), lambda file: pajson.open_json(file, read, parse)
                )
            except pa.ArrowInvalid as error:
                if faults:
                    raise faults[0] from None
                if _EMPTY not in str(error):
                    raise
                yield None
                return
            with contextlib.closing(batches):
                yield batches
            if faults:
                raise faults[0]

    def _parse_options(self, schema: pa.Schema | None) -> pajson.ParseOptions:
        return pajson.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else self.unexpected_fields,
        )

    @contextlib.contextmanager
    def _named_errors(self, part: TextPart, rows_read: Callable[[], int]) -> Iterator[None]:
        try:
            yield
        except DataServiceError:
            raise
        except (pa.ArrowException, UnicodeDecodeError, OSError, EOFError) as error:
            raise self._explained(part, rows_read(), error) from error

    def _explained(self, part: TextPart, rows_read: int, error: BaseException) -> DataServiceError:
        message = f"{error!s:.500}"
        row = f"after row {rows_read}{part.suffix}"
        where = f"{part.path!r} {row}"
        skipped = "" if self.on_error == "skip" else _SKIPPED
        if isinstance(error, UnicodeDecodeError) or _NO_TEXT in message:
            return SourceError(
                f"{where}: a text is not UTF-8 ({message}); save the file as UTF-8, as "
                "`iconv -f LATIN1 -t UTF-8` does for one that is Latin-1"
            )
        if _ARRAY in message:
            return SchemaError(
                f"{where}: a line is an array, where each must be one object ({message}); write "
                "the objects of an array a line each, as `jq -c '.[]'` does"
            )
        if any(mark in message for mark in _OTHER_SCHEMA):
            return SchemaError(
                f"{where}: the lines do not have one schema ({message}); "
                f"correct the file, or state columns and types with schema={skipped}"
            )
        if isinstance(error, TooLongError) or "block" in message:
            return SourceError(
                f"{where}: a line is longer than a block of {self.block_size_bytes:,} bytes "
                f"({message}); read it with a larger block_size_bytes="
            )
        return SourceError(
            f"{part.path!r} cannot be read as JSON lines {row}: {message}; every line "
            f"must be one object: the file is damaged, cut short or of another format{skipped}"
        )

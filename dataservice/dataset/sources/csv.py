"""The source of CSV files, plain or compressed, read as a stream.

Without a schema, types are inferred from the first block of the first file, and every later row of
every file must have them. Large files that are not compressed are read in parts if the user says
that no value has the end of a line. Invariant: all rows of all files have one schema.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

import pyarrow as pa
import pyarrow.csv as pacsv

from dataservice.dataset.columns import require_distinct
from dataservice.dataset.node import register_node
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.sources import csv_rows
from dataservice.dataset.sources.csv_errors import (
    explained,
    lacks_row,
    require_text,
    row_of,
    says_empty,
    typed,
)
from dataservice.dataset.sources.csv_rows import (
    BAD_VALUE,
    Unfit,
    as_bytes,
    bad_column,
    fitting_rows,
    has_lines,
)
from dataservice.dataset.sources.csv_text import BLOCK_BYTES, CsvText, Quotes, line_of_open_quote
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.malformed_rows import MalformedRows
from dataservice.dataset.sources.opening import (
    UTF_8,
    check_encoding,
    decompressed,
    in_utf_8,
    is_utf_8,
    opened,
)
from dataservice.dataset.sources.read_ahead import ReadAheadBatches
from dataservice.dataset.sources.reference import Reference
from dataservice.dataset.sources.text_files import TextFilesSource
from dataservice.dataset.sources.text_parts import TextPart, first_line, part_of
from dataservice.dataset.sources.unsigned import with_unsigned
from dataservice.dataset.sources.whole_files import stated_schema, with_compressions
from dataservice.dataset.stream import RunContext
from dataservice.errors import (
    DataServiceError,
    InvalidArgumentError,
    InvalidTypeError,
    SchemaError,
    SourceError,
)
from dataservice.job_options import ON_ERROR
from dataservice.runtime.arguments import check_choice, check_true_or_false
from dataservice.sharding import Split

_Batches: TypeAlias = Generator[pa.RecordBatch, None, None]

_NO_DELIMITERS: Final = '"\r\n\0'


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class CsvSource(TextFilesSource):
    """The rows of CSV files; with `schema`, exactly its columns with its types.

    By default, columns that are not in the schema are ignored if the user stated the schema, and
    are an error if it was inferred, also where the inferred schema was filled in afterwards. With
    `on_error` "skip", a row with another number of values, or with a value of another type, is left
    out by itself.
    """

    kind: ClassVar[str] = "csv"
    suffixes: ClassVar[tuple[str, ...]] = with_compressions(".csv")
    paths: tuple[str, ...]
    schema: pa.Schema | None = None
    delimiter: str = ","
    header: bool = True
    null_values: tuple[str, ...] | None = None
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    unexpected_columns: str | None = None
    encoding: str = UTF_8
    newlines_in_values: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schema is not None:
            object.__setattr__(self, "schema", stated_schema(self.schema, "from_csv"))
        if self.unexpected_columns is None:
            unexpected = "error" if self.schema is None else "ignore"
            object.__setattr__(self, "unexpected_columns", unexpected)
        else:
            check_choice("unexpected_columns", self.unexpected_columns, ("error", "ignore"))
        _check_delimiter(self.delimiter)
        check_encoding(self.encoding)
        check_true_or_false(header=self.header, newlines_in_values=self.newlines_in_values)
        check_choice("on_error", self.on_error, ON_ERROR)
        if self.null_values is not None:
            object.__setattr__(self, "null_values", _checked_nulls(self.null_values))

    @property
    def has_cuts(self) -> bool:
        return not self.newlines_in_values and is_utf_8(self.encoding)

    def batches(self, split: Split, context: RunContext) -> _Batches:
        part, rows_read = part_of(split), 0
        with self._named_errors(part, self.row_schema, lambda: rows_read):
            malformed = MalformedRows(part, header=self.header)
            try:
                for batch in self._typed_rows(part, context, malformed):
                    rows_read += batch.num_rows
                    yield batch
                return
            except pa.ArrowInvalid as error:
                if self.on_error != "skip" or not BAD_VALUE.search(str(error)):
                    raise
            for batch in self._fitting_rows(part, context, rows_read, malformed.counted):
                rows_read += batch.num_rows
                yield batch

    def _typed_rows(
        self, part: TextPart, context: RunContext, malformed: MalformedRows
    ) -> _Batches:
        schema, quotes = self.row_schema, Quotes()
        with self._reader(part, schema, context, malformed, quotes) as reader:
            if reader is not None:
                self._check_names(part.path, reader.schema.names)
            last = None
            for batch in reader or ():
                malformed.record(context.omitted)
                last = batch.slice(batch.num_rows - 1) if batch.num_rows else last
                yield batch.select(schema.names)
            malformed.record(context.omitted)
        if quotes.number and (
            quotes.may_be_open
            or malformed.some_have_lines
            or (last is not None and has_lines(last))
        ):
            self._require_closed_quotes(part)

    def _require_closed_quotes(self, part: TextPart) -> None:
        with opened(part.path, self.storage_options, part.ahead_bytes) as handle:
            # Without the header of other parts, so that lines count from the first of this one.
            text = self._text(handle, part, b"")
            blocks = iter(lambda: bytes(text.read(BLOCK_BYTES)), b"")
            line = line_of_open_quote(blocks, self.delimiter)
        if line is None:
            return
        if part.stop:
            raise SourceError(
                f"{part.path!r}: line {line}{part.suffix} opens a quote that no line closes before "
                f"byte {part.stop:,}: newlines_in_values=False is for files without line ends in "
                "values, leave it out"
            )
        raise SourceError(
            f"{part.path!r} ends within quotes, which open in line {line}, so that all behind it "
            "is one value; close the quote, or write the file again if it is cut short"
        )

    def _fitting_rows(
        self, part: TextPart, context: RunContext, first: int, counted: int
    ) -> _Batches:
        """Yields the rows from `first` on, without those that have a value of another type.

        `counted` malformed rows are counted already.
        """
        schema, done = self.row_schema, first
        options = self._convert_options(schema, None)
        malformed = MalformedRows(part, header=self.header, counted=counted)

        def refuse(row: Unfit) -> None:
            if context.omitted is not None:
                told = f"{part.path!r}: column {typed(row.column)} has a value of another type"
                context.omitted.source_rows(part.path, 1, f"{told} ({row.message}): {row.text}")

        # Nulls are told from texts when the values are converted.
        raw = dataclasses.replace(self, schema=as_bytes(schema), null_values=None)
        for batch in raw._typed_rows(part, context, malformed):
            new = batch.slice(first)
            first -= batch.num_rows - new.num_rows
            try:
                for rows in fitting_rows(new, schema, options, refuse):
                    done += rows.num_rows
                    yield rows
            except pa.ArrowInvalid as error:
                column = typed(bad_column(error, schema))
                where = f"after row {done}{part.suffix}"
                raise explained(part.path, where, column, error, skips=True) from error

    def infer(self, file: InputFile) -> Reference:
        whole = TextPart(file.path)
        with (
            self._named_errors(whole, None, lambda: 0),
            self._reader(whole, None, RunContext()) as reader,
        ):
            if reader is None:
                return Reference(file.path, pa.schema([]))
            require_distinct(reader.schema.names, what=f"{file.path!r}")
            require_text(file.path, reader.schema)
            fits = functools.partial(self._fits, whole)
            return Reference(file.path, plain_schema(with_unsigned(reader.schema, reader, fits)))

    def _fits(self, whole: TextPart, column: pa.Field) -> bool:
        """True if that column of the first block can be read with the type of `column`."""
        try:
            with self._reader(whole, pa.schema([column]), RunContext()):
                return True
        except pa.ArrowInvalid:
            return False

    def has_types(self, inferred: Reference) -> bool:
        return not all(pa.types.is_null(kind) for kind in inferred.schema.types)

    def require_convertible(self, schema: pa.Schema) -> None:
        csv_rows.require_convertible(schema)

    @contextlib.contextmanager
    def _reader(
        self,
        part: TextPart,
        schema: pa.Schema | None,
        context: RunContext,
        malformed: MalformedRows | None = None,
        quotes: Quotes | None = None,
    ) -> Iterator[ReadAheadBatches | None]:
        """Opens a reader of the file; None for a file without lines if no header is expected.

        SourceError for a file without lines that should have a header.
        """
        malformed = malformed or MalformedRows(part, header=self.header)
        options = self._options(part, schema, context, malformed)
        with opened(part.path, self.storage_options, part.ahead_bytes) as handle:
            header = first_line(handle, BLOCK_BYTES) if part.start and self.header else b""
            # Not named here: closing waits until nothing refers to the text any more.
            batches = self._batches(
                CsvText(self._text(handle, part, header), quotes or Quotes()), options
            )
            if batches is None:
                if self.header:
                    raise SourceError(f"{part.path!r} is empty: it has not even a header line")
                yield None
                return
            with contextlib.closing(batches):
                yield batches

    def _opened(self, text: CsvText, options: tuple[Any, Any, Any]) -> pacsv.CSVStreamingReader:
        # A handler of invalid rows is Python code, so closing has to wait for all calls of it.
        whole = None if self.on_error == "skip" else text.in_memory()
        return pacsv.open_csv(text if whole is None else whole, *options)

    def _batches(self, text: CsvText, options: tuple[Any, Any, Any]) -> ReadAheadBatches | None:
        try:
            return ReadAheadBatches(text, lambda _: self._opened(text, options))
        except pa.ArrowInvalid as error:
            if not says_empty(error) or text.has_lines:
                raise
            return None

    def _text(self, handle: Any, part: TextPart, header: bytes) -> Any:
        text = part.lines(decompressed(handle, part.path), header)
        return in_utf_8(text, self.encoding)

    def _options(
        self,
        part: TextPart,
        schema: pa.Schema | None,
        context: RunContext,
        malformed: MalformedRows,
    ) -> tuple[Any, Any, Any]:
        # Otherwise the names in the file are read, so that a file with other names is an error.
        stated = self.schema if self.unexpected_columns == "ignore" else None
        names = None if self.header or stated is None else stated.names
        if part.start and not self.header and names is None:
            # The first row of a file tells how many there are, not that of a part.
            names = [f"f{index}" for index in range(len(self.row_schema))]
        read = pacsv.ReadOptions(
            block_size=BLOCK_BYTES,
            use_threads=context.threads > 1,
            column_names=names,
            autogenerate_column_names=not self.header and names is None,
        )
        convert = self._convert_options(schema, None if stated is None else stated.names)
        # Otherwise a block might end inside quotes, and the rest of a value be taken for rows.
        parse = pacsv.ParseOptions(
            delimiter=self.delimiter,
            newlines_in_values=self.newlines_in_values,
            invalid_row_handler=malformed if self.on_error == "skip" else None,
        )
        return read, parse, convert

    def _convert_options(
        self, types: pa.Schema | None, columns: list[str] | None
    ) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            column_types=types,
            include_columns=columns,
            null_values=None if self.null_values is None else list(self.null_values),
            strings_can_be_null=self.null_values is not None,
        )

    def _check_names(self, path: str, names: list[str]) -> None:
        expected = self.row_schema.names
        known = set(expected)
        require_distinct([name for name in names if name in known], what=f"{path!r}")
        if sorted(names) != sorted(expected):
            first = "the schema" if self.schema is not None else repr(self.reference.path)
            more = [name for name in names if name not in expected]
            less = [name for name in expected if name not in names]
            raise SchemaError(
                f"the files differ: {first} has the columns {expected}, {path!r} has {names} "
                f"(more: {more}, missing: {less}); rewrite that file, read such files apart and "
                "concatenate them, or state the columns to read with schema="
            )

    @contextlib.contextmanager
    def _named_errors(
        self, part: TextPart, schema: pa.Schema | None, rows_read: Any
    ) -> Iterator[None]:
        try:
            yield
        except DataServiceError:
            raise
        except KeyError as error:
            raise SchemaError(
                f"{part.path!r} lacks a column of the schema: {error.args[0]}"
            ) from error
        except UnicodeError as error:
            raise SourceError(
                f"{part.path!r} cannot be read as CSV: it is not {self.encoding.upper()} "
                f"({error}); state its encoding, as in from_csv(..., encoding='latin-1'), save it "
                "as UTF-8, or give it the suffix of its compression"
            ) from error
        except (pa.ArrowException, OSError, EOFError) as error:
            told = self._with_row(part, schema, error)
            row = row_of(told)
            where = f"after row {rows_read()}" if row is None else f"row {row - self.header}"
            where += part.suffix
            column, skips = self._column(part, schema, told), self.on_error == "skip"
            cut = not self.newlines_in_values
            raise explained(part.path, where, column, told, skips=skips, cut=cut) from error

    def _with_row(
        self, part: TextPart, schema: pa.Schema | None, error: BaseException
    ) -> BaseException:
        """Returns the error with the row's number, which Arrow gives when it reads on one thread.

        Reads the file again for it.
        """
        if not lacks_row(error):
            return error
        try:
            with self._reader(part, schema, RunContext()) as reader:
                for _ in reader or ():
                    pass
        except (pa.ArrowException, OSError, EOFError) as told:
            return told
        return error

    def _column(self, part: TextPart, schema: pa.Schema | None, error: BaseException) -> str:
        """Names the column of a value that has another type; "" for any other error."""
        found = BAD_VALUE.search(str(error))
        if found is None:
            return ""
        every = dataclasses.replace(self, schema=None) if self.header else self
        with every._reader(part, None, RunContext()) as reader:
            names = [] if reader is None else reader.schema.names
        name = names[int(found[1])]
        return repr(name) if schema is None else typed(schema.field(name))


def _checked_nulls(texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidTypeError(f"null_values must be a list of strings, got {texts!r}")
    return tuple(texts)


def _check_delimiter(delimiter: Any) -> None:
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise InvalidArgumentError(f"delimiter must be one character, got {delimiter!r}")
    if not delimiter.isascii() or delimiter in _NO_DELIMITERS:
        raise InvalidArgumentError(
            f"delimiter must be an ASCII character other than a quote or the end of a line, got "
            f"{delimiter!r}; write the file with another one, such as a comma or a tab"
        )

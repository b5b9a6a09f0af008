"""``pstrain predict``: rows of files with their predictions beside them, as Parquet or CSV."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstrain.commands.options import TYPES_REMEDY, add_data, add_types, local_path

if TYPE_CHECKING:
    import pyarrow as pa


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "predict",
        help="predict the rows of files with a trained model",
        description=__doc__,
        epilog="example: pstrain predict model --data 'new/*.parquet' --output predictions.csv",
    )
    parser.add_argument(
        "folder", type=local_path, metavar="DIR", help="folder that pstrain train --out wrote"
    )
    add_data(parser, "files to predict")
    parser.add_argument(
        "--output",
        type=local_path,
        required=True,
        metavar="FILE",
        help="file to write, whose name ends in .parquet or .csv",
    )
    add_types(parser)
    parser.add_argument(
        "--column",
        default="prediction",
        metavar="NAME",
        help="name of the column of predictions (default: prediction)",
    )
    parser.add_argument(
        "--only", action="store_true", help="write the predictions without the other columns"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pstrain.errors import InvalidArgumentError
    from pstrain.output.console import Console
    from pstrain.tabular.files import check_output, replacing_remedy
    from pstrain.tabular.scoring import predictions

    console = Console()
    if args.output.suffix not in (".parquet", ".csv"):
        raise InvalidArgumentError(f"--output must end in .parquet or .csv, got {args.output}")
    check_output(args.output, args.data)
    batches = predictions(args.folder, args.data, args.column, args.types, args.delimiter)
    if args.only:
        batches = (batch.select([args.column]) for batch in batches)
    with replacing_remedy(TYPES_REMEDY):
        rows = _write(batches, args.output)
    console.log(f"wrote {rows:,} rows to {args.output}")
    return 0


def _write(batches: Iterator[pa.RecordBatch], path: Path) -> int:
    """Writes the file, whole or not at all; returns its number of rows."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    writer: Any = None
    rows = 0
    try:
        for batch in batches:
            with _named(path):
                if writer is None:
                    writer = _writer(partial, path.suffix, batch.schema)
                writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            with _named(path):
                writer.close()
                os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return rows


@contextlib.contextmanager
def _named(output: Path) -> Iterator[None]:
    """Raises errors of writing as ones that name ``output``, which is left as it was before."""
    import pyarrow as pa

    from pstrain.errors import InvalidArgumentError, ResourceExhaustedError

    try:
        yield
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"--output {output} cannot hold the other columns ({error}): write --output "
            "FILE.parquet, or --only the predictions"
        ) from error
    except OSError as error:
        raise ResourceExhaustedError(
            f"--output {output} cannot be written: {error}; make room, or name a file on another "
            "disk"
        ) from error


def _writer(path: Path, ending: str, schema: pa.Schema) -> Any:
    import pyarrow as pa

    if ending == ".csv":
        import pyarrow.csv

        from pstrain.errors import InvalidArgumentError

        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        if nested:
            raise InvalidArgumentError(
                f"columns {', '.join(nested)} hold lists or structs, which CSV files cannot: write "
                "--output FILE.parquet, or --only the predictions"
            )

        return pyarrow.csv.CSVWriter(path, schema)
    import pyarrow.parquet

    return pyarrow.parquet.ParquetWriter(path, schema)

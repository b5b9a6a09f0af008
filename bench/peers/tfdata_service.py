"""How fast does tf.data service deliver click-log rows, decoded, transformed and batched?

Real processes on loopback: a dispatcher, the workers, a reader. DYNAMIC sharding over files that
repeat without end, no compression; a worker turns 4,096 rows into one batch of labels, log1p dense
columns and ids hashed into 2^20. The reader counts rows once the stream is steady, so the figure
includes neither the start of processes, nor tracing, nor the end of an epoch. Run it with an
interpreter that has TensorFlow; prints one JSON line.
"""

from __future__ import annotations

import argparse
import glob
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.columns import CATEGORICAL, DENSE
from bench.data import BLOCK_ROWS, HASH_BUCKETS
from bench.options import add_common, new_parser
from bench.peers import children

if TYPE_CHECKING:
    import tensorflow as tf

_MODULE = "bench.peers.tfdata_service"
_ID_BYTES = 8 * len(CATEGORICAL)
_DENSE_BYTES = 4 * len(DENSE)
_ROW_BYTES = _ID_BYTES + _DENSE_BYTES + 4


def hash_ids(ids: tf.Tensor) -> tf.Tensor:
    """Does `bench.data.hash_ids` in TensorFlow: int64 ids to int64 in [0, 2^20)."""
    import tensorflow as tf

    z = tf.bitcast(ids, tf.uint64) + tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, tf.constant(shift, tf.uint64)))
        z *= tf.constant(factor, tf.uint64)
    z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, tf.constant(31, tf.uint64)))
    return tf.bitcast(tf.bitwise.bitwise_and(z, tf.constant(HASH_BUCKETS - 1, tf.uint64)), tf.int64)


def _decode_examples(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    features = {"label": tf.io.FixedLenFeature((), tf.float32)}
    features |= {name: tf.io.FixedLenFeature((), tf.float32) for name in DENSE}
    features |= {name: tf.io.FixedLenFeature((), tf.int64) for name in CATEGORICAL}
    row = tf.io.parse_example(records, features)
    dense = tf.stack([row[name] for name in DENSE], axis=1)
    ids = tf.stack([row[name] for name in CATEGORICAL], axis=1)
    return row["label"], dense, ids


def _decode_block(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    import tensorflow as tf

    data = tf.io.decode_raw(record, tf.uint8)
    rows = tf.size(data) // _ROW_BYTES
    parts = tf.split(data, [rows * _ID_BYTES, rows * _DENSE_BYTES, rows * 4])
    ids = tf.bitcast(tf.reshape(parts[0], [-1, len(CATEGORICAL), 8]), tf.int64)
    dense = tf.bitcast(tf.reshape(parts[1], [-1, len(DENSE), 4]), tf.float32)
    return tf.bitcast(tf.reshape(parts[2], [-1, 4]), tf.float32), dense, ids


def dataset(paths: Sequence[str], form: str, service: str, id_dtype: str) -> tf.data.Dataset:
    """Returns endless batches (label, dense, ids) of 4,096 rows from the workers of `service`."""
    import tensorflow as tf

    auto = tf.data.AUTOTUNE

    def transform(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        decode = _decode_examples if form == "example" else _decode_block
        label, dense, ids = decode(records)
        return label, tf.math.log1p(dense), tf.cast(hash_ids(ids), id_dtype)

    def records(path: tf.Tensor) -> tf.data.Dataset:
        # Batched inside the interleave: one hop per batch, not per row, is three times as fast.
        read = tf.data.TFRecordDataset(path, buffer_size=1 << 20)
        return read.batch(BLOCK_ROWS, drop_remainder=True) if form == "example" else read

    files = tf.data.Dataset.from_tensor_slices(list(paths)).repeat()
    read = files.interleave(records, cycle_length=2, num_parallel_calls=auto, deterministic=False)
    batches = read.map(transform, num_parallel_calls=auto, deterministic=False).prefetch(auto)
    # Eight requests under way and no further prefetch measured faster than either default.
    return batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service,
            compression=None,
            max_outstanding_requests=8,
        )
    )


def _serve_dispatcher(_: argparse.Namespace) -> None:
    import tensorflow as tf

    server = tf.data.experimental.service.DispatchServer()
    children.say(service=server.target)
    threading.Event().wait()


def _serve_worker(options: argparse.Namespace) -> None:
    import tensorflow as tf

    address = options.service.split("://")[1]
    config = tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    server = tf.data.experimental.service.WorkerServer(config)
    children.say(ready=True)
    threading.Event().wait()
    del server


def _read(options: argparse.Namespace) -> None:
    """Counts rows over `seconds`, after a warm-up in which AUTOTUNE can settle."""
    paths = sorted(glob.glob(options.files))
    batches = iter(dataset(paths, options.form, options.service, options.id_dtype))
    warm_until = time.perf_counter() + options.warm_up_s
    next(batches)
    while time.perf_counter() < warm_until:
        next(batches)
    rows, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < options.seconds:
        label, _, _ = next(batches)
        rows += int(label.shape[0])
    children.say(rows=rows, seconds=seconds)


_ROLES = {"dispatcher": _serve_dispatcher, "worker": _serve_worker, "reader": _read}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole service once; returns the fields of the JSON line."""
    if not glob.glob(options.files):
        raise SystemExit(f"no file matches {options.files!r}; write some with python -m bench.data")
    with children.Children(options.deadline_s) as group:
        service = group.start(_MODULE, ["--role", "dispatcher"]).line()["service"]
        joined = ["--service", service, "--files", options.files, "--form", options.form]
        joined += ["--id-dtype", options.id_dtype]
        joined += ["--seconds", str(options.seconds), "--warm-up-s", str(options.warm_up_s)]
        workers = [
            group.start(_MODULE, ["--role", "worker", *joined]) for _ in range(options.workers)
        ]
        for worker in workers:
            worker.line()
        result = group.start(_MODULE, ["--role", "reader", *joined]).line()
    return {
        "bench": "stream",
        "system": "tf.data service",
        "form": options.form,
        "id_dtype": options.id_dtype,
        "workers": options.workers,
        "rows": result["rows"],
        "seconds": round(result["seconds"], 4),
        "rows_per_s": round(result["rows"] / result["seconds"]),
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the command line; without `--role` as the parent that starts the other processes."""
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--files", default="", help="glob of the TFRecord files that bench.data wrote"
    )
    parser.add_argument(
        "--form",
        choices=("example", "packed"),
        default="example",
        help="form of the rows in the files: tf.train.Example, or packed by hand (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--id-dtype",
        choices=("int64", "int32"),
        default="int64",
        help="type of the ids that are delivered (default: %(default)s)",
    )
    add_common(parser, seconds=8.0, warm_up_s=3.0, deadline_s=120.0)
    parser.add_argument("--role", choices=sorted(_ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--service", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    children.end_with_parent()
    if options.role:
        _ROLES[options.role](options)
        return
    if options.smoke:
        options.seconds, options.warm_up_s = 0.5, 0.2
    children.say(**measure(options))


if __name__ == "__main__":
    main()

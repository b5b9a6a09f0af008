"""How fast does ParameterServerStrategy train a click model with one large embedding table?

Real processes on loopback: a coordinator, the workers, the parameter servers. The table, 2^20 rows
of 16, is cut over the parameter servers; 26 fields look up in it, and a 64-32-1 relu network
follows. The optimizer is Adagrad, sparse on the table. Rows come from memory, batched beforehand.
Two forms: "usual" is what TensorFlow's guide leads to (embedding_lookup, tape, a legacy Keras
optimizer); "tuned" is the fastest found: ids are made unique before they cross the network,
gradients are summed per id on the worker, and fused Adagrad kernels run on the parameter server,
without Keras. A third form, "empty", schedules steps that do nothing, which gives the coordinator's
own speed. Run it with an interpreter that has TensorFlow (and tf_keras for the usual form); prints
one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from bench.columns import CATEGORICAL, DENSE
from bench.data import HASH_BUCKETS, training_arrays
from bench.options import add_common, new_parser
from bench.peers import children

if TYPE_CHECKING:
    import tensorflow as tf

_MODULE = "bench.peers.tf_parameter_server"
_WIDTH = 16
_LAYERS = (len(CATEGORICAL) * _WIDTH + len(DENSE), 64, 32, 1)
_LEARNING_RATE = 0.05
_INITIAL_ACCUMULATOR = 0.1
_EPSILON = 1e-7
_ROWS_IN_MEMORY = 262_144


class ClickModel:
    """The variables on the parameter servers, and the training step that a worker runs."""

    def __init__(self, form: str) -> None:
        import tensorflow as tf

        self._form = form
        rows = tf.random.uniform((HASH_BUCKETS, _WIDTH), -0.05, 0.05, seed=1)
        self._table = tf.Variable(rows, name="table")
        self._network: list[tf.Variable] = []
        for fan_in, fan_out in itertools.pairwise(_LAYERS):
            limit = math.sqrt(6 / (fan_in + fan_out))
            weights = tf.random.uniform((fan_in, fan_out), -limit, limit, seed=2)
            self._network += [tf.Variable(weights), tf.Variable(tf.zeros((fan_out,)))]
        self._shards = list(getattr(self._table, "variables", [self._table]))
        if form == "usual":
            self._optimizer = _keras_adagrad()
            self._optimizer._create_all_weights([*self._shards, *self._network])
            return
        self._sums = []
        for variable in (*self._shards, *self._network):
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
                self._sums.append(tf.Variable(tf.fill(variable.shape, _INITIAL_ACCUMULATOR)))

    def step(self, iterator: Any) -> tf.Tensor:
        """Trains on the next batch and returns its loss."""
        import tensorflow as tf

        batch = next(iterator)
        if self._form == "usual":
            return tf.distribute.get_strategy().run(self._usual_step, args=batch)
        return self._tuned_step(*batch)

    def _usual_step(self, labels: tf.Tensor, dense: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            embedded = tf.nn.embedding_lookup(self._table, ids)
            loss = self._loss(labels, dense, embedded)
        variables = [*self._shards, *self._network]
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def _tuned_step(self, labels: tf.Tensor, dense: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        unique, places = tf.unique(tf.reshape(ids, [-1]))
        rows = tf.nn.embedding_lookup(self._table, unique)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = self._loss(labels, dense, tf.gather(rows, places))
        row_gradient, *gradients = tape.gradient(loss, [rows, *self._network])
        self._update_table(unique, tf.convert_to_tensor(row_gradient))
        network_sums = self._sums[len(self._shards) :]
        for variable, sums, gradient in zip(self._network, network_sums, gradients, strict=True):
            with tf.device(variable.device):
                tf.raw_ops.ResourceApplyAdagradV2(
                    var=variable.handle,
                    accum=sums.handle,
                    lr=_LEARNING_RATE,
                    epsilon=_EPSILON,
                    grad=gradient,
                )
        return loss

    def _loss(self, labels: tf.Tensor, dense: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        flat = tf.reshape(embedded, [-1, len(CATEGORICAL) * _WIDTH])
        hidden = tf.concat([flat, dense], axis=1)
        for layer in range(0, len(self._network), 2):
            hidden = tf.matmul(hidden, self._network[layer]) + self._network[layer + 1]
            if layer + 2 < len(self._network):
                hidden = tf.nn.relu(hidden)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, hidden[:, 0])
        return tf.reduce_mean(losses)

    def _update_table(self, ids: tf.Tensor, gradient: tf.Tensor) -> None:
        """Applies sparse Adagrad for unique ids, each shard's part on the server that holds it."""
        import tensorflow as tf

        count = len(self._shards)
        shard_rows = HASH_BUCKETS // count
        parts, gradients = [ids], [gradient]
        if count > 1:
            owner = ids // shard_rows
            parts = tf.dynamic_partition(ids % shard_rows, owner, count)
            gradients = tf.dynamic_partition(gradient, owner, count)
        for shard, sums, part, rows in zip(
            self._shards, self._sums, parts, gradients, strict=False
        ):
            with tf.device(shard.device):
                tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=shard.handle,
                    accum=sums.handle,
                    lr=_LEARNING_RATE,
                    epsilon=_EPSILON,
                    grad=rows,
                    indices=part,
                )


def _keras_adagrad() -> Any:
    """Returns the optimizer that TensorFlow's own parameter-server guide leads to."""
    import tf_keras

    return tf_keras.optimizers.legacy.Adagrad(
        learning_rate=_LEARNING_RATE,
        initial_accumulator_value=_INITIAL_ACCUMULATOR,
        epsilon=_EPSILON,
    )


def _batches(batch: int) -> tf.data.Dataset:
    """Returns endless batches from memory: labels (n,), dense (n, 13), int32 ids (n, 26)."""
    import tensorflow as tf

    labels, dense, ids = training_arrays(_ROWS_IN_MEMORY)
    count = _ROWS_IN_MEMORY // batch
    arrays = (
        labels.reshape(count, batch),
        dense.reshape(count, batch, len(DENSE)),
        ids.astype("int32").reshape(count, batch, len(CATEGORICAL)),
    )
    return tf.data.Dataset.from_tensor_slices(arrays).repeat().prefetch(4)


def _cluster(options: argparse.Namespace) -> Any:
    import tensorflow as tf

    return tf.train.ClusterSpec(json.loads(options.cluster))


def _serve(options: argparse.Namespace) -> None:
    """Runs a worker or parameter server, a plain TensorFlow server, until the parent ends it."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=options.threads,
        inter_op_parallelism_threads=max(options.threads, 2),
    )
    server = tf.distribute.Server(
        _cluster(options),
        job_name=options.role,
        task_index=options.index,
        protocol="grpc",
        config=config,
    )
    children.say(ready=server.target)
    threading.Event().wait()


def _coordinate(options: argparse.Namespace) -> None:
    """Trains for about `seconds` after a warm-up; prints the examples and the exact seconds."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        _cluster(options), rpc_layer="grpc", task_type="chief", task_id=0
    )
    # It cuts the table, and leaves the network's small variables whole.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=1 << 20, max_shards=options.ps
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if options.form == "empty":
        _coordinate_empty(coordinator, options.seconds)
        return
    with strategy.scope():
        model = ClickModel(options.form)
    step = tf.function(model.step)
    data = coordinator.create_per_worker_dataset(lambda: _batches(options.batch))
    iterator = iter(data)

    def train(batches: int) -> float:
        began = time.perf_counter()
        for _ in range(batches):
            loss = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        seconds = time.perf_counter() - began
        if not math.isfinite(last := float(loss.fetch())):
            raise ArithmeticError(f"the loss became {last}: the run is no measurement")
        return seconds

    train(4 * options.workers)
    trial = 16 * options.workers
    rate = trial / train(trial)
    batches = max(int(rate * options.seconds), 4)
    seconds = train(batches)
    children.say(examples=batches * options.batch, seconds=seconds)


def _coordinate_empty(coordinator: Any, seconds: float) -> None:
    """Schedules functions that do nothing, for about `seconds`; prints how many ran."""
    import tensorflow as tf

    step = tf.function(lambda: tf.constant(0.0))

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(step)
        coordinator.join()
        return time.perf_counter() - began

    run(50)
    trial = 200
    count = max(int(trial / run(trial) * seconds), trial)
    children.say(closures=count, seconds=run(count))


_ROLES = {"chief": _coordinate, "worker": _serve, "ps": _serve}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole cluster once; returns the fields of the JSON line."""
    ports = iter(children.free_ports(1 + options.workers + options.ps))
    counts = {"chief": 1, "worker": options.workers, "ps": options.ps}
    cluster = {
        role: [f"localhost:{next(ports)}" for _ in range(count)] for role, count in counts.items()
    }
    common = ["--cluster", json.dumps(cluster), "--batch", str(options.batch)]
    common += ["--workers", str(options.workers), "--ps", str(options.ps)]
    common += ["--form", options.form, "--seconds", str(options.seconds)]
    common += ["--threads", str(options.threads)]
    with children.Children(options.deadline_s) as group:
        servers = [
            group.start(_MODULE, ["--role", role, "--index", str(index), *common])
            for role in ("ps", "worker")
            for index in range(counts[role])
        ]
        for server in servers:
            server.line()
        result = group.start(_MODULE, ["--role", "chief", *common]).line()
    if options.form == "empty":
        return {
            "bench": "closures",
            "system": "ClusterCoordinator",
            "workers": options.workers,
            "closures": result["closures"],
            "seconds": round(result["seconds"], 4),
            "closures_per_s": round(result["closures"] / result["seconds"]),
        }
    return {
        "bench": "train",
        "system": "ParameterServerStrategy",
        "form": options.form,
        "workers": options.workers,
        "ps": options.ps,
        "batch": options.batch,
        "examples": result["examples"],
        "seconds": round(result["seconds"], 4),
        "examples_per_s": round(result["examples"] / result["seconds"]),
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the command line; without `--role` as the parent that starts the other processes."""
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--workers", type=int, default=1, help="number of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--ps", type=int, default=1, help="number of parameter servers (default: %(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=1024, help="rows in each batch (default: %(default)s)"
    )
    parser.add_argument(
        "--form",
        choices=("usual", "tuned", "empty"),
        default="tuned",
        help="how the program is written; empty schedules functions that do nothing (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="intra-op threads of each process (default: %(default)s)",
    )
    add_common(parser, seconds=8.0, deadline_s=120.0)
    parser.add_argument("--role", choices=sorted(_ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    children.end_with_parent()
    if options.role:
        _ROLES[options.role](options)
        return
    if options.smoke:
        options.seconds, options.batch = 0.5, 256
    children.say(**measure(options))


if __name__ == "__main__":
    main()

"""One of the six click models in TensorFlow, in one process, in the fastest way that was found.

Ids are made unique, gradients are summed per id, and fused Adagrad kernels change these rows alone.
Keras is not used, because its optimizers and layers add to each step. Two forms: "plain", one
`tf.function`; "compiled", in which XLA compiles everything between the looked-up rows and their
gradient. Run it with an interpreter that has TensorFlow. It trains in turns; see
`bench.peers.turns`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bench import model_batches as work
from bench.options import new_parser
from bench.peers import turns

if TYPE_CHECKING:
    import tensorflow as tf

FORMS = ("plain", "compiled")

_SIZES: dict[str, Callable[[int], dict[str, list[int]]]] = {
    "LogisticRegression": lambda _: {"linear": [work.NUMBERS, 1]},
    "FactorizationMachine": lambda _: {"linear": [work.NUMBERS, 1]},
    "DeepFM": lambda dim: {
        "linear": [work.NUMBERS, 1],
        "deep": [(work.FIELDS + work.NUMBERS) * dim, *work.HIDDEN, 1],
    },
    "WideDeep": lambda dim: {
        "linear": [work.NUMBERS, 1],
        "deep": [work.FIELDS * dim + work.NUMBERS, *work.HIDDEN, 1],
    },
    "DLRM": lambda dim: {
        "bottom": [work.NUMBERS, *work.BOTTOM, dim],
        "deep": [work.FIELDS * (work.FIELDS + 1) // 2 + dim, *work.HIDDEN, 1],
    },
    "DCNv2": lambda dim: {
        **{f"cross_{k}": [_joined(dim), _joined(dim)] for k in range(work.CROSSES)},
        "deep": [_joined(dim), *work.HIDDEN, 1],
    },
}


def _joined(dim: int) -> int:
    return work.FIELDS * dim + work.NUMBERS


class Network:
    """The logits of looked-up rows and dense columns; holds all variables but the tables."""

    def __init__(self, kind: str, dim: int) -> None:
        import tensorflow as tf

        self._dim = dim
        ways: dict[str, Callable[..., Any]] = {
            "LogisticRegression": self._linear,
            "FactorizationMachine": self._factorization,
            "DeepFM": self._deep_fm,
            "WideDeep": self._wide_deep,
            "DLRM": self._dlrm,
            "DCNv2": self._dcn,
        }
        self.logits = ways[kind]
        self._layers = {name: _layers(sizes) for name, sizes in _SIZES[kind](dim).items()}
        self.variables = [v for layers in self._layers.values() for pair in layers for v in pair]
        if kind in ("FactorizationMachine", "DeepFM"):
            self._numeric = tf.Variable(tf.random.uniform((work.NUMBERS, dim), -0.05, 0.05))
            self.variables.append(self._numeric)

    def _run(self, name: str, values: Any, *, rectified: bool = False) -> Any:
        import tensorflow as tf

        layers = self._layers[name]
        for k, (kernel, bias) in enumerate(layers):
            values = tf.nn.bias_add(tf.matmul(values, kernel), bias)
            if rectified or k + 1 < len(layers):
                values = tf.nn.relu(values)
        return values

    def _side_by_side(self, vectors: Any, dense: Any) -> Any:
        import tensorflow as tf

        return tf.concat([tf.reshape(vectors, [-1, work.FIELDS * self._dim]), dense], 1)

    def _linear(self, wide: Any, _vectors: Any, dense: Any) -> Any:
        return wide + self._run("linear", dense)

    def _wide_deep(self, wide: Any, vectors: Any, dense: Any) -> Any:
        deep = self._run("deep", self._side_by_side(vectors, dense))
        return self._linear(wide, vectors, dense) + deep

    def _every_vector(self, vectors: Any, dense: Any) -> Any:
        import tensorflow as tf

        return tf.concat([vectors, dense[:, :, None] * self._numeric], 1)

    def _factorization(self, wide: Any, vectors: Any, dense: Any, every: Any = None) -> Any:
        import tensorflow as tf

        every = self._every_vector(vectors, dense) if every is None else every
        total = tf.reduce_sum(every, 1)
        squares = tf.reduce_sum(every * every, [1, 2])
        pairs = 0.5 * (tf.reduce_sum(total * total, 1) - squares)
        return self._linear(wide, vectors, dense) + pairs[:, None]

    def _deep_fm(self, wide: Any, vectors: Any, dense: Any) -> Any:
        import tensorflow as tf

        every = self._every_vector(vectors, dense)
        flat = tf.reshape(every, [-1, (work.FIELDS + work.NUMBERS) * self._dim])
        return self._factorization(wide, vectors, dense, every) + self._run("deep", flat)

    def _dlrm(self, _wide: Any, vectors: Any, dense: Any) -> Any:
        import tensorflow as tf

        bottom = self._run("bottom", dense, rectified=True)
        every = tf.concat([bottom[:, None], vectors], 1)
        count = work.FIELDS + 1
        products = tf.reshape(tf.matmul(every, every, transpose_b=True), [-1, count * count])
        below = np.flatnonzero(np.tril(np.ones((count, count)), -1)).astype(np.int32)
        return self._run("deep", tf.concat([bottom, tf.gather(products, below, axis=1)], 1))

    def _dcn(self, wide: Any, vectors: Any, dense: Any) -> Any:
        start = crossed = self._side_by_side(vectors, dense)
        for k in range(work.CROSSES):
            crossed = start * self._run(f"cross_{k}", crossed) + crossed
        return wide + self._run("deep", crossed)


def _layers(sizes: list[int]) -> list[tuple[Any, Any]]:
    """Returns kernel and bias of each dense layer."""
    import tensorflow as tf

    layers = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        limit = math.sqrt(6 / (fan_in + fan_out))
        kernel = tf.random.uniform((fan_in, fan_out), -limit, limit, seed=2)
        layers.append((tf.Variable(kernel), tf.Variable(tf.zeros((fan_out,)))))
    return layers


class Model:
    """The tables, the network, Adagrad's sums of squares, and the training step."""

    def __init__(self, kind: str, dim: int, form: str) -> None:
        import tensorflow as tf

        widths = {"wide": 1, "deep": dim}
        if kind in ("LogisticRegression", "DLRM"):
            del widths["deep" if kind == "LogisticRegression" else "wide"]
        start = {
            name: tf.random.uniform((work.ROWS, width), -0.05, 0.05, seed=1)
            for name, width in widths.items()
        }
        self._tables = {name: tf.Variable(rows) for name, rows in start.items()}
        self._network = Network(kind, dim)
        self._sums = [
            tf.Variable(tf.fill(variable.shape, work.INITIAL_ACCUMULATOR))
            for variable in (*self._tables.values(), *self._network.variables)
        ]
        self._inner: Callable[..., Any] = self._gradients
        if form == "compiled":
            self._inner = tf.function(self._gradients, jit_compile=True)
        self.step = tf.function(self._train)

    def _gradients(self, labels: Any, dense: Any, rows: dict[str, Any]) -> Any:
        """Returns the loss, its gradients for looked-up rows, and those for the network."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(rows)
            wide = tf.reduce_sum(rows["wide"], 1) if "wide" in rows else None
            logits = self._network.logits(wide, rows.get("deep"), dense)[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        return loss, tape.gradient(loss, [rows, self._network.variables])

    def _train(self, labels: Any, dense: Any, ids: Any) -> Any:
        import tensorflow as tf

        rows = {name: tf.gather(table, ids) for name, table in self._tables.items()}
        loss, (of_rows, of_network) = self._inner(labels, dense, rows)
        unique, places = tf.unique(tf.reshape(ids, [-1]))
        for (name, table), sums in zip(self._tables.items(), self._sums, strict=False):
            flat = tf.reshape(of_rows[name], [-1, table.shape[1]])
            summed = tf.math.unsorted_segment_sum(flat, places, tf.shape(unique)[0])
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                **_update(table, sums), grad=summed, indices=unique
            )
        sums_of_network = self._sums[len(self._tables) :]
        for variable, sums, gradient in zip(
            self._network.variables, sums_of_network, of_network, strict=True
        ):
            tf.raw_ops.ResourceApplyAdagradV2(**_update(variable, sums), grad=gradient)
        return loss


def _update(variable: tf.Variable, sums: tf.Variable) -> dict[str, Any]:
    rates = {"lr": work.LEARNING_RATE, "epsilon": work.EPSILON}
    return {"var": variable.handle, "accum": sums.handle, **rates}


def main(argv: list[str] | None = None) -> None:
    """Runs the command line of the process that takes turns."""
    parser = new_parser("bench.peers.tf_models", __doc__, has_smoke=False)
    parser.add_argument("--kind", choices=work.KINDS, required=True, help="model to measure")
    parser.add_argument("--batch", type=int, required=True, help="rows in each batch")
    parser.add_argument("--width", type=int, required=True, help="size of an embedding")
    parser.add_argument(
        "--ids", choices=work.IDS, required=True, help="distribution of the categorical ids"
    )
    parser.add_argument("--form", choices=FORMS, required=True, help="how the program is written")
    parser.add_argument(
        "--threads",
        type=int,
        default=0,
        help="number of threads; 0 leaves the choice to TensorFlow (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    model = Model(options.kind, options.width, options.form)
    given = [tuple(map(tf.constant, batch)) for batch in work.batches(options.batch, options.ids)]
    data = itertools.cycle(given)
    turns.serve(lambda: float(model.step(*next(data))))


if __name__ == "__main__":
    main()

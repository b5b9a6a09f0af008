"""What a model is: a feature schema, layers, and one fetch per step for all of them.

Knows nothing of loops, data sources or clusters: ``fit``, ``evaluate`` and ``predict`` hand over
to the modules that do. Invariant: a step changes nothing in the model, so threads may run steps
of one model at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain import foreign_arguments, foreign_names
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.features.online_columns import OnlineColumns
from pstrain.features.schema import Features, FeatureSchema
from pstrain.foreign_arguments import instead_of
from pstrain.foreign_names import Telling
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.layers.base import Layer
from pstrain.losses import BinaryCrossentropy, sigmoid
from pstrain.models.weights import Weights
from pstrain.strategy_scope import get_strategy, has_strategy
from pstrain.variables.attributes import reached
from pstrain.vocabulary import Fetch

if TYPE_CHECKING:
    from pstrain.execution.progress import History
    from pstrain.models.options import EvaluateOptions, FitOptions, PredictOptions

Batch: TypeAlias = "pa.RecordBatch | Features | Mapping[str, Any]"


class Model(Weights, Telling, ABC):
    """Base of models that tell two classes apart.

    A subclass makes its layers and says how they are connected. ``schema``: a ``FeatureSchema``,
    a ``pa.Schema`` or anything with ``.schema``.
    """

    kind: ClassVar[str] = ""
    _foreign = foreign_names.MODEL

    def __init__(self, schema: Any) -> None:
        self.schema = FeatureSchema.of(schema)
        self.strategy = get_strategy() if has_strategy() else None
        self.layers: list[Layer] = []
        self.online = OnlineColumns(self.schema, "online") if self.schema.is_online else None
        self.optimizer: Any = None
        self.metrics: list[Any] = []
        self.weighted_metrics: list[Any] = []
        self._loss = BinaryCrossentropy(from_logits=True)

    @property
    def parameters(self) -> Any:
        """The ``Parameters`` that hold the values of this model."""
        # Each step asks; few models begin with a layer that has none.
        known = (self.layers[0].variables if self.layers else ()) or self.variables
        if not known:
            raise FailedPreconditionError(
                f"{type(self).__name__} has no variables: list its layers in self.layers, each "
                "with its input_size"
            )
        return known[0].parameters

    @property
    def variables(self) -> list[Any]:
        """All variables, layer by layer; then those that attributes of a subclass are or have,
        which a step may train too; then the keys of online columns."""
        own = {
            name: value for name, value in vars(self).items() if name not in ("layers", "online")
        }
        found = reached([self.layers, own])
        return [*found, *(self.online.variables if self.online else ())]

    def encode(self, batch: Batch) -> Features:
        """What the model reads of a batch; ``Features`` pass through."""
        return batch if isinstance(batch, Features) else self.schema.encode(batch)

    def requests(self, features: Features) -> list[Fetch]:
        """All that a step on ``features``, without keys, reads, layer by layer."""
        return [request for layer in self.layers for request in layer.requests(features)]

    @abstractmethod
    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        """Logits, float32 [n, 1], from each layer's fetched values."""

    @instead_of("a model", foreign_arguments.CALL)
    def forward(self, batch: Batch) -> Tensor:
        """Logits, float32 [n, 1]. One fetch; recorded on the active tape. Labels are not read."""
        if not isinstance(batch, Features):
            batch = self.schema.encode(batch, labelled=False)
        # Of variables alone it is an array where no tape trains them.
        return as_tensor(self.compute(*self._read(batch)))

    __call__ = forward

    def loss(self, batch: Batch) -> Tensor:
        """Mean log loss of a batch, a scalar. DataError where the batch has no labels."""
        features = self.encode(batch)
        if features.labels is None:
            raise self.schema.lacks_label(batch)
        return self._loss(features.labels, self.compute(*self._read(features)))

    def predict_on_batch(self, batch: Batch) -> NDArray[np.float32]:
        """Probabilities of label 1, float32 [n]. Needs no labels."""
        return sigmoid(self.forward(batch).value.reshape(-1))

    @instead_of("compile", foreign_arguments.COMPILE, beyond="loss")
    def compile(
        self,
        optimizer: Any = None,
        metrics: Sequence[Any] | None = None,
        *,
        weighted_metrics: Sequence[Any] | None = None,
    ) -> None:
        """Sets what ``fit`` optimises with and what ``evaluate`` reports besides the loss.

        Objects, or names for those with the defaults: "adagrad", "auc". ``weighted_metrics`` count
        each row by its ``sample_weight`` and ``class_weight``; ``self.metrics`` has them last. One
        that is made by a name that ``metrics`` has too is "weighted_auc". An optimizer that was
        made outside of the model's strategy, and has made no step, is moved there.
        """
        from pstrain import metrics as known_metrics
        from pstrain import optimizers

        chosen = optimizers.named(optimizer)
        if chosen is not None and self.strategy is not None:
            chosen.move_to(self.strategy)
        alike = [known_metrics.named(metric) for metric in _several(metrics)]
        weighted = [known_metrics.named(metric) for metric in _several(weighted_metrics)]
        for given, metric in zip(_several(weighted_metrics), weighted, strict=True):
            metric.check_weighs()
            if given is not metric and any(metric.name == other.name for other in alike):
                metric.name = f"weighted_{metric.name}"
        self.metrics = _told_apart([*alike, *weighted])
        self.weighted_metrics = weighted
        self.optimizer = chosen

    @instead_of("fit", foreign_arguments.FIT)
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] = (),
        **options: Unpack[FitOptions],
    ) -> History:
        """Trains; see :func:`pstrain.training.fit`."""
        from pstrain.training import fit

        return fit(self, data, epochs, steps_per_epoch, validation_data, callbacks, **options)

    @instead_of("evaluate", foreign_arguments.EVALUATE)
    def evaluate(
        self, data: Any, *unnamed: Any, **options: Unpack[EvaluateOptions]
    ) -> dict[str, float]:
        """Loss and metrics over data; see :func:`pstrain.evaluation.evaluate`."""
        from pstrain.evaluation import evaluate

        self._check_alone("evaluate", unnamed)
        return evaluate(self, data, **options)

    @instead_of("predict", foreign_arguments.PREDICT)
    def predict(
        self, data: Any, *unnamed: Any, **options: Unpack[PredictOptions]
    ) -> NDArray[np.float32]:
        """Probabilities for every row; see :func:`pstrain.evaluation.predict`."""
        from pstrain.evaluation import predict

        self._check_alone("predict", unnamed)
        return predict(self, data, **options)

    def _check_alone(self, method: str, unnamed: Sequence[Any]) -> None:
        """InvalidTypeError for labels, and for options without their names."""
        if unnamed:
            raise InvalidTypeError(
                f"{method} takes the data, then options by name, such as batch_size=, got "
                f"{type(unnamed[0]).__name__} after the data; labels are the column "
                f"{self.schema.label!r} of the data"
            )

    def __repr__(self) -> str:
        schema = self.schema
        columns = f"{len(schema.dense)} dense, {len(schema.categorical)} categorical columns"
        return f"<{type(self).__name__} {columns}, {self.count_params():,} values>"

    def get_config(self) -> dict[str, Any]:
        """JSON form, from which :func:`pstrain.models.from_config` makes the same structure."""
        return {"kind": self.kind, "schema": self.schema.to_json()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """Inverse of :meth:`get_config`, with freshly made variables."""
        if config.get("kind") != cls.kind:
            raise InvalidArgumentError(f"{cls.__name__} cannot be made from {config.get('kind')!r}")
        options = {k: v for k, v in config.items() if k not in ("kind", "schema")}
        return cls(FeatureSchema.from_json(config["schema"]), **options)

    def _read(self, features: Features) -> tuple[list[list[Any]], Features]:
        """What a step reads, and its batch with rows in the place of keys."""
        if self.online is None or not features.has_keys:
            return self._fetch(features), features
        while True:
            known = self.online.map
            placed = self.online.with_rows(features)
            values = self._fetch(placed)
            # Not rows of before a restore, with values from after it.
            if self.online.map is known:
                return values, placed

    def _fetch(self, features: Features) -> list[list[Any]]:
        requests = [layer.requests(features) for layer in self.layers]
        values = self.parameters.fetch([r for group in requests for r in group])
        found, at = [], 0
        for group in requests:
            found.append(values[at : at + len(group)])
            at += len(group)
        return found


def _several(given: Any) -> Sequence[Any]:
    """What ``compile`` was given of metrics: none, one or a list."""
    if given is None:
        return []
    return given if isinstance(given, list | tuple) else [given]


def _told_apart(metrics: list[Any]) -> list[Any]:
    """InvalidArgumentError where one would stand in the place of another in the logs."""
    taken = {"loss", "examples", "examples_per_s", "data_stall", "learning_rate"}
    for metric in metrics:
        if metric.name in taken:
            raise InvalidArgumentError(
                f"the logs have another {metric.name!r}: give this metric a name=, such as "
                f"{type(metric).__name__}(name='{metric.name}_2')"
            )
        taken.add(metric.name)
    return metrics

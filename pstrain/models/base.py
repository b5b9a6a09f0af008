"""The base of models: a feature schema, layers, and one fetch per step for all layers.

Knows nothing of loops, data sources or clusters: ``fit``, ``evaluate`` and ``predict`` delegate to
the modules that do. Invariant: a step changes nothing of the model object but what it knows of its
own reads, so several threads may run steps of one model at once.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.arguments import is_integer
from pstrain import losses
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.features.online_columns import OnlineColumns
from pstrain.features.schema import Features, FeatureSchema
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.gradients.training_argument import takes_training
from pstrain.layers.base import Layer
from pstrain.losses.base import Loss
from pstrain.models.weights import Weights
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.serialization.pickling import invalidate_sent_functions
from pstrain.strategy.scope import entered_strategy
from pstrain.variables.attributes import reached
from pstrain.variables.read_ahead import WholesRead
from pstrain.vocabulary import Fetch

if TYPE_CHECKING:
    from pstrain.execution.progress import History
    from pstrain.models.options import EvaluateOptions, FitOptions, PredictOptions

Batch: TypeAlias = "pa.RecordBatch | Features | Mapping[str, Any]"


_LOG_LOSS: Final = {"name": "binary_crossentropy"}
"""The loss of a configuration that names none."""


class Model(Weights, Hinting, ABC):
    """The base class of models of one number for each row: a probability, or any number.

    ``objective`` is the loss that a model minimises: at first the log loss, which makes it a binary
    classifier; ``compile(loss="mse")`` makes it a regression. A subclass makes its layers in
    ``self.layers`` and connects them in :meth:`compute`. ``schema``: a ``FeatureSchema``, a
    ``pa.Schema`` or an object with a ``.schema``.
    """

    kind: ClassVar[str] = ""
    _arguments: ClassVar[tuple[str, ...]] = ()
    """The constructor's arguments after ``schema``, which are attributes of these names too."""
    _remedies = foreign_names.MODEL
    stop_training: bool = False
    """Whether training is to end, as callbacks read and set it."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "call" in vars(cls) and "compute" not in vars(cls):
            raise InvalidTypeError(
                f"model {cls.__name__} overrides call, as Keras' do: write compute(self, values, "
                "features), which returns outputs [n, 1], and list its layers in self.layers"
            )

    def __init__(self, schema: Any) -> None:
        self.schema = FeatureSchema.of(schema)
        self.strategy = entered_strategy()
        self.layers: list[Layer] = []
        self.online = OnlineColumns(self.schema) if self.schema.is_online else None
        self.optimizer: Any = None
        self.metrics: list[Any] = []
        self.weighted_metrics: list[Any] = []
        self.objective: Loss = losses.BinaryCrossentropy(from_logits=True)
        self._wholes_read = WholesRead()

    @property
    def parameters(self) -> Any:
        """The ``Parameters`` that hold the values of this model."""
        # Every step reads this property, so the first layer is tried before all are collected.
        known = (self.layers[0].variables if self.layers else ()) or self.variables
        if not known:
            raise FailedPreconditionError(
                f"{type(self).__name__} has no variables: list its layers in self.layers, each "
                "with its input_size"
            )
        return known[0].parameters

    @property
    def variables(self) -> list[Any]:
        """All variables: of the layers in order, of other attributes, then keys of online columns.

        A subclass may have variables, or objects with variables, as attributes beside its layers;
        a step may train these too.
        """
        own = {
            name: value for name, value in vars(self).items() if name not in ("layers", "online")
        }
        found = reached([self.layers, own])
        return [*found, *(self.online.variables if self.online else ())]

    def encode(self, batch: Batch) -> Features:
        """Encodes the columns of a batch that the model reads; returns ``Features`` unchanged."""
        if isinstance(batch, Features):
            return batch
        return self.schema.encode(batch, read_labels=self.objective.read_labels)

    def requests(self, features: Features) -> list[Fetch]:
        """Returns all that a step on ``features`` reads, layer by layer.

        ``features`` has rows, not keys, for online columns.
        """
        return [request for layer in self.layers for request in layer.requests(features)]

    @abstractmethod
    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        """Computes outputs, float32 [n, 1], from each layer's fetched values.

        They are the logits of a classifier, the predictions of a regression.
        """

    @takes_training
    @refuse_arguments("a model", foreign_arguments.CALL)
    def forward(self, batch: Batch) -> Tensor:
        """Returns the outputs of ``compute``, by one fetch; records on the active tape.

        Labels are not read.
        """
        if not isinstance(batch, Features):
            batch = self.schema.encode(batch, labelled=False)
        # Without a tape, compute() of a subclass may return an array.
        return as_tensor(self._outputs(batch))

    __call__ = forward

    def loss(self, batch: Batch) -> Tensor:
        """Returns the mean loss of a batch, a scalar; DataError if the batch has no labels."""
        features = self.encode(batch)
        if features.labels is None:
            raise self.schema.lacks_label(batch)
        return self.objective(features.labels, self._outputs(features))

    def predict_on_batch(self, batch: Batch) -> NDArray[np.float32]:
        """Returns predictions, float32 [n]: of a classifier, probabilities of label 1.

        The batch needs no labels.
        """
        return self.objective.predicted(self.forward(batch).value.reshape(-1))

    @refuse_arguments("compile", foreign_arguments.COMPILE, beyond="a third argument")
    def compile(
        self,
        optimizer: Any = None,
        metrics: Sequence[Any] | None = None,
        *,
        loss: Any = None,
        weighted_metrics: Sequence[Any] | None = None,
    ) -> None:
        """Sets the optimizer of ``fit``, the loss, and the metrics that are reported besides it.

        Takes objects, or names of those with default arguments, such as "adagrad" and "auc".
        ``weighted_metrics`` count each row by its ``sample_weight`` and ``class_weight``; they come
        last in ``self.metrics``. If a weighted metric is given by name and its name is also in
        ``metrics``, it is called "weighted_auc" or the like. ``evaluate`` computes all metrics;
        ``fit`` computes those by group, such as ``GAUC``, of its validation data only. An optimizer
        that was made outside the model's strategy is moved there if it has made no step yet,
        otherwise InvalidArgumentError. ``loss``: one of ``pstrain.losses``, or its name, such as
        "mse"; None leaves what the model minimises, at first "binary_crossentropy".
        """
        from pstrain import metrics as known_metrics
        from pstrain import optimizers

        objective = self.objective if loss is None else losses.of_model(loss)
        chosen = optimizers.named(optimizer)
        if chosen is not None and self.strategy is not None:
            chosen.move_to(self.strategy)
        alike = [known_metrics.named(metric) for metric in _as_list(metrics)]
        weighted = [known_metrics.named(metric) for metric in _as_list(weighted_metrics)]
        for given, metric in zip(_as_list(weighted_metrics), weighted, strict=True):
            metric.check_weighs()
            if given is not metric and any(metric.name == other.name for other in alike):
                metric.name = f"weighted_{metric.name}"
        _check_measure([*alike, *weighted], objective)
        self.metrics = _with_distinct_names([*alike, *weighted])
        self.weighted_metrics = weighted
        self.optimizer, self.objective = chosen, objective
        # Functions on trainers hold a copy of this model, and would go on by the loss of before.
        invalidate_sent_functions()

    def evict(self, keep: Mapping[str, int] | int) -> int:
        """Removes keys of online columns, so that ``keep`` are left; returns how many. Blocks.

        ``keep``: a dict of numbers by column, or a number if there is a single online column; other
        columns keep all keys. Which keys go, and what happens to their rows in the tables of
        ``self.layers``, is as in ``layers.OnlineLookup.evict``. ``callbacks.Evict`` calls it.
        """
        online = self.checked_online()
        empty = np.empty((0, len(self.schema.dense)), np.float32)
        ids = np.empty((0, len(self.schema.categorical)), np.int64)
        requests = self.requests(Features(empty, ids, None))
        return online.evict(keep, [each.variable for each in requests if each.ids is not None])

    def checked_online(self) -> OnlineColumns:
        """Returns the online columns; InvalidArgumentError if there are none."""
        if self.online is None:
            raise InvalidArgumentError(
                f"{type(self).__name__} has no online column, whose keys could be evicted: make "
                "one by Category(..., online=True)"
            )
        return self.online

    @refuse_arguments("fit", foreign_arguments.FIT, twice="y")
    def fit(
        self,
        data: Any,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] = (),
        **options: Unpack[FitOptions],
    ) -> History:
        """Trains the model; see :func:`pstrain.training.fit`."""
        from pstrain.training import fit

        return fit(self, data, epochs, steps_per_epoch, validation_data, callbacks, **options)

    @refuse_arguments("evaluate", foreign_arguments.EVALUATE)
    def evaluate(
        self,
        data: Any,
        *unnamed: Any,
        return_dict: bool = True,
        **options: Unpack[EvaluateOptions],
    ) -> dict[str, float]:
        """Returns loss and metrics over the data; see :func:`pstrain.evaluation.evaluate`.

        ``return_dict`` is Keras' and must be True.
        """
        from pstrain.evaluation import evaluate

        self._check_alone("evaluate", unnamed)
        if return_dict is not True:
            raise InvalidArgumentError("evaluate returns a dict by name: leave return_dict= out")
        return evaluate(self, data, **options)

    @refuse_arguments("predict", foreign_arguments.PREDICT)
    def predict(
        self, data: Any, *unnamed: Any, **options: Unpack[PredictOptions]
    ) -> NDArray[np.float32]:
        """Returns a prediction for every row; see :func:`pstrain.evaluation.predict`."""
        from pstrain.evaluation import predict

        self._check_alone("predict", unnamed)
        return predict(self, data, **options)

    def _check_alone(self, method: str, unnamed: Sequence[Any]) -> None:
        """Raises InvalidTypeError for positional arguments after the data, such as labels."""
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
        """Returns the JSON form, from which :func:`pstrain.models.from_config` makes a model."""
        config = {"kind": self.kind, "schema": self.schema.to_json()}
        for name in self._arguments:
            config[name] = _plain(getattr(self, name))
        loss = self.objective.get_config()
        return config if loss == _LOG_LOSS else config | {"loss": loss}

    def check_saved(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidArgumentError if outputs mean something else than in a saved model.

        ``config``: of that model, by :meth:`get_config`.
        """
        if "loss" not in config and type(self).get_config is not Model.get_config:
            return  # a subclass' own form of a configuration need not tell the loss
        saved = losses.from_config(config.get("loss", _LOG_LOSS))
        if saved.link != self.objective.link:
            wanted = saved if isinstance(saved, losses.Standardized) else saved.get_config()["name"]
            raise InvalidArgumentError(
                f"the model was saved with loss {saved!r}, and this one minimises "
                f"{self.objective!r}: call compile(loss={wanted!r}) before its "
                "values are restored, and compile it anew afterwards if they are only a start"
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Model:
        """Makes a model from the result of :meth:`get_config`, with new variables."""
        if config.get("kind") != cls.kind:
            raise InvalidArgumentError(f"{cls.__name__} cannot be made from {config.get('kind')!r}")
        options = {k: v for k, v in config.items() if k not in ("kind", "schema", "loss")}
        model = cls(FeatureSchema.from_json(config.get("schema")), **options)
        model.objective = losses.from_config(config.get("loss", _LOG_LOSS))
        return model

    def _outputs(self, features: Features) -> Tensor:
        with self._wholes_read.ahead(self.parameters) as running:
            (*values, ahead), placed = self._read(features, running.requests)
            running.put(ahead)
            return self.compute(values, placed)

    def _read(self, features: Features, ahead: list[Fetch]) -> tuple[list[list[Any]], Features]:
        """Fetches what a step reads, by layer, and what ``ahead`` asks for, in the last place.

        Returns it and the batch with rows in the place of keys.
        """
        if self.online is None or not features.has_keys:
            return self._fetch(features, ahead), features
        while True:
            known = self.online.map
            placed = self.online.with_rows(features)
            values = self._fetch(placed, ahead)
            # A restore in between replaces the map: its rows do not go with the fetched values.
            if self.online.map is known:
                return values, placed

    def _fetch(self, features: Features, ahead: list[Fetch]) -> list[list[Any]]:
        requests = [*(layer.requests(features) for layer in self.layers), ahead]
        values = iter(self.parameters.fetch([r for group in requests for r in group]))
        return [list(itertools.islice(values, len(group))) for group in requests]


def _plain(value: Any) -> Any:
    """Returns an argument in its JSON form: a tuple as a list, NumPy's integers as Python's."""
    if isinstance(value, tuple):
        return list(value)
    return int(value) if is_integer(value) else value


def _as_list(metrics: Any) -> Sequence[Any]:
    """Returns the metrics given to ``compile``, none, one or a list, as a list."""
    if metrics is None:
        return []
    return metrics if isinstance(metrics, list | tuple) else [metrics]


def _check_measure(metrics: Sequence[Any], objective: Loss) -> None:
    """Raises InvalidArgumentError for a metric of probabilities of a model that predicts others."""
    for metric in metrics:
        if metric.of_probabilities and objective.link != "sigmoid":
            raise InvalidArgumentError(
                f"metric {metric.name!r} measures probabilities, and with loss {objective!r} a "
                'model predicts numbers: measure them by "rmse", "mae", "mse" or "r2_score"'
            )


def _with_distinct_names(metrics: list[Any]) -> list[Any]:
    """Returns the metrics; InvalidArgumentError if two entries of the logs would share a name."""
    taken = {"loss", "examples", "examples_per_s", "data_stall", "learning_rate"}
    for metric in metrics:
        if metric.name in taken:
            raise InvalidArgumentError(
                f"the logs have another {metric.name!r}: give this metric a name=, such as "
                f"{type(metric).__name__}(name='{metric.name}_2')"
            )
        taken.add(metric.name)
    return metrics

"""Encodes Arrow batches as the matrices that a model reads: dense values, ids, labels.

Knows nothing of models or of where batches come from. Invariant: encoding is a pure function of
(schema, row): a row gets the same ids and values on every trainer, also after a checkpoint is
restored.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_optional, check_text
from pstrain.errors import DataError, InvalidArgumentError, InvalidTypeError
from pstrain.features import columns
from pstrain.features.bags import Bags, is_list, joined
from pstrain.features.batches import as_batch, as_table, batches_of
from pstrain.features.category import Category
from pstrain.features.moments import Moments
from pstrain.features.tokens import TokenCounts, Vocabulary

__all__ = ["Category", "FeatureSchema", "Features"]

ReadLabels = Callable[[str, pa.Array], NDArray[np.float32]]

_is_online = operator.attrgetter("online")


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """An encoded batch; every matrix is row-major.

    ``dense``: float32 [n, D]. ``ids``: int64 [n, F], rows of the table that all fields share.
    ``labels``: float32 [n], such as 0 and 1, or None if the batch has none. ``bags``: the fields
    with lists, which have no column in ``ids``. ``has_keys``: True if the ids of online columns are
    keys, which a model replaces by rows.
    """

    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    labels: NDArray[np.float32] | None
    bags: Bags | None = None
    has_keys: bool = False

    def __len__(self) -> int:
        return len(self.dense)

    @property
    def table_ids(self) -> NDArray[np.int64]:
        """All ids to look up: those of ``ids``, then those of ``bags``."""
        single = self.ids.reshape(-1)
        return single if self.bags is None else np.concatenate([single, self.bags.ids])


def _names(dense: Any) -> tuple[str, ...]:
    if isinstance(dense, str) or not isinstance(dense, Iterable):
        raise InvalidTypeError(f"dense must be a list of column names, got {dense!r}")
    names = tuple(dense)
    for name in names:
        check_text("each of dense", name)
    return names


def _check_categories(categorical: Any) -> None:
    if not isinstance(categorical, Mapping):
        raise InvalidTypeError(
            "categorical must be a dict of Category by column name, as in "
            f"{{'city': Category(1000)}}, got {categorical!r}"
        )
    for name, category in categorical.items():
        check_text("each column of categorical", name)
        if not isinstance(category, Category):
            raise InvalidTypeError(
                f"categorical column {name!r} needs a Category, got {category!r}; as in "
                f"Category({category if isinstance(category, int) else 1000})"
            )


def _check_normalization(normalization: Any, dense: Sequence[str]) -> None:
    if not isinstance(normalization, Mapping):
        raise InvalidTypeError(
            "normalization must be a dict of (mean, standard deviation) by dense column, got "
            f"{normalization!r}"
        )
    unknown = set(normalization) - set(dense)
    if unknown:
        raise InvalidArgumentError(
            f"normalization given for {', '.join(sorted(map(str, unknown)))}: not dense columns"
        )
    for name, pair in normalization.items():
        if not _is_mean_and_deviation(pair):
            raise InvalidArgumentError(
                f"normalization of {name!r} must be a finite mean and a positive standard "
                f"deviation, got {pair!r}"
            )


def _is_mean_and_deviation(pair: Any) -> bool:
    try:
        mean, std = pair
        return math.isfinite(mean) and math.isfinite(std) and bool(std > 0)
    except (TypeError, ValueError):  # no pair, or none of numbers
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSchema:
    """The columns that a model reads, and how it reads them.

    ``normalization``: (mean, standard deviation) by dense column; other dense columns are used
    unchanged. A null or NaN in a dense column counts as the column's mean, or 0 without one.
    """

    dense: Sequence[str] = ()
    categorical: Mapping[str, Category] = field(default_factory=dict)
    label: str | None = "label"
    normalization: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dense", _names(self.dense))
        _check_categories(self.categorical)
        if self.label is not None:
            check_text("label", self.label)
        names = [*self.dense, *self.categorical]
        if len(set(names)) < len(names):
            twice = {name for name in names if names.count(name) > 1}
            raise InvalidArgumentError(f"columns named twice: {', '.join(sorted(twice))}")
        if not names:
            raise InvalidArgumentError("a feature schema needs at least one feature column")
        if self.label in names:
            raise InvalidArgumentError(f"column {self.label!r} is both the label and a feature")
        _check_normalization(self.normalization, self.dense)

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The number of table rows of each categorical column, in order."""
        return tuple(category.rows for category in self.categorical.values())

    @property
    def table_rows(self) -> int:
        """The number of rows of the table that all categorical columns share."""
        return sum(self.vocabulary_sizes)

    @property
    def is_online(self) -> bool:
        """True if a column is online: its values get rows while a model is trained."""
        return any(map(_is_online, self.categorical.values()))

    @classmethod
    def from_arrow(
        cls, schema: pa.Schema, label: str | None = "label", buckets: int = 2**18
    ) -> FeatureSchema:
        """Makes a schema: floats become dense columns, other types hashed categories.

        The other types are integers, strings, booleans and dictionaries of these, and lists of
        them, which become categories whose rows are averaged. InvalidArgumentError for a missing
        label column or a column of another type.
        """
        if not isinstance(schema, pa.Schema):
            raise InvalidTypeError(
                f"from_arrow takes a pyarrow.Schema, got {type(schema).__name__}: a table and a "
                "Dataset have one as .schema, FeatureSchema.of(frame, label=...) takes a DataFrame"
            )
        if label is not None and label not in schema.names:
            raise InvalidArgumentError(
                f"label column {label!r} is not among {', '.join(schema.names)}: "
                "name the label column with label=..."
            )
        dense: list[str] = []
        categorical: dict[str, Category] = {}
        for column in schema:
            if column.name == label:
                continue
            if pa.types.is_floating(column.type):
                dense.append(column.name)
            elif columns.is_categorical(column.type):
                holds = columns.kind_of(column.type)
                categorical[column.name] = Category(buckets, holds=holds)
            elif is_list(column.type) and columns.is_categorical(column.type.value_type):
                holds = columns.kind_of(column.type)
                categorical[column.name] = Category(buckets, pooling="mean", holds=holds)
            else:
                raise InvalidArgumentError(
                    f"column {column.name!r} has type {column.type}, which is not a feature: "
                    "cast it to numbers or strings, or select the other columns"
                )
        return cls(dense=dense, categorical=categorical, label=label)

    @classmethod
    def of(cls, source: Any, **options: Any) -> FeatureSchema:
        """Returns a schema unchanged, or one for a ``pa.Schema``, a table, Dataset or DataFrame."""
        if isinstance(source, FeatureSchema):
            return source
        source = as_table(source)
        schema = source if isinstance(source, pa.Schema) else getattr(source, "schema", None)
        if isinstance(schema, pa.Schema):
            return cls.from_arrow(schema, **options)
        raise InvalidArgumentError(
            "expected a FeatureSchema, pyarrow.Schema, DataFrame or object with .schema, got "
            f"{type(source).__name__}"
        )

    def lacks_label(self, batch: Any) -> DataError:
        """Returns the error for a batch that lacks the label column although it is needed."""
        names = getattr(getattr(batch, "schema", None), "names", None)
        if isinstance(batch, Mapping):
            names = list(batch)
        has = "" if names is None else f"; it has {', '.join(names)}"
        return DataError(
            f"the data has no label column {self.label!r}{has}: name the right one by "
            "FeatureSchema(label=...)"
        )

    def encode(
        self, batch: Any, *, labelled: bool = True, read_labels: ReadLabels = columns.labels
    ) -> Features:
        """Encodes a batch: a record batch, table, DataFrame or mapping of arrays.

        A batch without the label column is encoded without labels; with ``labelled=False`` every
        batch is, and the label column is not read. ``read_labels`` makes labels of that column's
        name and values; by default they must be 0 and 1. DataError if a row cannot be used, naming
        the column and the value; InvalidArgumentError for a missing column.
        """
        named = list(batch) if isinstance(batch, Mapping) else None
        label = () if self.label is None or not labelled else (self.label,)
        needed = list(self._columns)
        batch = as_batch(batch, {*needed, *label})
        position = {name: k for k, name in enumerate(batch.schema.names)}
        missing = [name for name in needed if name not in position]
        if missing:
            has = ", ".join(named or position) or "no column"
            raise InvalidArgumentError(
                f"the batch lacks {', '.join(missing)}; it has {has}: let the data yield it, or "
                "leave it out of the FeatureSchema"
            )
        dense = np.empty((batch.num_rows, len(self.dense)), dtype=np.float32)
        for k, name in enumerate(self.dense):
            mean, std = self.normalization.get(name, (0.0, 1.0))
            columns.dense_into(name, batch.column(position[name]), mean, std, dense, k)
        ids, bags = self._categorical(batch, position)
        labels = None
        for name in label:
            if name in position:
                labels = read_labels(name, batch.column(position[name]))
        return Features(dense, ids, labels, bags, self.is_online)

    @property
    def _columns(self) -> Iterator[str]:
        """The names of all columns that a batch must have."""
        yield from self.dense
        for name, category in self.categorical.items():
            yield name
            if category.weights is not None:
                yield category.weights

    def _categorical(
        self, batch: pa.RecordBatch, position: Mapping[str, int]
    ) -> tuple[NDArray[np.int64], Bags | None]:
        single = sum([category.pooling is None for category in self.categorical.values()])
        ids = np.empty((batch.num_rows, single), dtype=np.int64)
        bags: list[Bags] = []
        base = 0
        for field_number, (name, category) in enumerate(self.categorical.items()):
            column = batch.column(position[name])
            if category.pooling is None:
                category.ids_into(name, column, base, ids, field_number - len(bags))
            else:
                of = category.weights
                weights = None if of is None else batch.column(position[of])
                bags.append(category.bags(name, column, weights, base, field_number))
            base += category.rows
        return ids, joined(bags)

    def adapted(
        self,
        data: Any,
        columns: Sequence[str] | None = None,
        *,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
    ) -> FeatureSchema:
        """Returns the schema with vocabularies that are learnt from one pass over ``data``.

        ``data``: record batches, a table, a Dataset or a dict of arrays. ``columns``: the
        categorical columns that get a vocabulary, by default all that are not online. A vocabulary
        has at most ``max_tokens`` ids: ``num_oov_indices`` for unknown values, and the others for
        the most frequent values.
        """
        check_optional(0, max_tokens=max_tokens, num_oov_indices=num_oov_indices)
        plain = [name for name, category in self.categorical.items() if not category.online]
        names = plain if columns is None else list(columns)
        wrong = [name for name in names if name not in self.categorical]
        if wrong:
            raise InvalidArgumentError(f"{', '.join(wrong)}: no categorical columns")
        counts = {name: TokenCounts(name) for name in names}
        for batch in batches_of(data, names):
            for name in names:
                counts[name].add(batch.column(name))
        limit = None if max_tokens is None else max(0, max_tokens - num_oov_indices)
        learnt = {
            name: replace(
                self.categorical[name],
                buckets=0,
                vocabulary=Vocabulary(found.most_common(limit), num_oov_indices),
            )
            for name, found in counts.items()
        }
        return replace(self, categorical={**self.categorical, **learnt})

    def normalized(self, data: Any) -> FeatureSchema:
        """Returns the schema with mean and standard deviation of every dense column in ``data``.

        Reads ``data``, of the types that :meth:`adapted` takes, in one pass.
        """
        moments = [Moments() for _ in self.dense]
        for batch in batches_of(data, self.dense):
            for name, seen in zip(self.dense, moments, strict=True):
                seen.add(columns.finite_values(name, batch.column(name)))
        pairs = [(seen.mean, seen.deviation()) for seen in moments]
        return replace(self, normalization=dict(zip(self.dense, pairs, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that checkpoints save."""
        return {
            "dense": list(self.dense),
            "categorical": [[n, *c.to_json()] for n, c in self.categorical.items()],
            "label": self.label,
            "normalization": {n: [float(m), float(s)] for n, (m, s) in self.normalization.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> FeatureSchema:
        """Returns the schema that :meth:`to_json` encoded; DataError for anything else."""
        try:
            return cls(
                dense=value["dense"],
                categorical={n: Category.from_json(*c) for n, *c in value["categorical"]},
                label=value["label"],
                normalization={n: (m, s) for n, (m, s) in value["normalization"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a feature schema: {value!r} ({error})") from error

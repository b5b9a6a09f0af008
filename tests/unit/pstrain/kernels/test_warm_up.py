"""After the warm-up a step compiles nothing."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.dispatcher import Dispatcher

from pstrain import initializers, kernels
from pstrain.compiling import balanced_groups
from pstrain.features.schema import Category, FeatureSchema
from pstrain.gradients.tape import GradientTape
from pstrain.kernels.keys import NO_KEY
from pstrain.metrics import AUC, GAUC, NDCG, Accuracy, LogLoss
from pstrain.models import WideDeep
from pstrain.optimizers import Adagrad
from pstrain.paramserver.shard import Shard
from pstrain.variables.scope import local_parameters
from tests.unit.pstrain.paramserver.shard_cases import ids, make_spec


def _compiled() -> dict[str, list[Any]]:
    found = {}
    for module in pkgutil.iter_modules(kernels.__path__):
        for name, value in vars(importlib.import_module(f"pstrain.kernels.{module.name}")).items():
            if isinstance(value, Dispatcher) and not name.startswith("_"):
                found[f"{module.name}.{name}"] = list(value.signatures)
    return found


def test_kernel_modules_are_grouped_evenly_by_file_size() -> None:
    names = kernels.modules()
    groups = balanced_groups(names, 3)
    assert sorted(name for group in groups for name in group) == sorted(names)
    (folder,) = kernels.__path__
    lengths = [
        sum((pathlib.Path(folder) / f"{name}.py").stat().st_size for name in group)
        for group in groups
    ]
    assert max(lengths) < 1.3 * min(lengths)
    assert sorted(balanced_groups(names[:2], 8)) == [[name] for name in sorted(names[:2])]


def test_step_after_warm_up_compiles_nothing() -> None:
    names = kernels.modules()
    assert {"hashing", "embedding", "network"} <= set(names)
    for name in names:
        kernels.warm_up(name)
    before = _compiled()
    random = np.random.default_rng(0)
    batch = pa.RecordBatch.from_pydict(
        {
            "x": random.normal(size=50),
            "c": random.integers(0, 9, 50),
            "s": [str(k % 5) for k in range(50)],
            "user": random.integers(0, 30, 50),
            "word": [str(k % 7) for k in range(50)],
            "label": random.integers(0, 2, 50),
        }
    )
    categories = {"c": Category(9, hashed=False), "s": Category(20)}
    for name in ("user", "word"):
        categories[name] = Category(20, online=True, min_count=2)
    with local_parameters():
        model = WideDeep(FeatureSchema(dense=["x"], categorical=categories), dim=4)
        optimizer = Adagrad(0.1)
        for rows in (50, 17):
            with GradientTape() as tape:
                loss = model.loss(batch.slice(0, rows))
            optimizer.apply_gradients(tape.gradients(loss))
        probabilities = model.predict_on_batch(batch)
        for metric in (AUC(), Accuracy(), LogLoss()):
            labels = batch.column("label").to_numpy()
            metric.update_state(labels, probabilities)
            metric.update_state(labels, probabilities, np.ones(len(labels)))
        for grouped, weights in ((GAUC(group="c"), labels), (NDCG(3, group="c"), None)):
            grouped.update_state(labels, probabilities, groups=batch.column("s"))
            grouped.result()
            grouped.update_state(labels, probabilities, weights, batch.column("c"))
            grouped.result()
    assert _compiled() == before


def test_eviction_after_warm_up_compiles_nothing() -> None:
    for name in kernels.modules():
        kernels.warm_up(name)
    before = _compiled()
    uniform, normal = initializers.uniform(), initializers.normal()
    no_keys = initializers.constant(NO_KEY)
    for received in (False, True):
        rows, keys, bounds = ids(1), ids(5), ids(1, 9)
        for array in (rows, keys, bounds):
            array.flags.writeable = not received
        for initializer in (uniform, normal):
            Shard(make_spec(9, initializer=initializer), 0).reset_rows(rows)
        mapping = Shard(make_spec(9, 1, dtype="int64", shape=(9,), initializer=no_keys), 0)
        mapping.slab[1] = 5
        mapping.count_idle(0, 9)
        mapping.idle_rows(0, 9, 0, 1)
        mapping.remove_keys(rows, keys, bounds, 1)
        assert mapping.count_keys() == 0
    assert _compiled() == before

"""Models with online columns, which give rows to values that no vocabulary lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pstrain as ps
from pstrain.checkpoints.objects import read_config
from pstrain.errors import InvalidArgumentError
from pstrain.kernels.keys import NO_KEY
from pstrain.variables.scope import local_parameters

ROWS = 600
FAR = 10**15


def data(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(0)
    user = FAR * (1 + random.integers(0, 40, rows))
    return pa.table(
        {
            "user": pa.array(user, mask=random.random(rows) < 0.05),
            "word": [f"w{k}" for k in random.integers(0, 20, rows)],
            "seen": [list(FAR + random.integers(0, 30, k % 4)) for k in range(rows)],
            "plain": random.integers(0, 9, rows),
            "x": random.normal(size=rows),
            "label": (user // FAR) % 2,
        }
    )


def schema(**options: Any) -> ps.FeatureSchema:
    return ps.FeatureSchema(
        dense=["x"],
        categorical={
            "plain": ps.Category(9, hashed=False),
            "user": ps.Category(100, online=True, **options),
            "seen": ps.Category(50, online=True, pooling="mean"),
            "word": ps.Category(30, online=True),
        },
    )


def made(kind: Any = ps.models.WideDeep, **options: Any) -> Any:
    with local_parameters():
        model = kind(schema(**options))
        model.compile(ps.optimizers.Adagrad(0.1), metrics=[ps.metrics.AUC()])
    return model


@pytest.mark.parametrize(
    "kind",
    ["LogisticRegression", "FactorizationMachine", "WideDeep", "DeepFM", "DLRM", "DCNv2"],
)
def test_every_model_learns_from_online_columns(kind: str) -> None:
    model = made(getattr(ps.models, kind))
    before = model.evaluate(data(), verbose=0)
    assert model.online.stats()["used"] == 0
    model.fit(data(), epochs=12, batch_size=50, verbose=0)
    assert model.online.stats() == {"capacity": 177, "used": 90, "refused": 0}
    after = model.evaluate(data(), verbose=0)
    assert after["loss"] < before["loss"]
    # DLRM has only products of embeddings, which learn this slowly, from hashed columns too.
    assert kind == "DLRM" or after["auc"] > 0.9 > before["auc"]
    assert len(model.predict(data())) == ROWS


def test_each_online_column_has_separate_row_range() -> None:
    model = made()
    batch = data().combine_chunks().to_batches()[0]
    features = model.encode(batch)
    assert features.has_keys
    placed = model.online.with_rows(features, training=True)
    assert not placed.has_keys
    plain, user, word = placed.ids.T
    np.testing.assert_array_equal(plain, batch.column("plain").to_numpy())
    nulls = batch.column("user").is_null().to_numpy(zero_copy_only=False)
    first = 10
    assert (user[nulls] == first + 100).all()
    assert ((user[~nulls] > first) & (user[~nulls] < first + 100)).all()
    assert ((word > 162) & (word < 192)).all()
    seen = placed.bags.ids
    assert ((seen > 111) & (seen < 161)).all()
    for found, column in ((user, "user"), (word, "word"), (seen, "seen")):
        values = batch.column(column)
        values = values.flatten() if column == "seen" else values
        pairs = {*zip(values.to_pylist(), found.tolist(), strict=True)}
        assert len(pairs) == len({row for _, row in pairs}) == len({value for value, _ in pairs})
    # The encoded features are unchanged.
    assert features.has_keys
    np.testing.assert_array_equal(features.ids[~nulls, 1], values_of(batch, "user")[~nulls])


def values_of(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch.column(name).fill_null(0).to_numpy()


def test_keys_not_yet_mapped_to_rows_are_refused() -> None:
    model = made()
    features = model.encode(data().combine_chunks().to_batches()[0])
    with pytest.raises(InvalidArgumentError, match="which are not rows yet"):
        model.requests(features)
    assert model.requests(model.online.with_rows(features))


def test_step_looks_up_rows_again_when_restore_changes_key_mapping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made()
    batch = data().combine_chunks().to_batches()[0]
    model.fit(data(), batch_size=100, verbose=0)
    fetch, keys = model.parameters.fetch, model.online.variables[0].numpy()

    def fetch_after_a_restore(requests: Any) -> Any:
        monkeypatch.undo()
        model.online.variables[0].assign(np.full_like(keys, NO_KEY))
        return fetch(requests)

    monkeypatch.setattr(model.parameters, "fetch", fetch_after_a_restore)
    found = model.predict_on_batch(batch)
    np.testing.assert_array_equal(found, model.predict_on_batch(batch))


def test_unknown_values_share_first_row_of_their_column() -> None:
    model = made()
    features = model.encode(data().combine_chunks().to_batches()[0].slice(0, 50))
    placed = model.online.with_rows(features)
    assert set(placed.ids[:, 2]) == {162}
    assert set(placed.ids[:, 1]) == {10, 110}
    assert set(placed.bags.ids) == {111}


def test_values_below_min_count_get_no_row() -> None:
    model = made(min_count=1_000)
    model.fit(data(), batch_size=100, verbose=0)
    assert model.online.stats()["used"] == 50


def test_key_mapping_is_saved_with_its_model(tmp_path: Any) -> None:
    model = made()
    model.fit(data(), batch_size=100, verbose=0)
    expected = model.predict(data())
    path = ps.Checkpoint(model=model).save(tmp_path)
    config = read_config(path)
    with local_parameters():
        again = ps.models.from_config(config)
    assert again.schema == model.schema
    again.load_weights(path)
    np.testing.assert_array_equal(again.predict(data()), expected)
    with local_parameters():
        third = ps.models.from_config(config)
    third.set_weights(model.get_weights())
    np.testing.assert_array_equal(third.predict(data()), expected)


def test_adapt_learns_no_vocabulary_for_online_columns() -> None:
    adapted = schema().adapted(data())
    assert adapted.categorical["plain"].vocabulary is not None
    assert adapted.categorical["user"] == schema().categorical["user"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": 9, "online": True, "hashed": False}, "leave out vocabulary and hashed"),
        ({"vocabulary": [1, 2], "online": True}, "leave out vocabulary and hashed"),
        ({"buckets": 9, "min_count": 2}, "give online=True too"),
        ({"buckets": 9, "online": True, "min_count": 0}, "min_count must be"),
        ({"buckets": 1, "online": True}, "2 buckets or more"),
    ],
)
def test_invalid_online_category_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ps.Category(**options)

"""Models with online columns, which give rows to values that no vocabulary lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pstrain as ps
from pstrain.checkpoints.objects import read_config
from pstrain.errors import InvalidArgumentError
from pstrain.kernels.keys import NO_KEY, VACATED
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


@pytest.mark.parametrize(
    "kind",
    ["LogisticRegression", "FactorizationMachine", "WideDeep", "DeepFM", "DLRM", "DCNv2"],
)
def test_every_model_resets_the_rows_of_evicted_keys(kind: str) -> None:
    model, fresh = made(getattr(ps.models, kind)), made(getattr(ps.models, kind))
    model.fit(data(), batch_size=50, verbose=0)
    features = model.encode(data().combine_chunks().to_batches()[0])
    before = model.online.with_rows(features)
    values, initial = (each.layers[0].variables[0].numpy for each in (model, fresh))
    trained = values()
    assert model.evict({"user": 10, "word": 0}) == 50
    assert model.online.stats()["used"] == 40
    after = model.online.with_rows(features)
    np.testing.assert_array_equal(after.bags.ids, before.bags.ids)
    np.testing.assert_array_equal(after.ids[:, 0], before.ids[:, 0])
    assert set(after.ids[:, 2]) == {162}
    left = np.unique([*after.ids.reshape(-1), *after.bags.ids])
    gone = np.setdiff1d([*before.ids.reshape(-1)], left)
    assert len(gone) == 50
    rest = np.setdiff1d(np.arange(len(trained)), gone)
    np.testing.assert_array_equal(values()[rest], trained[rest])
    np.testing.assert_array_equal(values()[gone], initial()[gone])
    assert (trained[gone] != initial()[gone]).any(axis=1).all()


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (10, "keep=10 for 3 online columns: give a dict of numbers by column, of user, seen, word"),
        ({"plain": 5}, "column 'plain' is not online, .* online are user, seen, word"),
        ({"usr": 5}, "column 'usr' is not online"),
        ({"user": -1}, "column 'user': keep must be a non-negative integer, got -1"),
        ({"user": 100}, r"column 'user': keep must be below the capacity \(100\)"),
        ({"user": "9"}, "column 'user': keep must be a non-negative integer, got '9'"),
    ],
)
def test_unusable_number_of_keys_to_keep_is_refused(keep: Any, message: str) -> None:
    model = made()
    with pytest.raises(InvalidArgumentError, match=message):
        model.evict(keep)
    with pytest.raises(InvalidArgumentError, match=message):
        model.fit(data(), callbacks=[ps.callbacks.Evict(keep)], verbose=0)
    assert model.online.stats()["used"] == 0


def test_model_without_online_columns_cannot_evict() -> None:
    with local_parameters():
        model = ps.models.WideDeep(ps.FeatureSchema(categorical={"plain": ps.Category(9)}))
    model.compile(ps.optimizers.SGD(0.1))
    with pytest.raises(InvalidArgumentError, match="WideDeep has no online column"):
        model.evict(5)
    with pytest.raises(InvalidArgumentError, match="WideDeep has no online column"):
        model.fit({"plain": [1], "label": [1]}, callbacks=[ps.callbacks.Evict(5)], verbose=0)


def test_model_whose_layers_look_up_no_table_cannot_evict() -> None:
    model = made()
    model.layers = model.layers[1:]
    with pytest.raises(InvalidArgumentError, match="no layer looks up rows of the table"):
        model.evict({"user": 5})


def model_of_users() -> Any:
    with local_parameters():
        model = ps.models.WideDeep(
            ps.FeatureSchema(categorical={"user": ps.Category(50, online=True)}), hidden=(4,)
        )
        model.compile(ps.optimizers.Adagrad(0.1))
    return model


def test_keys_from_before_a_fit_are_evicted_first() -> None:
    model, evict = model_of_users(), ps.callbacks.Evict(20, every_steps=2)
    options: dict[str, Any] = {"batch_size": 20, "steps_per_execution": 1, "verbose": 0}
    for first, callbacks in ((0, []), (100, [evict])):
        columns = {"user": first + np.arange(40) // 2, "label": np.arange(40) % 2}
        model.fit(columns, callbacks=callbacks, **options)
    assert evict.evicted == 20
    keys = model.online.variables[0].numpy()
    assert sorted(keys[keys > VACATED]) == list(range(100, 120))


def test_fit_evicts_every_so_many_steps() -> None:
    model = model_of_users()
    columns = {"user": np.arange(400) // 2, "label": np.arange(400) % 2}
    used = []

    class Watch(ps.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
            used.append(model.online.stats()["used"])

    evict = ps.callbacks.Evict(20, every_steps=2)
    options: dict[str, Any] = {"batch_size": 20, "steps_per_execution": 1, "verbose": 0}
    model.fit(columns, callbacks=[evict, Watch()], **options)
    # Each step has 10 new keys.
    assert used == [10, 20, 30, 20] + [30, 20] * 8
    assert evict.evicted == 200 - 20
    state = evict.state_dict()
    evict.load_state_dict({})
    assert evict.state_dict() == {"steps": 0, "evicted": 0}
    evict.load_state_dict(state)
    assert evict.evicted == 180
    with pytest.raises(InvalidArgumentError, match="every_steps must be a positive integer"):
        ps.callbacks.Evict(20, every_steps=0)


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

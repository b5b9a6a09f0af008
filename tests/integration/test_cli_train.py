"""``pstrain train``, ``evaluate`` and ``predict``, as a user calls them, on good and bad files."""

from __future__ import annotations

import decimal
import errno
import importlib.metadata
import json
import pathlib
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.__main__ import main
from pstrain.tabular import program
from pstrain.tabular.preparation import Preparation

ROWS = 6_000


def clicks(rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    site, price = rng.integers(0, 40, rows), rng.normal(size=rows)
    score = 2.0 * (site % 2) + price + 0.5 * rng.normal(size=rows)
    return pa.table(
        {
            "clicked": (score > 1.0).astype(np.int64),
            "site": [f"site{value}" for value in site],
            "price": price,
            "hour": rng.integers(0, 24, rows),
            "user_id": rng.integers(0, 5_000, rows),
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("clicks")
    table = clicks()
    for index in range(3):
        part = table.slice(index * ROWS // 3, ROWS // 3)
        pq.write_table(part, folder / f"part-{index}.parquet", row_group_size=500)
    pyarrow.csv.write_csv(clicks(1_000, seed=1), folder / "new.csv")
    pq.write_table(clicks(1_000, seed=1), folder / "new.pq")
    return folder


@pytest.fixture(scope="module")
def model(files: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("model") / "out"
    assert main(local(files / "part-*.parquet", out, "--batch-size", "64")) == 0
    return out


def local(data: object, out: object, *options: str, label: str = "clicked") -> list[str]:
    return ["train", "--data", str(data), "--label", label, "--out", str(out), "--local", *options]


def closing_line(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return dict(json.loads(out))


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Runs a command that must end with exit code 2; returns the first line of its error."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[0].startswith(f"pstrain {arguments[0]}: ")
    return error[0]


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint_names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.glob("ckpt-*"))


def test_train_on_cluster_learns_and_holds_out_validation_rows(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--data", str(files / "part-*.parquet"), "--label", "clicked"]
    arguments += ["--out", str(tmp_path), "--validation", "0.2", "--batch-size", "128", "--json"]
    assert main([*arguments, "--workers", "1", "--ps", "2", "--data-workers", "1"]) == 0
    result = closing_line(capsys)
    assert result["rows_train"] + result["rows_validation"] == ROWS
    assert result["rows_validation"] / ROWS == pytest.approx(0.2, abs=0.03)
    assert result["validation_auc"] > 0.9
    assert pathlib.Path(str(result["checkpoint"])).is_dir()
    assert not list(tmp_path.rglob("*.pkl"))


def test_evaluate_scores_unseen_parquet_and_csv_alike(
    files: pathlib.Path, model: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = []
    for name in ("new.pq", "new.csv"):
        capsys.readouterr()
        assert main(["evaluate", str(model), "--data", str(files / name), "--json"]) == 0
        scores.append(closing_line(capsys))
    assert scores[0]["rows"] == 1_000
    assert scores[0]["auc"] > 0.9
    assert scores[0] == scores[1]


@pytest.mark.parametrize("column", ["site", "hour", "user_id"])
def test_evaluate_ranks_rows_of_each_value_of_a_column(
    files: pathlib.Path,
    model: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
) -> None:
    output = tmp_path / "predictions.parquet"
    data = [str(model), "--data", str(files / "new.csv")]
    assert main(["predict", *data, "--output", str(output)]) == 0
    rows = pq.read_table(output)
    assert main(["evaluate", *data, "--group", column]) == 0
    assert re.search(r"GAUC +0\.\d{4}\s+NDCG at 10 +0\.\d{4}", capsys.readouterr().out)
    assert main(["evaluate", *data, "--group", column, "--json"]) == 0
    found = closing_line(capsys)
    for metric in (ps.metrics.GAUC(group=column), ps.metrics.NDCG(10, group=column)):
        metric.update_state(rows["clicked"], rows["prediction"], groups=rows[column])
        assert found[metric.name] == pytest.approx(metric.result(), abs=1e-5)
    assert "no column 'memo'" in fails(capsys, ["evaluate", *data, "--group", "memo"])


def test_load_model_of_a_trained_folder_takes_rows_as_they_are_in_files(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output, rows = tmp_path / "scores.parquet", clicks(1_000, seed=1)
    data = ["--data", str(files / "new.pq")]
    assert main(["predict", str(model), *data, "--output", str(output)]) == 0
    written = pq.read_table(output)["prediction"].to_numpy()
    for path in (model, str(next(model.glob("ckpt-*")))):
        loaded = ps.models.load_model(path)
        np.testing.assert_array_equal(loaded.predict_on_batch(rows), written)
        np.testing.assert_allclose(loaded.predict(rows, batch_size=300), written, rtol=1e-5)
    dataset = ds.Dataset.from_parquet(files / "new.pq").batch(256)
    np.testing.assert_allclose(loaded.predict(dataset), written, rtol=1e-5)
    # A label that is not known yet, and columns that the model does not read.
    unlabelled = rows.set_column(0, "clicked", pa.array(["?"] * len(rows)))
    np.testing.assert_array_equal(loaded.predict_on_batch(unlabelled), written)
    row = {name: [value] for name, value in rows.slice(7, 1).to_pylist()[0].items()}
    np.testing.assert_allclose(loaded.predict_on_batch(row), written[7:8], rtol=1e-5)


def test_load_model_of_a_trained_folder_evaluates_as_the_command_does(
    files: pathlib.Path, model: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(model), "--data", str(files / "new.pq"), "--json"]) == 0
    told = closing_line(capsys)
    loaded = ps.models.load_model(model)
    assert "label 'clicked'" in repr(loaded)
    loaded.model.compile(metrics=["auc"])
    scores = loaded.evaluate(clicks(1_000, seed=1), verbose=0)
    assert scores["auc"] == pytest.approx(told["auc"], abs=1e-4)
    assert scores["loss"] == pytest.approx(told["logloss"], abs=1e-4)


def test_load_model_of_a_trained_folder_names_what_rows_lack(model: pathlib.Path) -> None:
    loaded = ps.models.load_model(model)
    for ask in (loaded.predict_on_batch, loaded.predict):
        with pytest.raises(
            ps.errors.InvalidArgumentError, match=r"rows lack price, .* have .*site"
        ):
            ask(clicks(10).drop_columns("price"))
    with pytest.raises(ps.errors.InvalidArgumentError, match=r"takes a Dataset, .* got function"):
        loaded.predict(lambda: None)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_writes_predictions_next_to_the_rows(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path, ending: str
) -> None:
    output = tmp_path / f"predictions.{ending}"
    arguments = ["predict", str(model), "--data", str(files / "new.pq"), "--output", str(output)]
    assert main(arguments) == 0
    read = pq.read_table if ending == "parquet" else pyarrow.csv.read_csv
    table, source = read(output), clicks(1_000, seed=1)
    assert table["user_id"].to_pylist() == source["user_id"].to_pylist()
    chances, clicked = table["prediction"].to_numpy(), source["clicked"].to_numpy()
    assert ((chances >= 0) & (chances <= 1)).all()
    assert chances[clicked == 1].mean() > chances[clicked == 0].mean() + 0.3
    assert list(tmp_path.iterdir()) == [output]


def test_predict_refuses_to_overwrite_its_input(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    pq.write_table(clicks(10), rows)
    arguments = ["predict", str(model), "--data", str(rows), "--only", "--output", str(rows)]
    assert "is one of the files of --data" in fails(capsys, arguments)
    assert pq.read_table(rows).equals(clicks(10))


def test_predict_ignores_labels_of_another_type(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    rows = tmp_path / "rows.csv"
    unknown = clicks(10).set_column(0, "clicked", pa.array(["unknown"] * 10))
    pyarrow.csv.write_csv(unknown, rows)
    output = tmp_path / "scores.csv"
    assert main(["predict", str(model), "--data", str(rows), "--output", str(output)]) == 0
    assert pyarrow.csv.read_csv(output)["clicked"].to_pylist() == ["unknown"] * 10


def test_predict_takes_rows_without_label(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    unlabelled = tmp_path / "rows.csv"
    pyarrow.csv.write_csv(clicks(100, seed=1).drop_columns(["clicked"]), unlabelled)
    arguments = ["predict", str(model), "--data", str(unlabelled), "--only", "--output"]
    for name in ("once.parquet", "again.parquet"):
        assert main([*arguments, str(tmp_path / name)]) == 0
    once, again = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("once", "again"))
    assert once.column_names == ["prediction"]
    assert len(once) == 100
    assert once.equals(again)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_predict_and_evaluate_refuse_files_without_rows(
    model: pathlib.Path, tmp_path: pathlib.Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write = pyarrow.csv.write_csv if name.endswith(".csv") else pq.write_table
    write(clicks(10).slice(0, 0), tmp_path / name)
    data, output = ["--data", str(tmp_path / name)], tmp_path / "predictions.csv"
    error = fails(capsys, ["predict", str(model), *data, "--output", str(output)])
    assert f"{name}' holds no rows" in error
    assert not output.exists()
    capsys.readouterr()
    assert main(["evaluate", str(model), *data]) == 2
    assert "no rows" in capsys.readouterr().err


def test_train_takes_csv_with_text_labels_and_one_number(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = clicks(2_000).select(["clicked", "price"])
    answers = pa.array(np.where(table["clicked"].to_numpy() == 1, "yes", "no"))
    pyarrow.csv.write_csv(table.set_column(0, "clicked", answers), tmp_path / "clicks.csv")
    data = tmp_path / "clicks.csv"
    options = ["--validation-data", str(data), "--optimizer", "sgd", "--json"]
    assert main(local(data, tmp_path / "out", "--batch-size", "32", *options)) == 0
    result = closing_line(capsys)
    assert result["rows_train"] == result["rows_validation"] == 2_000
    assert result["validation_auc"] > 0.6


def test_train_overwrites_a_model_only_with_overwrite_option(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = files / "part-*.parquet", tmp_path / "out"
    assert main(local(data, out, "--batch-size", "512")) == 0
    before = contents(out)
    assert "--overwrite" in fails(capsys, local(data, out))
    assert contents(out) == before
    assert main(local(data, out, "--batch-size", "512", "--seed", "1", "--overwrite")) == 0
    assert checkpoint_names(out) == ["ckpt-2"]
    assert main(["evaluate", str(out), "--data", str(files / "new.pq")]) == 0


def test_train_does_not_touch_checkpoints_of_other_programs(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ps.Checkpoint(mine=ps.Variable([1.0, 2.0])).save(tmp_path)
    before = contents(tmp_path)
    error = fails(capsys, local(files / "part-*.parquet", tmp_path))
    assert "--overwrite" in error
    assert "--out" in error
    assert contents(tmp_path) == before


def test_failed_train_keeps_the_model_it_was_to_replace(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = files / "part-*.parquet", tmp_path / "out"
    assert main(local(data, out, "--batch-size", "512")) == 0
    before = contents(out)
    unknown = clicks(10).set_column(0, "clicked", pa.array([2] * 10))
    pq.write_table(unknown, tmp_path / "unknown.parquet")
    options = ["--validation-data", str(tmp_path / "unknown.parquet"), "--overwrite"]
    capsys.readouterr()
    assert main(local(data, out, *options, "--batch-size", "512")) == 2
    assert "label column 'clicked' must hold the two values 0 and 1" in capsys.readouterr().err
    assert contents(out) == before


def test_interrupted_train_leaves_no_output_folder(
    files: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ps.models.WideDeep, "fit", interrupted)
    assert main(local(files / "part-*.parquet", tmp_path / "models" / "out")) == 130
    assert list(tmp_path.iterdir()) == []


def test_train_that_cannot_save_its_preparation_keeps_the_old_model(
    files: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = files / "part-*.parquet", tmp_path / "out"
    assert main(local(data, out, "--batch-size", "512")) == 0
    before = contents(out)

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Preparation, "save", full)
    assert main(local(data, out, "--overwrite", "--batch-size", "512")) == 1
    assert contents(out) == before


@pytest.mark.parametrize(
    ("data", "options", "told"),
    [
        ("*.nothing", [], "no file matches"),
        ("empty.parquet", [], "no rows"),
        ("damaged.parquet", [], "damaged.parquet"),
        ("clicks.parquet", ["--label", "klicked"], "no column 'klicked'.*clicked, site, price"),
        (
            "clicks.parquet",
            ["--label", "hour"],
            "column 'hour' must hold two values, found 24.*--loss mse",
        ),
        (
            "clicks.parquet",
            ["--label", "site", "--loss", "mse"],
            "column 'site' holds string",
        ),
        ("clicks.parquet", ["--dense", "prize"], "--dense names 'prize'"),
        ("clicks.parquet", ["--out", "empty.parquet"], "is a file"),
        ("clicks.parquet", ["--validation-data", "narrow.parquet"], "no column 'price'"),
        ("clicks.parquet", ["--validation", "0.0000001"], "--validation 1e-07 leaves no rows of"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_train_refuses_unusable_files_columns_and_places(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], data: str, options: list[str], told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    pq.write_table(clicks(1_000), "clicks.parquet")
    pq.write_table(clicks(10).slice(0, 0), "empty.parquet")
    pq.write_table(clicks(10).drop_columns(["price"]), "narrow.parquet")
    pathlib.Path("damaged.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    before = contents(tmp_path)
    assert re.search(told, fails(capsys, [*local(data, "out"), *options]))
    assert contents(tmp_path) == before


def test_train_on_csv_whose_type_changes_halfway_asks_for_types_option(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["clicked,price", *(f"{row % 2},{row}.5" for row in range(200_000)), "1,cheap"]
    (tmp_path / "clicks.csv").write_text("\n".join(lines))
    error = fails(capsys, local(tmp_path / "clicks.csv", tmp_path / "out"))
    assert "clicks.csv" in error
    assert "price" in error
    assert "--types COLUMN=TYPE" in error
    types = ["--types", "price=string", "--ignore", "price"]
    assert "no column is left" in fails(
        capsys, local(tmp_path / "clicks.csv", tmp_path / "out", *types)
    )


def test_column_types_given_to_train_are_saved_with_the_model(tmp_path: pathlib.Path) -> None:
    lines = ["clicked,zip,note", *(f"{row % 2},0{row % 7},{row}" for row in range(500))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    options = ["--types", "zip=string,note=string", "--ignore", "note"]
    assert main(local(tmp_path / "a.csv", tmp_path / "out", *options)) == 0
    kept = Preparation.load(tmp_path / "out").types
    assert kept == {"clicked": "int64", "zip": "string", "note": "string"}


def test_rows_of_weight_zero_do_not_train_the_model(tmp_path: pathlib.Path) -> None:
    # One row of three has weight 0, and a label that contradicts the others.
    rows = [(row % 5, row % 3) for row in range(600)]
    lines = ["y|x|w", *(f"{(x < 2) ^ (w > 0):d}|a{x}|{w}" for x, w in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    out, read = tmp_path / "out", ["--data", str(tmp_path / "a.csv"), "--delimiter", "|"]
    options = ["--weights", "w", "--batch-size", "32", "--epochs", "5", *read[2:]]
    assert main(local(read[1], out, *options, label="y")) == 0
    assert main(["evaluate", str(out), *read]) == 0
    assert main(["predict", str(out), *read, "--output", str(tmp_path / "p.parquet")]) == 0
    found = pq.read_table(tmp_path / "p.parquet")["prediction"]
    assert found[4].as_py() - found[0].as_py() > 0.5


def test_predict_and_evaluate_take_types_of_columns_the_model_does_not_read(
    model: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = clicks(100).append_column("note", [[f"00{row}" for row in range(100)]])
    pyarrow.csv.write_csv(noted, tmp_path / "a.csv", pyarrow.csv.WriteOptions(quoting_style="none"))
    read = [str(model), "--data", str(tmp_path / "a.csv"), "--types", "note=string"]
    assert main(["predict", *read, "--output", str(tmp_path / "p.parquet")]) == 0
    assert pq.read_table(tmp_path / "p.parquet")["note"].equals(noted["note"])
    assert main(["evaluate", *read]) == 0
    read[-1] = "memo=string"
    assert "no column 'memo'" in fails(capsys, ["evaluate", *read])


def test_predict_names_output_that_cannot_be_written(
    model: pathlib.Path,
    files: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    output = tmp_path / "p.parquet"
    asked = ["predict", str(model), "--data", str(files / "new.pq"), "--output", str(output)]
    assert main(asked) == 1
    assert f"--output {output} cannot be written: [Errno 28]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [["yes", "no"], [1, 2]], ids=["text", "numbers"])
def test_unknown_labels_in_validation_or_evaluation_files_are_refused(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path, labels: list[object],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    table, other = clicks(10), tmp_path / "other.parquet"
    pq.write_table(table.set_column(0, "clicked", pa.array(labels * 5)), other)
    options = ["--validation-data", str(other)]
    error = fails(capsys, local(files / "part-*.parquet", tmp_path / "out", *options))
    again = fails(capsys, ["evaluate", str(model), "--data", str(other)])
    assert not (tmp_path / "out").exists()
    for told in (error, again):
        assert re.search(r"other\.parquet .*rows 0\.\.9: label column 'clicked' .*0 and 1", told)
        assert "Traceback" not in told


def test_folder_without_model_missing_column_or_output_format_is_refused(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = ["--data", str(files / "new.pq")]
    assert "pstrain train" in fails(capsys, ["evaluate", str(tmp_path), *data])
    pq.write_table(clicks(10).drop_columns(["site"]), tmp_path / "less.parquet")
    less = ["--data", str(tmp_path / "less.parquet")]
    output = ["--output", str(tmp_path / "out.csv")]
    assert "no column 'site'" in fails(capsys, ["predict", str(model), *less, *output])
    error = fails(capsys, ["predict", str(model), *data, "--output", str(tmp_path / "out.txt")])
    assert ".parquet or .csv" in error


def flats(rows: int = 4_000, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    city, size = rng.integers(0, 20, rows), rng.gamma(4, 25, rows)
    price = 250_000 + 9_000.0 * city + 1_500 * size + 10_000 * rng.normal(size=rows)
    cents = [decimal.Decimal(f"{value:.2f}") for value in price]
    return pa.table({"price": cents, "city": [f"c{value}" for value in city], "size": size})


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_labels_of_numbers_are_learnt_measured_and_predicted_in_their_unit(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], loss: str
) -> None:
    pq.write_table(flats(), tmp_path / "flats.parquet")
    new = flats(1_000, seed=1)
    pyarrow.csv.write_csv(new, tmp_path / "new.csv")
    out, output = tmp_path / "out", tmp_path / "predicted.parquet"
    wanted = local(tmp_path / "flats.parquet", out, "--loss", loss, "--batch-size", "64")
    assert main([*wanted[:4], "price", *wanted[5:], "--json"]) == 0
    trained = closing_line(capsys)
    assert trained["validation_r2"] > 0.9
    assert not {"validation_auc", "validation_logloss"} & trained.keys()
    data = [str(out), "--data", str(tmp_path / "new.csv")]
    assert main(["evaluate", *data, "--json"]) == 0
    found = closing_line(capsys)
    assert main(["predict", *data, "--output", str(output)]) == 0
    errors = pq.read_table(output)["prediction"].to_numpy() - new["price"].cast("double").to_numpy()
    assert found.keys() == {"r2", "rmse", "mae", "rows"}
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-4)
    assert found["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert found["mae"] < 20_000
    assert main(["evaluate", *data]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"R2 +0\.9\d+\s+root mean squared error +\d{5}\s+mean absolute", shown)
    assert "--group city ranks rows by" in fails(capsys, ["evaluate", *data, "--group", "city"])


def test_model_of_numbers_trains_and_is_scored_on_a_cluster(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(flats(), tmp_path / "flats.parquet")
    wanted = ["train", "--data", str(tmp_path / "flats.parquet"), "--label", "price", "--json"]
    wanted += ["--out", str(tmp_path / "out"), "--loss", "mse", "--batch-size", "64"]
    assert main([*wanted, "--workers", "1", "--ps", "2", "--data-workers", "1"]) == 0
    assert closing_line(capsys)["validation_r2"] > 0.9
    # A model of the same class and loss would take its outputs for prices.
    model = ps.models.load_model(tmp_path / "out").model
    plain = ps.models.WideDeep(model.schema)
    plain.compile(loss="mse")
    with pytest.raises(ps.errors.InvalidArgumentError, match=r"compile\(loss=Standardized\(Mean"):
        ps.Checkpoint(model=plain).restore(tmp_path / "out")


def test_struct_columns_are_not_trained_on_but_copied_beside_predictions(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "rows.parquet", tmp_path / "model"
    rows = clicks(500)
    pq.write_table(rows.append_column("place", pa.array([{"lat": 1.5}] * 500)), data)
    assert main(local(data, out)) == 0
    wanted = ["predict", str(out), "--data", str(data), "--output"]
    error = fails(capsys, [*wanted, str(tmp_path / "scores.csv")])
    assert "columns place hold lists or structs" in error
    assert main([*wanted, str(tmp_path / "scores.parquet")]) == 0
    assert pq.read_table(tmp_path / "scores.parquet")["place"][0].as_py() == {"lat": 1.5}


def test_bytes_that_are_no_text_are_not_written_as_csv(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data, csv = tmp_path / "rows.parquet", tmp_path / "scores.csv"
    rows = pq.read_table(files / "new.pq")
    pq.write_table(rows.append_column("digest", pa.array([b"\xff"] * len(rows))), data)
    wanted = ["predict", str(model), "--data", str(data), "--output"]
    error = fails(capsys, [*wanted, str(csv)])
    assert re.search("scores.csv cannot hold .*UTF8.*--output FILE.parquet, or --only", error)
    assert not csv.exists()
    assert main([*wanted, str(csv), "--only"]) == 0


@pytest.mark.parametrize("where", ["local", "cluster"])
def test_unknown_label_beyond_the_sample_is_refused_with_its_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(program, "SAMPLE_ROWS", 1_000)
    monkeypatch.setattr(program, "_SAMPLE_SHUFFLE_ROWS", 1_000)
    rows = clicks(20_000).set_column(0, "clicked", pa.array([0, 1] * 9_999 + [0, 2]))
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=1_000)
    wanted = local(tmp_path / "rows.parquet", tmp_path / "out", "--workers", "1", "--ps", "1")
    if where == "cluster":
        wanted.remove("--local")
    error = fails(capsys, [*wanted, "--data-workers", "1"])
    assert re.search(r"rows\.parquet .*: label column 'clicked' must hold the two values", error)


def test_evaluate_refuses_model_of_another_program(
    files: pathlib.Path, model: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    class Own(ps.models.LogisticRegression):
        kind = "Torch"

    Preparation.load(model).save(tmp_path)
    ps.Checkpoint(model=Own(ps.FeatureSchema(dense=["x"], label="y"))).save(tmp_path)
    error = fails(capsys, ["evaluate", str(tmp_path), "--data", str(files / "new.pq")])
    assert "unknown model 'Torch'" in error
    assert "call model.evaluate" in error


def test_model_larger_than_memory_is_refused_in_one_line(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = files / "part-*.parquet"
    assert main(local(data, tmp_path / "out", "--dim", "1000000000000")) == 1
    assert capsys.readouterr().err.startswith("pstrain train: not enough memory: ")


def test_list_columns_are_pooled_in_training_and_prediction(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = np.random.default_rng(0)
    tags = [chance.choice(40, chance.integers(0, 5), replace=False).tolist() for _ in range(4_000)]
    table = pa.table({"tags": tags, "clicked": [int(7 in t or 8 in t) for t in tags]})
    data, out = tmp_path / "rows.parquet", tmp_path / "model"
    pq.write_table(table, data)
    options = ("--pooling", "tags=sum", "--model", "logistic_regression", "--learning-rate", "1")
    assert main([*local(data, out, *options), "--json"]) == 0
    assert closing_line(capsys)["validation_auc"] > 0.95
    assert Preparation.load(out).lists == ("tags",)
    wanted = ["predict", str(out), "--data", str(data), "--output"]
    assert "hold lists" in fails(capsys, [*wanted, str(tmp_path / "scores.csv")])
    assert main([*wanted, str(tmp_path / "scores.parquet")]) == 0
    found = pq.read_table(tmp_path / "scores.parquet")
    assert found["tags"].to_pylist() == tags
    assert "tags=most" in fails_at_options(capsys, local(data, out, "--pooling", "tags=most"))


def fails_at_options(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().err


def test_unquoted_glob_is_refused_asking_for_quotes(
    files: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = map(str, sorted(files.glob("part-*.parquet")))
    wanted = ["train", "--data", first, *others, "--label", "clicked"]
    assert "put globs in quotes" in fails_at_options(capsys, wanted)
    assert "quotes" not in fails_at_options(capsys, local(first, tmp_path, "--epoch=s", "--lable"))


def test_missing_text_in_parquet_and_csv_gets_the_same_prediction(tmp_path: pathlib.Path) -> None:
    rows = clicks(500)
    sites = pc.if_else(pc.equal(rows["hour"], 3), pa.scalar(None, pa.string()), rows["site"])
    rows = rows.set_column(1, "site", sites)
    pq.write_table(rows, tmp_path / "rows.parquet")
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    out = tmp_path / "model"
    assert main(local(tmp_path / "rows.parquet", out)) == 0
    found = []
    for name in ("rows.parquet", "rows.csv"):
        output = str(tmp_path / f"of-{name}.parquet")
        wanted = ["predict", str(out), "--data", str(tmp_path / name), "--only", "--output", output]
        assert main(wanted) == 0
        found.append(pq.read_table(output))
    assert found[0].equals(found[1])


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pstrain {importlib.metadata.version('pstrain')}\n"


@pytest.mark.parametrize(
    "option",
    [
        ["--batch-size", "0"],
        ["--validation", "1.5"],
        ["--epochs", "many"],
        ["--learning-rate", "-1"],
        ["--learning-rate", "nan"],
        ["--seed", "-1"],
        ["--out", "s3://bucket/model"],
        ["--delimiter", ";;"],
    ],
    ids=" ".join,
)
def test_option_out_of_range_is_refused_and_named(
    files: pathlib.Path, tmp_path: pathlib.Path, option: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(local(files / "part-*.parquet", tmp_path / "out", *option))
    assert ended.value.code == 2
    assert option[0] in capsys.readouterr().err

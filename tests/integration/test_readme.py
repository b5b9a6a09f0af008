"""The READMEs: each snippet runs as printed or uses only names that exist; links have targets.

The tests make what a snippet assumes (files, a service, a cluster), under the snippet's names.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import pathlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
import pstrain as ps

ROOT = pathlib.Path(__file__).parents[2]
READMES = {
    path: (ROOT / path).read_text(encoding="utf-8")
    for path in ("README.md", "dataservice/README.md", "pstrain/README.md", "bench/README.md")
}
SNIPPETS = re.findall(r"^```python\n(.*?)^```", "\n".join(READMES.values()), re.M | re.S)
PACKAGES = {"ds": ds, "ps": ps}
ROWS = 4_000


def snippet(containing: str) -> str:
    """Returns the one snippet that has this text."""
    (found,) = (text for text in SNIPPETS if containing in text)
    return found


def clicks() -> pa.Table:
    rng = np.random.default_rng(0)
    price = rng.exponential(size=ROWS).astype(np.float32)
    return pa.table(
        {
            "price": price,
            "time": rng.integers(0, 10**6, ROWS),
            "page": rng.integers(0, 50, ROWS),
            "clicked": (price > 1).astype(np.int64),
        }
    )


@pytest.fixture
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Makes and enters a working folder with clicks/*.parquet."""
    (tmp_path / "clicks").mkdir()
    pq.write_table(clicks(), tmp_path / "clicks" / "day.parquet", row_group_size=500)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(text: str, names: dict[str, Any], replaced: dict[str, str] | None = None) -> None:
    """Runs a snippet, after replacing texts such as addresses in it."""
    for old, new in (replaced or {}).items():
        assert old in text, f"no README says {old!r} any more"
        text = text.replace(old, new)
    exec(compile(text, "README.md", "exec"), names)


def test_snippets_of_reading_run_and_read_every_row(files: pathlib.Path) -> None:
    assert files.is_dir()
    names: dict[str, Any] = {"ds": ds}
    run(snippet("DispatchServer("), names, {"port=5050": "port=0"})
    with names["dispatcher"], names["worker"]:
        target = names["target"] = names["dispatcher"].target
        run(snippet("# here, as"), names, {"grpc://host:5050": target})
        job = names["data"].distribute(ds.ShardingPolicy.DYNAMIC, target, job_name="pair")
        with job.iterator(0) as one, job.iterator(0) as other:
            names |= {"state_0": one.state_dict(), "state_1": other.state_dict()}
        names["fn"] = lambda columns: columns
        run(snippet("merge_states"), names)
        rest = sum(batch.num_rows for batch in names["again"])
        assert rest == names["data"].to_table().num_rows
        for iterator in (names["it"], names["again"]):
            iterator.close()


def test_snippet_of_sharing_runs_and_reads_every_row(files: pathlib.Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 30, 500)
    names: dict[str, Any] = {
        "ds": ds,
        "rank": 0,
        "bucket_of": lambda columns: np.array([len(row) // 10 for row in columns["tokens"]]),
        "sentences": ds.Dataset.from_table(pa.table({"tokens": [list(range(n)) for n in lengths]})),
        "data": ds.Dataset.from_parquet("clicks/*.parquet"),
    }
    with ds.DispatchServer() as dispatcher, ds.WorkerServer(ds.WorkerConfig(dispatcher.target)):
        names["target"] = dispatcher.target
        run(snippet("group_by_window"), names, {"/data/clean": str(files / "clean")})
        assert names["data"].to_table().num_rows == ROWS


def test_snippets_of_training_run_and_save_checkpoints(
    files: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ds.Dataset.from_parquet("clicks/*.parquet").rename({"clicked": "label"}).batch(100)
    with ps.LocalCluster(workers=1, ps=1, data_workers=1) as cluster:
        names: dict[str, Any] = {
            "data": data,
            "held_out": data.take(5),
            "cluster": contextlib.nullcontext(cluster),
        }
        opened = "ps.LocalCluster(workers=2, ps=2, data_workers=2)"
        run(snippet(opened), names, {opened: "cluster"})
        assert (files / "checkpoints" / "ckpt-1").is_dir()
        run(snippet("every_steps=1000"), names, {"every_steps=1000": "every_steps=10"})
        assert (files / "ckpt").is_dir()
        names |= {
            "schema": ps.FeatureSchema.of(data),
            "service": cluster.service,
            "ds": ds,
            "ps": ps,
        }
        names["dataset_id"] = ds.register_dataset(cluster.service, data.repeat())
        spec = {"chief": ["localhost:1"], **cluster.cluster_spec.as_dict()}
        task = {"cluster": spec, "task": {"type": "chief", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        run(snippet("def train_step"), names, {"range(1000)": "range(50)"})
        assert int(names["optimizer"].iterations) == 50
        run(snippet("CheckpointManager("), names, {"ckpt/": "managed/"})
        names["manager"].wait()
        assert names["manager"].latest_checkpoint
        names["coordinator"].close()


def test_snippet_of_feature_schema_runs() -> None:
    words = ["a", "b", "c", "a"] * 5
    data = ds.Dataset.from_table(pa.table({"word": words, "user": words, "label": [0, 1] * 10}))
    names: dict[str, Any] = {"ds": ds, "ps": ps, "data": data, "arrow_schema": data.schema}
    run(snippet("online=True, min_count=2"), names)
    assert names["schema"].categorical["word"].vocabulary is not None


def test_snippets_of_variables_and_gradients_run() -> None:
    matrix = np.ones((4, 3), np.float32)
    names: dict[str, Any] = {
        "ps": ps,
        "np": np,
        "ids": np.array([1, 2, 12]),
        "values": np.ones((3, 16), np.float32),
        "x": matrix,
        "y": matrix[:, :2],
        "signs": matrix[:, :2],
        "weights": ps.Variable(matrix[:3, :2]),
        "bias": ps.Variable(matrix[0, :2]),
    }
    run(snippet("sparse_read"), names, {"10_000_000, 16": "1_000, 16"})
    assert np.asarray(names["rows"]).shape == (3, 16)
    run(snippet("np.log1p"), names)
    assert [each.shape for each in names["clipped"]] == [(3, 2), (2,)]


def test_snippet_of_a_loop_is_the_same_program_in_one_process_and_on_a_cluster(
    cluster: ps.LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    rng = np.random.default_rng(0)
    city, size = rng.integers(0, 8, ROWS), rng.normal(size=ROWS).astype(np.float32)
    flats = {"city": city, "size": size, "price": 2 * size + city}
    category = ps.Category(8, hashed=False)
    names: dict[str, Any] = {
        "ps": ps,
        "contextlib": contextlib,
        "schema": ps.FeatureSchema(dense=["size"], categorical={"city": category}, label="price"),
        "data": ds.Dataset.from_numpy(flats).batch(100),
    }
    run(snippet("train(ps.LocalCoordinator(), data)"), names)
    said = capsys.readouterr().out
    coordinator = ps.ClusterCoordinator(ps.ParameterServerStrategy(cluster.resolver))
    model = names["train"](coordinator, names["data"])
    for printed in (said, capsys.readouterr().out):
        errors = re.findall(r"epoch \d: off by ([\d.]+)", printed)
        assert len(errors) == 3
        assert float(errors[2]) < 0.6 * float(errors[0])
    assert model.variables[0].device == "/job:ps/task:0"
    coordinator.close()


def test_snippet_of_custom_model_learns() -> None:
    names: dict[str, Any] = {"ps": ps, "np": np}
    run(snippet("class Matching"), names)
    rng = np.random.default_rng(0)
    rows = {"user": rng.integers(0, 50, ROWS), "item": rng.integers(0, 40, ROWS)}
    rows["clicked"] = (rows["user"] % 2 == rows["item"] % 2).astype(np.int64)
    names["model"].compile(ps.optimizers.Adam(0.01), metrics=["auc"])
    history = names["model"].fit(rows, epochs=2, batch_size=100, verbose=0).history
    assert history["auc"][-1] > 0.9


@pytest.mark.parametrize("text", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_names_exist_and_take_the_arguments(text: str) -> None:
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and (named := _named(call.func)) is not None:
            positional = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
            inspect.signature(named).bind(*positional, **keywords)


def _named(node: ast.AST) -> Any:
    """Returns the object that ``ds.x.y`` or ``ps.x.y`` names.

    None for any other expression, or if an optional package is missing.
    """
    if isinstance(node, ast.Name):
        return PACKAGES.get(node.id)
    holder = _named(node.value) if isinstance(node, ast.Attribute) else None
    if holder is None:
        return None
    assert isinstance(node, ast.Attribute)
    try:
        return getattr(holder, node.attr)
    except ImportError:
        return None


@pytest.mark.parametrize("path", READMES)
def test_links_have_targets(path: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", READMES[path]):
        file = (ROOT / path).parent / target if target else ROOT / path
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file.read_text(encoding="utf-8"))


def _anchors(text: str) -> list[str]:
    """Returns the anchors that GitHub gives to a document's titles."""
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_mentioned_benchmarks_exist() -> None:
    names = set(re.findall(r"`(?:python -m )?bench\.(\w+)", "\n".join(READMES.values())))
    assert names
    for name in names:
        assert (ROOT / "bench" / f"{name}.py").is_file(), name

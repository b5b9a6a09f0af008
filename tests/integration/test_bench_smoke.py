"""The benchmarks run at smoke size, and stream exactly what their work is defined as."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataservice as ds
from bench import (
    checkpoint,
    click_model,
    closures,
    data,
    dispatcher,
    latency,
    leases,
    many_trainers,
    memory,
    mesh,
    model_batches,
    models,
    online_lookup,
    parameters,
    plots,
    quality,
    scheduling,
    stream,
    systems,
    train,
    train_cores,
    train_plots,
    transform,
    transport,
    waiting,
)
from bench.columns import CATEGORICAL
from bench.peers import children
from pstrain.features.schema import Features
from pstrain.launch.local import LocalCluster
from pstrain.variables.scope import local_parameters

_ROWS = 3 * data.BLOCK_ROWS


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _sorted_by_first_id(columns: data.Columns) -> data.Columns:
    order = np.lexsort([columns[name] for name in reversed(CATEGORICAL)])
    return {name: values[order] for name, values in columns.items()}


@pytest.mark.parametrize("form", sorted(transform.FORMS))
def test_streamed_rows_equal_the_expected_transform(tmp_path: Path, form: str):
    paths = data.write_files(tmp_path, _ROWS, "parquet", files=2)
    pipeline = transform.dataset([str(path) for path in paths], form, epochs=1)
    with systems.service(1) as target:
        table = pipeline.distribute(ds.ShardingPolicy.DYNAMIC, target).to_table()
    found = _sorted_by_first_id({name: table[name].to_numpy() for name in table.column_names})
    truth = _sorted_by_first_id(transform.expected(data.generate(_ROWS)))
    assert found.keys() == truth.keys()
    for name, values in truth.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_stream_prints_a_line_per_run(capsys: pytest.CaptureFixture[str]):
    stream.main(["--smoke", "--workers", "0", "1"])
    check, *lines = _lines(capsys)
    assert check["rows_of_an_epoch"] == 1 << 15
    alone, (by_hand, served, own) = lines[0], lines[-7:-4]
    ratios = {(line["system"], line["peer_form"]): line["ratio"] for line in lines[-4:]}
    assert len(ratios) == 4
    assert {system for system, _ in ratios} == {served["system"], own["system"]}
    assert min(ratios.values()) > 0
    assert [run["workers"] for run in (alone, by_hand, served, own)] == [0, 0, 1, 1]
    assert min(run["rows_per_s"] for run in (alone, by_hand, served, own)) > 0
    assert [run["rows"] % data.BLOCK_ROWS for run in (served, own)] == [0, 0]


def test_leases_prints_a_line_per_run(capsys: pytest.CaptureFixture[str]):
    leases.main(["--smoke", "--program", "--workers", "1"])
    files, windows, program = _lines(capsys)
    assert [files["form"], windows["form"]] == ["files", "windows"]
    assert files["splits"] == windows["splits"] == program["splits"] == 500
    assert windows["splits_per_s"] > 0


def test_mesh_of_readers_and_workers_reads_each_row_once(capsys: pytest.CaptureFixture[str]):
    mesh.main(["--smoke"])
    some, of_all = _lines(capsys)
    assert (some["pairs"], of_all["pairs"]) == ("some", "all")
    assert some["is_exact"]
    assert of_all["is_exact"]
    assert some["rows"] == of_all["rows"] == 50_000


def test_dispatcher_answers_simulated_clients_also_after_kill(
    capsys: pytest.CaptureFixture[str],
):
    dispatcher.main(["--smoke"])
    (line,) = _lines(capsys)
    assert line["replies_per_s"] > 0
    assert line["errors"] == {}
    assert line["unanswered_after_restart"] == 0
    assert line["restart_to_first_lease_s"] > 0


@pytest.mark.long
def test_plots_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plots.main(["--smoke", "--out", str(tmp_path)])
    lines = _lines(capsys)
    assert len(lines) == 3
    for line in lines:
        assert Path(line["file"]).read_bytes().startswith(b"\x89PNG")
        assert all(rate > 0 for _, rate in line["points"])


def test_plots_of_training_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train_plots.main(["--smoke", "--out", str(tmp_path)])
    lines = _lines(capsys)
    assert len(lines) == len(list(tmp_path.glob("training-by-*.png"))) == 3
    for line in lines:
        assert Path(line["file"]).read_bytes().startswith(b"\x89PNG")
        assert all(rate > 0 for _, rate in line["points"])


def test_plots_without_matplotlib_name_the_missing_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"pstrain\[demo\]"):
        plots.main(["--smoke", "--out", str(tmp_path)])


def test_stream_reads_arrow_files(capsys: pytest.CaptureFixture[str]):
    options = ["--workers", "0", "1", "--no-own-worker", "--alone", "blocks"]
    stream.main(["--smoke", "--format", "ipc", *options])
    _, *_by_hand, served, _ratio = _lines(capsys)
    assert served["format"] == "ipc"
    assert served["rows"] > 0


def test_checkpoint_is_measured_at_rest_and_during_training(capsys: pytest.CaptureFixture[str]):
    checkpoint.main(["--smoke"])
    (found,) = _lines(capsys)
    assert found["bytes"] == found["rows"] * found["width"] * 8
    assert found["pause_ms"] > 0
    assert min(found["at_rest"]["ratio"], found["write_ratio_training"]) > 0


@pytest.mark.long
def test_paused_reader_stays_within_memory_bounds(capsys: pytest.CaptureFixture[str]):
    memory.main(["--smoke"])
    found = _lines(capsys)
    assert [run["protocol"] for run in found] == 2 * list(memory.PROTOCOLS)
    assert sorted({run["columns"] for run in found}) == [1, 40]
    assert all(run["within"] for run in found), found


def test_latency_prints_a_line_per_wait(capsys: pytest.CaptureFixture[str]):
    latency.main(["--smoke"])
    lines = _lines(capsys)
    assert [line["what"] for line in lines] == ["import", "first batch", "end of an epoch"]
    assert all(line["worst_ms"] >= 0 for line in lines)


def test_online_lookup_prints_a_line_per_form(capsys: pytest.CaptureFixture[str]):
    online_lookup.main(["--smoke"])
    lines = _lines(capsys)
    forms = [(line["what"], line["form"]) for line in lines]
    encoded = [("encode", form) for form in ("hashed", "vocabulary", "online", "online, full")]
    steps = [("step", "hashed"), ("step", "online")]
    assert forms == [*encoded, *steps, ("evict", "online")]
    assert 0 < lines[-1]["evicted"] < lines[-1]["keys"]


def test_step_lowers_the_loss():
    model, rule = click_model.ClickModel(), click_model.optimizer()
    batches = click_model.batches(256, rows=256)
    losses = [click_model.step(model, rule, next(batches)) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.05


def test_train_prints_a_line_per_run(capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    train.main(["--smoke", "--processes", "0", "1"])
    alone, served = _lines(capsys)
    assert (alone["ps"], served["ps"]) == (0, 1)
    assert min(alone["examples_per_s"], served["examples_per_s"]) > 0
    assert served["examples"] % served["batch"] == 0


def test_train_cores_compares_cluster_with_one_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    train_cores.main(["--smoke"])
    (found,) = _lines(capsys)
    assert found["turns"] == 2
    assert 0 < found["ratio_min"] <= found["ratio"] <= found["ratio_max"]


def test_models_print_a_line_each(capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    models.main(["--smoke", "--models", "DeepFM", "DCNv2"])
    found = _lines(capsys)
    assert [line["model"] for line in found] == ["DeepFM", "DCNv2"]
    assert all(line["ours_cpu_ms"] > 0 and line["turns"] == 2 for line in found)


def test_models_summary_takes_the_fastest_form_of_the_peer():
    rounds = [
        {"ours": 1.0, "plain": 2.0, "compiled": 1.5},
        {"ours": 2.0, "plain": 8.0, "compiled": 2.0},
        {"ours": 1.0, "plain": 1.0, "compiled": 1.8},
    ]
    found = models.summary(rounds)
    assert (found["ours_cpu_ms"], found["plain_cpu_ms"]) == (1.0, 2.0)
    assert (found["peer_form"], found["ratio"]) == ("compiled", 1.5)
    assert (found["ratio_min"], found["ratio_max"]) == (1.0, 1.8)


def test_a_network_on_a_device_is_compared_with_the_processor(
    capsys: pytest.CaptureFixture[str],
):
    pytest.importorskip("torch")
    from bench import torch_device

    torch_device.main(["--smoke", "--device", "cuda:99"])
    skipped, found = _lines(capsys)
    assert skipped["skipped"] == "cuda:99"
    assert "this process cannot use device 'cuda:99'" in skipped["why"]
    assert (found["device"], found["threads"], found["rounds"]) == ("cpu", 1, 2)
    assert found["examples_per_s"] > 0


def test_a_device_is_compared_with_the_fastest_number_of_threads():
    pytest.importorskip("torch")
    from bench import torch_device

    one, many, gpu = (torch_device.Way(*way) for way in (("cpu", 1), ("cpu", 8), ("cuda", 1)))
    rates = [{one: 1.0, many: 2.0, gpu: 8.0}, {one: 1.0, many: 4.0, gpu: 8.0}]
    (found,) = torch_device.ratios([*rates, {one: 9.0, many: 3.0, gpu: 9.0}])
    assert (found["device"], found["against_threads"], found["ratio"]) == ("cuda", 8, 3.0)
    assert (found["ratio_min"], found["ratio_max"]) == (2.0, 4.0)
    assert list(torch_device.ratios([{one: 1.0, many: 2.0}])) == []


@pytest.mark.parametrize("kind", model_batches.KINDS)
def test_model_batches_fit_the_schemas_of_the_models(kind: str):
    with local_parameters():
        model = models.make(kind, 8)
        for ids in model_batches.IDS:
            labels, dense, rows = model_batches.batches(65_536, ids)[0]
            assert 0 <= rows.min() <= rows.max() < model_batches.ROWS == model.schema.table_rows
            batch = Features(dense[:64], rows[:64], labels[:64])
            assert float(model.loss(batch)) == pytest.approx(np.log(2), abs=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("bench", [stream, train, closures, models])
def test_peer_runs_beside_ours(bench: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    try:
        python = children.find_interpreter(os.environ.get("PEER_PYTHON"))
    except children.PeerError as error:
        pytest.skip(f"{error}, or set PEER_PYTHON")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    sizes = {train: ["--processes", "1"], models: []}.get(bench, ["--workers", "1"])
    bench.main(["--smoke", "--peer", "--peer-python", python, *sizes])
    *_, ratio = _lines(capsys)
    assert ratio["ratio"] > 0


def test_transport_compares_both_protocols_at_both_levels(capsys: pytest.CaptureFixture[str]):
    transport.main(["--smoke"])
    *runs, channel, service = _lines(capsys)
    found = [(run["level"], run["protocol"]) for run in runs]
    assert found == [(level, p) for level in ("channel", "service") for p in transport.PROTOCOLS]
    assert min(run["batches"] for run in runs) > 0
    assert (channel["level"], service["level"]) == ("channel", "service")
    assert min(channel["ratio"], service["ratio"]) > 0


def test_scheduling_prints_the_cost_of_a_closure(capsys: pytest.CaptureFixture[str]):
    scheduling.main(["--smoke"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["rule"], line["trainers"]) for line in lines] == [
        (rule, trainers) for rule in ("async", "ssp", "sync") for trainers in (2, 4)
    ]
    assert all(line["closures"] >= 50 for line in lines)
    assert all(line["schedule_us"] > 0 and line["result_us"] > 0 for line in lines)


def test_many_trainers_join_one_coordinator_and_run_closures(capsys: pytest.CaptureFixture[str]):
    many_trainers.main(["--smoke"])
    (line,) = _lines(capsys)
    assert line["trainers"] == 3
    assert min(line["threads"], line["open_files"], line["joined_s"]) > 0
    assert line["idle_share"] < 1
    assert line["closures_per_s"] > 0


def test_waiting_prints_what_each_kind_of_process_takes(capsys: pytest.CaptureFixture[str]):
    waiting.main(["--smoke"])
    lines = _lines(capsys)
    assert [line["wait_for"] for line in lines] == list(waiting.WAITS)
    for line in lines:
        assert (line["readers"], line["protocol"]) == (4, "shared_memory")
        assert all(0 <= line[f"{kind}_cores"] < 2 for kind in ("dispatcher", "worker", "reader"))


def test_closures_prints_closures_per_second(capsys: pytest.CaptureFixture[str]):
    closures.main(["--smoke"])
    (line,) = _lines(capsys)
    assert line["closures"] >= 500
    assert line["closures_per_s"] > 0


def test_parameters_compares_transports_and_measures_a_table(capsys: pytest.CaptureFixture[str]):
    parameters.main(["--smoke"])
    lines = _lines(capsys)
    runs, ratios, table = lines[:4], lines[4:-1], lines[-1]
    ways = ["shared memory", "network", "bfloat16 network", "raw flight"]
    assert [run["way"] for run in runs] == ways
    assert min(line["ratio"] for line in ratios) > 0
    assert table["rest_gb"] >= table["floats_gb"]
    assert table["pulls"] > 0


def test_quality_prints_a_table_and_a_line_per_task(capsys: pytest.CaptureFixture[str]):
    quality.main(["--smoke"])
    *table, line = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert "| async, 1 trainer, 2 servers |" in "\n".join(table)
    assert 0.5 < found["one_process"] < found["reachable"] < 1
    assert abs(found["one_process"] - found["async"]["1"]) < 0.05


def test_training_in_bfloat16_is_as_good_as_in_float32(tmp_path: Path):
    task = quality.clicks_task(tmp_path, 32_768)
    with LocalCluster(workers=1, ps=2, data_workers=0) as cluster:
        exact, rounded = (
            # In rounds (``sync``), so that only the data type makes a difference.
            quality.on_cluster(task, cluster, consistency="sync", transport_dtype=dtype)
            for dtype in ("float32", "bfloat16")
        )
    assert 0.6 < exact < task.reachable
    assert exact != rounded
    assert abs(exact - rounded) < quality.TOLERANCE


def test_planted_clicks_have_rows_labels_and_reachable_auc(tmp_path: Path):
    task = quality.clicks_task(tmp_path, 8_192)
    assert 0.7 < task.reachable < 0.8
    assert task.test.num_rows == 2_048
    labels = ds.Dataset.from_parquet(task.train).to_table()["label"].to_numpy()
    assert (len(labels), set(labels.tolist())) == (8_192, {0, 1})

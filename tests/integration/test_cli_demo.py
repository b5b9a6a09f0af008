"""``pstrain demo`` as a user runs it: to the end, and interrupted."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from pstrain.__main__ import main
from pstrain.demo import flights

DEADLINE_S = 240


def command(folder: pathlib.Path, *options: str) -> list[str]:
    places = ["--data-dir", str(folder / "data"), "--out", str(folder / "out")]
    return [sys.executable, "-m", "pstrain", "demo", "--json", *places, *options]


@pytest.fixture
def matplotlib_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Keeps matplotlib's caches out of the user's home."""
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))


@pytest.fixture(scope="module")
def all_flights(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("flights")
    flights.prepare(folder)
    return folder


def some_of(folder: pathlib.Path, target: pathlib.Path, one_in: int) -> None:
    """Makes the demo's data folder with every ``one_in``-th flight of each file."""
    (target / "data").mkdir()
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        some = table.take(np.arange(0, len(table), one_in))
        pq.write_table(some, target / "data" / path.name)


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 10)
@pytest.mark.usefixtures("matplotlib_folder")
def test_demo_learns_and_ends_with_one_line_of_json(
    all_flights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    some_of(all_flights, tmp_path, one_in=8)
    done = subprocess.run(
        command(tmp_path, "--epochs", "2", "--batch-size", "128"),
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert set(result) == {
        "test_auc",
        "test_logloss",
        "examples_per_s",
        "seconds",
        "rows_train",
        "rows_test",
        "checkpoint",
    }
    assert (result["rows_train"], result["rows_test"]) == (32_783, 8_138)
    assert result["test_auc"] >= 0.72
    assert 0.3 < result["test_logloss"] < 0.5
    assert pathlib.Path(result["checkpoint"]).is_dir()
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    for word in ("coordinator.schedule", "model.fit", "data stall"):
        assert word in done.stderr
    for work in ("rows streamed", "pulls", "pushes", "closures run", "windows handed out"):
        counts = re.findall(rf"([\d,]+) {work}", done.stderr)
        assert counts, work
        assert all(int(count.replace(",", "")) > 0 for count in counts), (work, counts)


def test_demo_refuses_output_or_data_folder_that_is_a_file(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    told = capsys.readouterr()
    assert "--out must name a folder" in told.err
    assert "flights" not in told.out
    arguments = ["demo", "--out", str(tmp_path), "--data-dir", str(tmp_path / "file")]
    assert main(arguments) == 2
    assert "--data-dir must name a folder" in capsys.readouterr().err


def test_demo_names_damaged_file_of_flights(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*(f"train-v2-{index}" for index in range(4)), "test-v2"):
        (tmp_path / f"{name}.parquet").write_text("damaged")
    assert main(["demo", "--out", str(tmp_path), "--data-dir", str(tmp_path)]) == 2
    assert "train-v2-0.parquet is damaged" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("matplotlib_folder")
def test_interrupted_demo_ends_every_process(
    all_flights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # With few flights, model.fit starts sooner.
    some_of(all_flights, tmp_path, one_in=64)
    with subprocess.Popen(
        command(tmp_path, "--epochs", "5000", "--no-plot", "--workers", "1", "--ps", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        try:
            for line in demo.stderr:
                if "model.fit" in line:
                    break
            children = psutil.Process(demo.pid).children(recursive=True)
            assert len(children) == 5
            os.kill(demo.pid, signal.SIGINT)
            out, err = demo.communicate(timeout=120)
        finally:
            demo.kill()
    # CPython ends by the signal itself, which shells show as 130, if the interrupt met a string of
    # code that was being run, such as the methods of a dataclass.
    assert demo.returncode in (130, -signal.SIGINT), err
    assert err.strip().splitlines()[-1] == "interrupted"
    assert not out
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
    assert len(gone) == 5

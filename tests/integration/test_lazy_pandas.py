"""pandas is imported by programs that use it, not by every process that handles Arrow arrays."""

from __future__ import annotations

import pathlib

import pytest

from tests.programs import said_by

PIPELINE = """
import dataservice as ds
data = ds.Dataset.range(100).enumerate("place").filter(ds.col("id") > 3).shuffle(10, seed=1)
data = data.with_column("half", (ds.col("id") // 2).hash(8))
data = data.with_column("log", ds.col("id").log1p()).map(lambda c: {**c, "twice": c["id"] * 2.0})
data = data.concatenate(data.shard(2, 0).repeat(2))
assert sum(batch.num_rows for batch in data.batch(8)) == 192
"""
STEP = """
import numpy as np, pstrain as ps
from dataservice.runtime.number_arrays import from_numbers
schema = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(8)}, label="y")
model, optimizer, auc = ps.models.WideDeep(schema, dim=4), ps.optimizers.SGD(0.1), ps.metrics.AUC()
batch = {"x": np.ones(4, "f4"), "c": np.arange(4), "y": np.arange(4) % 2}
with ps.GradientTape() as tape:
    loss = model.loss(batch)
optimizer.apply_gradients(tape.gradients(loss))
auc.update_state(from_numbers(batch["y"]), model.predict_on_batch(batch))
"""
TABULAR = """
import pathlib
from pstrain.__main__ import main
rows = "".join(f"{i % 2},{i * 0.5},a{i % 3}\\n" for i in range(200))
pathlib.Path("data.csv").write_text("y,x,c\\n" + rows)
data = ["--data", "data.csv"]
assert not main(["train", *data, "--label", "y", "--out", "model", "--local", "--epochs", "1"])
assert not main(["predict", "model", *data, "--output", "out.csv"])
"""
SKIPPING = """
import pathlib
import dataservice as ds, pyarrow as pa
pathlib.Path("data.csv").write_text("x,c\\n" + "1,a\\n" * 90 + "?,b\\n" * 10)
types = pa.schema({"x": pa.int64(), "c": pa.string()})
data = ds.Dataset.from_csv("data.csv", schema=types, on_error="skip")
assert sum(batch.num_rows for batch in data) == 90
"""
TELL = "import sys\nprint('pandas' in sys.modules)\n"


@pytest.mark.parametrize(
    "program",
    [PIPELINE, STEP, TABULAR, SKIPPING],
    ids=["pipeline", "step", "command line", "skipping"],
)
def test_numeric_programs_do_not_import_pandas(program: str, tmp_path: pathlib.Path) -> None:
    assert said_by(program + TELL, cwd=tmp_path).splitlines()[-1] == "False"

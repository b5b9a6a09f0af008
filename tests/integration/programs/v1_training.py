"""A program in the V1 form: every task runs it; workers train by themselves on shared variables.

``python v1_training.py OUT CHECKPOINTS STEPS PAUSE_S``: parameter servers serve; a worker trains
STEPS steps on its share of the input, and writes its record to ``OUT/worker-<n>.json``.
"""

from __future__ import annotations

import json
import pathlib
import sys
import threading
from typing import Any

import numpy as np

import dataservice as ds
import pstrain as ps
from pstrain.config import ParameterConfig

ROWS, PAGES = 20_000, 40


def columns() -> dict[str, np.ndarray]:
    """Returns clicks whose best possible log loss is known, the entropy of the click rates."""
    rng = np.random.default_rng(0)
    page = rng.integers(0, PAGES, ROWS)
    label = (rng.random(ROWS) < (0.1 + 0.8 * page / PAGES)).astype(np.int64)
    return {"page": page, "label": label}


def main() -> None:
    out, directory, steps, pause_s = sys.argv[1:]
    resolver = ps.TFConfigClusterResolver()
    if resolver.task_type == "ps":
        ps.Server(resolver).join()
        return
    train(pathlib.Path(out), directory, int(steps), float(pause_s))


def train(out: pathlib.Path, directory: str, steps: int, pause_s: float) -> None:
    strategy = ps.v1.ParameterServerStrategy(config=ParameterConfig(start_timeout_s=60))
    schema = ps.FeatureSchema(categorical={"page": ps.Category(PAGES, hashed=False)}, label="label")
    with strategy.scope():
        model = ps.models.LogisticRegression(schema)
        optimizer = ps.optimizers.Adagrad(0.5)
    data = strategy.experimental_distribute_dataset(
        ds.Dataset.from_numpy(columns()).repeat().batch(200)
    )
    manager = ps.CheckpointManager(
        ps.Checkpoint(model=model, optimizer=optimizer), directory, max_to_keep=3
    )

    def train_step(batch: Any) -> float:
        with ps.GradientTape() as tape:
            loss = model.loss(batch)
        optimizer.apply_gradients(tape.gradients(loss))
        return float(loss)

    pause = threading.Event()
    with strategy.session(manager, save_every_steps=20, worker_timeout_s=60) as session:
        name = f"worker-{strategy.worker_index}"
        (out / f"{name}.started").touch()
        for batch in data:
            session.run(train_step, (batch,))
            (out / f"{name}.steps").write_text(str(session.steps))
            if session.steps >= steps:
                break
            pause.wait(pause_s)
    told: dict[str, Any] = {"steps": session.steps, "restored_from": session.restored_from}
    if strategy.is_chief:
        told["loss"] = model.evaluate(columns(), verbose=0)["loss"]
        told["iterations"] = int(optimizer.iterations)
        told["checkpoint"] = manager.latest_checkpoint
    (out / f"{name}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

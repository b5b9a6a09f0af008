"""A program with a custom training loop, the same for every task: TF_CONFIG gives the role.

``python custom_loop.py SERVICE DATASET_ID CHECKPOINT_DIR``; the coordinator and the evaluator print
one JSON line each.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import dataservice as ds
import pstrain as ps


def main() -> None:
    service, dataset_id, directory = sys.argv[1:]
    resolver = ps.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        ps.Server(resolver).join()
    elif resolver.task_type == "evaluator":
        evaluate(directory)
    else:
        train(resolver, service, dataset_id, directory)


SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")
STEPS = 300


def model_and_optimizer() -> tuple[Any, Any]:
    return ps.models.WideDeep(SCHEMA, dim=16, hidden=(64, 32)), ps.optimizers.Adagrad(0.05)


def evaluate(directory: str) -> None:
    """Evaluates each new checkpoint, up to that of the last step; knows no cluster."""
    rng = np.random.default_rng(1)
    page, price = rng.integers(0, 50, 2_000), rng.normal(size=2_000).astype(np.float32)
    label = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    model, optimizer = model_and_optimizer()
    model.compile(optimizer, metrics=[ps.metrics.AUC()])
    evaluator = ps.SidecarEvaluator(
        model,
        {"page": page, "price": price, "label": label},
        directory,
        every=True,
        last_step=STEPS,
        timeout=60,
        verbose=0,
    )
    print(json.dumps(evaluator.start()), flush=True)


def train(
    resolver: ps.SimpleClusterResolver | ps.TFConfigClusterResolver,
    service: str,
    dataset_id: str,
    directory: str,
) -> None:
    strategy = ps.ParameterServerStrategy(
        resolver, variable_partitioner=ps.partitioners.MinSizePartitioner(256 << 10, max_shards=2)
    )
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        model, optimizer = model_and_optimizer()
        auc = ps.metrics.AUC()

    def dataset_fn(context: ps.InputContext) -> ds.Dataset:  # noqa: ARG001
        return ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, service, dataset_id, job_name="train")

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    def train_step(it: object) -> float:
        batch = next(it)  # type: ignore[call-overload]
        with ps.GradientTape() as tape:
            loss = model.loss(batch)
        optimizer.apply_gradients(tape.gradients(loss))
        auc.update_state(batch["label"], model.predict_on_batch(batch))
        return float(loss)

    checkpoint = ps.Checkpoint(model=model, optimizer=optimizer, data=iterator)
    losses: list[ps.RemoteValue] = []
    while len(losses) < STEPS:
        losses += [coordinator.schedule(train_step, args=(iterator,)) for _ in range(STEPS // 2)]
        coordinator.join(timeout=120)
        path = checkpoint.save(directory)
    values = coordinator.fetch(losses)
    print(
        json.dumps(
            {
                "steps": int(optimizer.iterations.numpy()),
                "first_loss": sum(values[:10]) / 10,
                "last_loss": sum(values[-10:]) / 10,
                "auc": auc.result(),
                "checkpoint": str(path),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()

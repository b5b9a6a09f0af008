"""A training program with a loop of its own, the same for every task: roles by TF_CONFIG.

``python custom_loop.py SERVICE DATASET_ID CHECKPOINT_DIR``; the coordinator prints one JSON line.
"""

from __future__ import annotations

import json
import sys

import dataservice as ds
import pstrain as ps


def main() -> None:
    service, dataset_id, directory = sys.argv[1:]
    resolver = ps.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        ps.Server(resolver).join()
    else:
        train(resolver, service, dataset_id, directory)


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
    schema = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")
    with strategy.scope():
        model = ps.models.WideDeep(schema, dim=16, hidden=(64, 32))
        optimizer = ps.optimizers.Adagrad(0.05)
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

    losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(300)]
    coordinator.join(timeout=120)
    path = ps.Checkpoint(model=model, optimizer=optimizer, data=iterator).save(directory)
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

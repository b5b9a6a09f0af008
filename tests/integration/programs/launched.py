"""A program that `pstrain launch` runs as every task: `python launched.py CHIEF_EXIT_CODE [WHAT]`.

The chief trains and prints one JSON line. WHAT changes that: "fail" makes the second trainer fail
and the chief wait, "wait" only makes the chief wait.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import dataservice as ds
import pstrain as ps

SCHEMA = ps.FeatureSchema(dense=["price"], categorical={"page": ps.Category(64)}, label="label")


def main() -> None:
    code, what = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    resolver = ps.TFConfigClusterResolver()
    if what == "fail" and (resolver.task_type, resolver.task_id) == ("worker", 1):
        raise SystemExit("no luck today")
    if resolver.task_type in ("worker", "ps"):
        print(f"pid {os.getpid()}", flush=True)
        ps.Server(resolver).join()
    if what in ("wait", "fail"):
        time.sleep(300)
    train(resolver, os.environ["DATASERVICE_DISPATCHER"])
    sys.exit(code)


def train(resolver: ps.TFConfigClusterResolver, service: str) -> None:
    rng = np.random.default_rng(0)
    page, price = rng.integers(0, 50, 4_000), rng.normal(size=4_000).astype(np.float32)
    label = (page % 2 + 0.5 * price > 0.5).astype(np.int64)
    data = ds.Dataset.from_numpy({"page": page, "price": price, "label": label}).batch(200)
    with ps.ParameterServerStrategy(resolver).scope():
        model = ps.models.LogisticRegression(SCHEMA)
        model.compile(ps.optimizers.Adagrad(0.05))
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, service)
    model.fit(remote, epochs=1, verbose=0)
    steps = int(model.optimizer.iterations.numpy())
    print(json.dumps({"steps": steps, "job": resolver.task_type}), flush=True)


if __name__ == "__main__":
    main()

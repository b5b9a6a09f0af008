"""A reader in a process that will be killed: writes each element down, then acknowledges it.

`python -m tests.chaos.doomed_reader TARGET DATASET_ID JOB PROTOCOL ON_ERROR PATH` begins when PATH
exists, and appends a line for each element to it: how many lines before it the dispatcher knew as
acknowledged by then, and the ids. After a SIGKILL the rows of all whole lines count as read.
"""

from __future__ import annotations

import os
import sys
import time

import dataservice as ds
from dataservice.dataset.stream import RunContext
from dataservice.runtime.process.children import announce_ready, exit_with_parent

USE_S = 0.05


def main() -> None:
    target, dataset_id, job_name, protocol, on_error, path = sys.argv[1:]
    exit_with_parent()
    dataset = ds.from_dataset_id(
        ds.ShardingPolicy.DYNAMIC,
        target,
        dataset_id,
        job_name=job_name,
        data_transfer_protocol=protocol or None,
        on_error=on_error,
    )
    announce_ready()
    while not os.path.exists(path):
        time.sleep(0.005)
    # An iterator acknowledges before it returns: after a kill in between, no line would show it.
    stream = dataset.node.open(RunContext())
    reader = stream.join()
    lines = os.open(path, os.O_WRONLY | os.O_APPEND)
    written = reported = 0
    while True:
        delivery = reader.take()
        if delivery is None:
            time.sleep(0.1)
            continue
        ids = " ".join(map(str, delivery.batch.column("id").to_pylist()))
        # Slow, so that the process dies with rows that it has received but not written down.
        time.sleep(USE_S)
        if not reader.marks_if_consumed(()):
            reported = written
        os.write(lines, f"{reported} {ids}\n".encode())
        written += 1
        reader.acknowledge(delivery.spans)


if __name__ == "__main__":
    main()

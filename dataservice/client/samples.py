"""A sample of a registered dataset, for inferring the schemas of operators above its job.

Responsible for fetching the plan and running it in this process. Knows no readers. Invariant: no
job is created and no data worker is asked, so the sampled rows are missing from no reader's share.
"""

from __future__ import annotations

import pyarrow as pa

from dataservice.client.connection import Connection
from dataservice.dataset.plan import decode_plan
from dataservice.dataset.stream import RunContext
from dataservice.dataset.tolerance import tolerant


def sample_registered(
    target: str, dataset_id: str, context: RunContext, *, skips: bool, timeout_s: float
) -> pa.RecordBatch:
    """Returns a sample of the dataset, read in this process; `skips` leaves out what fails.

    Raises SourceError or UserFunctionError if its files, or what its functions need, are not
    available in this process.
    """
    with Connection(target) as connection:
        registered = connection.get_dataset(dataset_id, timeout_s=timeout_s)
    node = decode_plan(registered.plan)
    return (tolerant(node) if skips else node).sample(context)

"""A sample of a registered dataset, for inferring the schemas of operators above its job.

Knows plans and how to ask for one. Invariant: no job is made and no data worker asked, so rows that
are looked at here are nobody's share.
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
    """A sample of the dataset, which is read in this process; `skips` leaves out what fails.

    SourceError or UserFunctionError where its files or what its functions need are not here.
    """
    with Connection(target) as connection:
        registered = connection.get_dataset(dataset_id, timeout_s=timeout_s)
    node = decode_plan(registered.plan)
    return (tolerant(node) if skips else node).sample(context)

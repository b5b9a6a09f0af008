"""The keyword arguments of `Dataset.distribute`, for type checkers and editors.

Holds no defaults and checks nothing: `dataservice.distribute`, which the method calls, does.
Invariant: the class has the names and types of that function's keyword arguments.
"""

from __future__ import annotations

from typing import TypedDict

from dataservice.client.arguments import CrossTrainerCache


class DistributeOptions(TypedDict, total=False):
    """The keyword arguments of `dataservice.distribute`, which describes them."""

    job_name: str | None
    consumer_index: int | None
    num_consumers: int | None
    max_outstanding_requests: int | None
    data_transfer_protocol: str | None
    compression: str | None
    cross_trainer_cache: CrossTrainerCache | None
    target_workers: str
    delivery: str | None
    ordered: bool
    on_error: str
    timeout_s: float

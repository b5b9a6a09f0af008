"""What `Dataset.distribute` takes beside policy and service, for type checkers and editors.

Holds no defaults and checks nothing: `dataservice.distribute`, which it hands over to, does.
Invariant: it says what that takes, by the same names and types.
"""

from __future__ import annotations

from typing import TypedDict

from dataservice.client.arguments import CrossTrainerCache


class DistributeOptions(TypedDict, total=False):
    """Of `dataservice.distribute`, where they are told."""

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

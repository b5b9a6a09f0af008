"""A cache of the plans of datasets, ready to run: each is prepared once for all streams.

Knows where plans come from, not who runs them. Thread-safe. Invariants: at most `MAX_PIPELINES`
plans are kept, the most recently used; a plan in doubt is not returned before the dispatcher was
asked for it again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.task import Pipeline

MAX_PIPELINES: Final = 64


class _PreparedPlan(NamedTuple):
    """A prepared plan; its id was last confirmed under registration number `registration`."""

    pipeline: Pipeline
    digest: bytes
    registration: int


class Pipelines:
    """The plans that one worker has prepared."""

    def __init__(self, link: DispatcherLink, *, allow_functions: bool) -> None:
        self._link = link
        self._allow_functions = allow_functions
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _PreparedPlan] = OrderedDict()
        self._registration = 0

    def mark_doubtful(self) -> None:
        """Marks all plans as in doubt: a new dispatcher's ids may stand for other datasets.

        A plan that turns out to be the same stays prepared and keeps its caches.
        """
        with self._lock:
            self._registration += 1

    def get(self, dataset_id: str, on_error: str = "raise") -> Pipeline:
        """Returns the plan of a dataset; asks the dispatcher if it is unknown or in doubt."""
        key = (dataset_id, on_error)
        with self._lock:
            registration, known = self._registration, self._known.get(key)
            if known is not None and known.registration == registration:
                self._known.move_to_end(key)
                return known.pipeline
        reply = self._link.get_dataset(dataset_id)
        digest = _digest(reply)
        if known is None or known.digest != digest:
            pipeline = Pipeline(
                reply.plan,
                reply.compression,
                allow_functions=self._allow_functions,
                on_error=on_error,
            )
            known = _PreparedPlan(pipeline, digest, registration)
        with self._lock:
            self._known[key] = known._replace(registration=registration)
            while len(self._known) > MAX_PIPELINES:
                self._known.popitem(last=False)
        return known.pipeline


def _digest(reply: pb.GetDatasetReply) -> bytes:
    """Returns a digest of a plan and of the compression of its rows."""
    return hashlib.sha256(f"{reply.compression} ".encode() + reply.plan).digest()

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


class _Known(NamedTuple):
    """A prepared plan; `life` numbers the registration under which its id was last confirmed."""

    pipeline: Pipeline
    digest: bytes
    life: int


class Pipelines:
    """The plans that one worker has prepared."""

    def __init__(self, link: DispatcherLink, *, allow_functions: bool) -> None:
        self._link = link
        self._allow_functions = allow_functions
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._life = 0

    def mark_doubtful(self) -> None:
        """Marks all plans as in doubt: a new dispatcher's ids may stand for other datasets.

        A plan that turns out to be the same stays prepared and keeps its caches.
        """
        with self._lock:
            self._life += 1

    def get(self, dataset_id: str, on_error: str = "raise") -> Pipeline:
        """Returns the plan of a dataset; asks the dispatcher if it is unknown or in doubt."""
        key = (dataset_id, on_error)
        with self._lock:
            life, known = self._life, self._known.get(key)
            if known is not None and known.life == life:
                self._known.move_to_end(key)
                return known.pipeline
        reply = self._link.get_dataset(dataset_id)
        digest = _digest(reply)
        if known is None or known.digest != digest:
            known = _Known(self._prepared(reply, on_error), digest, life)
        with self._lock:
            self._known[key] = known._replace(life=life)
            while len(self._known) > MAX_PIPELINES:
                self._known.popitem(last=False)
        return known.pipeline

    def _prepared(self, reply: pb.GetDatasetReply, on_error: str) -> Pipeline:
        return Pipeline(
            reply.plan,
            reply.compression,
            allow_functions=self._allow_functions,
            on_error=on_error,
        )


def _digest(reply: pb.GetDatasetReply) -> bytes:
    """Returns a digest of a plan and of the compression of its rows."""
    return hashlib.sha256(f"{reply.compression} ".encode() + reply.plan).digest()

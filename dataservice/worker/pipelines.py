"""Plans of datasets, ready to run, each prepared once however many streams read it.

Knows where plans come from, not who runs them. Invariants: at most ``MAX_PIPELINES`` are kept,
those used last; none that is doubted is given out before the dispatcher was asked. Thread safe.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Final, NamedTuple

from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.control import DispatcherLink
from dataservice.worker.task import Pipeline

MAX_PIPELINES: Final = 64


class _Known(NamedTuple):
    """`life`: in which of the worker's lives the dispatcher said that the id stands for it."""

    pipeline: Pipeline
    digest: bytes
    life: int


class Pipelines:
    """Of one worker."""

    def __init__(self, link: DispatcherLink, *, allow_functions: bool) -> None:
        self._link = link
        self._allow_functions = allow_functions
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._life = 0

    def doubt(self) -> None:
        """The dispatcher may be another one, whose ids stand for other datasets.

        A plan that turns out to be the same stays prepared, with what it has cached.
        """
        with self._lock:
            self._life += 1

    def get(self, dataset_id: str, on_error: str = "raise") -> Pipeline:
        """The plan of a dataset; asks the dispatcher for one that is not known, or doubted."""
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
    """Stands for a plan and how its rows travel."""
    return hashlib.sha256(f"{reply.compression} ".encode() + reply.plan).digest()

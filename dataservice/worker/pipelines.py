"""Plans of datasets, ready to run, each prepared once however many streams read it.

Knows where plans come from, not who runs them. Invariant: at most ``MAX_PIPELINES`` are kept, those
used last. Thread safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from dataservice.worker.control import DispatcherLink
from dataservice.worker.task import Pipeline

MAX_PIPELINES: Final = 64


class Pipelines:
    """Of one worker."""

    def __init__(self, link: DispatcherLink, *, allow_functions: bool) -> None:
        self._link = link
        self._allow_functions = allow_functions
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Pipeline] = OrderedDict()

    def get(self, dataset_id: str, on_error: str = "raise") -> Pipeline:
        """The plan of a dataset; asks the dispatcher for one that is not known."""
        key = (dataset_id, on_error)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        reply = self._link.get_dataset(dataset_id)
        pipeline = Pipeline(
            reply.plan,
            reply.compression,
            allow_functions=self._allow_functions,
            on_error=on_error,
        )
        with self._lock:
            self._known[key] = pipeline
            while len(self._known) > MAX_PIPELINES:
                self._known.popitem(last=False)
        return pipeline

"""Runs a registered plan, window by window or as a whole.

Responsible for decoding the plan once per worker; every run opens its own streams. Knows no
network. Invariant: the rows that `run_window` yields for a lease are rows `start_row`,
`start_row + 1`, ... of the window, whichever worker runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from dataservice.dataset.division.linear import Linear
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, transform_batch
from dataservice.dataset.division.static_sharding import Share, share_of
from dataservice.dataset.node import Node, times_of, unrepeatable, walk
from dataservice.dataset.omission_log import OmissionLog, RunOmissions
from dataservice.dataset.optimise import optimise
from dataservice.dataset.plan import decode_plan, fingerprint
from dataservice.dataset.seeds import varied_seeds
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.dataset.timing import OperatorTimes
from dataservice.dataset.tolerance import as_run
from dataservice.runtime.frames import Compression
from dataservice.sharding import Split
from dataservice.worker.leases import Lease
from dataservice.worker.rebatch import Element, Rebatcher

_CODECS: dict[str, Compression] = {"LZ4": "lz4", "ZSTD": "zstd"}

# A worker has one share of a dataset per policy; the share changes only when the files or the list
# of workers change.
_MAX_SHARES = 8
# Most splits that an error message names; a batch may have rows of many small ones.
_MAX_NAMED = 4
# Version of the positions of streams, to be raised whenever their format or meaning changes.
_POSITIONS = 2
# Stands for the operators after all segments where the log of work has a segment's number.
_TAIL = 1 << 30

Cancelled = Callable[[], bool]


class Pipeline:
    """A plan that can be run many times, by several threads at once.

    `compression` is the one that the dataset was registered with; "AUTO" sends plain bytes, which
    loopback and data centre networks carry faster than cores compress. `on_error` is the job's.
    """

    def __init__(
        self, plan: bytes, compression: str, *, allow_functions: bool, on_error: str = "raise"
    ) -> None:
        self.compression = _CODECS.get(compression)
        self._node = as_run(decode_plan(plan), on_error)
        self._allow_functions = allow_functions
        self._shares: dict[Share, Node] = {}

    @cached_property
    def _linear(self) -> Linear:
        return linearise(self._node)

    @property
    def is_divisible(self) -> bool:
        """Whether the rows of an element are exactly rows of its windows, one by one."""
        return not self._linear.batch_operators

    @property
    def batch_size(self) -> int | None:
        """Rows of an element if the operator `batch` makes the elements, else None.

        Describes the elements of a divisible plan only.
        """
        return self._linear.batch_size

    @property
    def drop_remainder(self) -> bool:
        """Whether a last batch that is too small is left out. For a divisible plan only."""
        return self._linear.drop_remainder

    @property
    def ends_passes(self) -> bool:
        """Whether a batch never has rows of two passes over the data."""
        return self._linear.ends_passes

    @property
    def is_batched(self) -> bool:
        """Whether an element of the whole plan is a record batch rather than a row."""
        return self._node.batched

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the plan, which is equal for plans that the same program makes."""
        return fingerprint(self._node)

    def rebatcher(self, run: int = 1) -> Rebatcher:
        """Returns a rebatcher that cuts rows as the plan's `batch` says, or by bytes without one.

        If the windows yield elements already, these stay as they are. Up to `run` elements of
        `batch` may travel as one, provided that no operator follows `batch`.
        """
        linear = self._linear
        if linear.forms_elements:
            return Rebatcher(None, as_they_are=True)
        run = run if self.is_divisible else 1
        return Rebatcher(linear.batch_size, drop_remainder=linear.drop_remainder, run=run)

    def run_window(
        self, lease: Lease, cancelled: Cancelled, omissions: OmissionLog | None = None
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yields record batches of a window, from the lease's start, each with its first row.

        `omissions` records everything that is left out of the window, also before that start.
        """
        omitted = None if omissions is None else omissions.open_run(str(lease.window))
        number = lease.splits[0].segment if lease.splits else 0
        segments = self._linear.segments[number : number + 1]
        nodes = [node for part in segments for node in (part.source, *part.operators)]
        row = 0
        with (
            _timed(nodes, number, omissions) as times,
            open_window(
                self._linear,
                lease.splits,
                epoch=lease.epoch,
                window_index=lease.window_in_epoch,
                context=self._context(lease.epoch, cancelled, omitted, times),
            ) as stream,
        ):
            for batch in stream:
                first, row = row, row + batch.num_rows
                if row <= lease.start_row:
                    continue
                skipped = max(0, lease.start_row - first)
                yield (batch.slice(skipped) if skipped else batch), first + skipped

    def open_tail(
        self,
        cancelled: Cancelled,
        splits_of: Callable[[int], Sequence[Split]],
        omissions: OmissionLog | None,
    ) -> Callable[[Element], Element]:
        """Returns the function that applies the plan's operators after `batch` to an element.

        User functions are loaded by this call. The function returned is not thread-safe.
        `splits_of` returns the splits of a window that the element has rows of.
        """
        if self.is_divisible:
            return lambda element: element
        omitted = None if omissions is None else omissions.open_run()
        times = times_of(self._linear.batch_operators)
        if omissions is not None:
            omissions.work.watch(_TAIL, times)
        transform = transform_batch(self._linear, self._context(0, cancelled, omitted, times))

        def finish(element: Element) -> Element:
            if element.batch is None:
                return element
            batch = transform(element.batch, lambda: self._location(element, splits_of))
            return element._replace(batch=batch)

        return finish

    def run_whole(
        self,
        epoch: int,
        cancelled: Cancelled,
        share: Share | None = None,
        omitted: RunOmissions | None = None,
        *,
        variant: str = "",
    ) -> Iterator[pa.RecordBatch]:
        """Yields the elements of the whole plan or of a static share of it; rows come in chunks.

        A shuffle without a seed has a different order for each `variant`.
        """
        with self.open_whole(epoch, cancelled, share, omitted, variant=variant) as stream:
            yield from stream

    @contextmanager
    def open_whole(
        self,
        epoch: int,
        cancelled: Cancelled,
        share: Share | None = None,
        omitted: RunOmissions | None = None,
        *,
        restores: bool = False,
        variant: str = "",
    ) -> Iterator[BatchStream]:
        """Opens the stream of `run_whole`; with `restores` the caller restores a position first."""
        node = self._whole(share, variant)
        omissions = None if omitted is None else omitted.log
        with _timed(walk(node), 0, omissions) as times:
            context = self._context(epoch, cancelled, omitted, times)
            with node.run(replace(context, restores=restores)) as stream:
                yield stream

    def positions_id(self, share: Share | None) -> str | None:
        """Returns an id of the plan that `open_whole` runs and of the format of its positions.

        None if the plan is not repeatable, so that the rows after a position may differ each time.
        """
        node = self._whole(share)
        return None if unrepeatable(node) else f"{_POSITIONS}-{fingerprint(node)}"

    def _whole(self, share: Share | None, variant: str = "") -> Node:
        if share is not None:  # no variant: the shares are disjoint only if all run the same plan
            return self._share_of(share)
        return optimise(varied_seeds(self._node, variant))

    def _location(self, element: Element, splits_of: Callable[[int], Sequence[Split]]) -> str:
        """Names the splits of an element; operators may have dropped or reordered their rows."""
        windows = dict.fromkeys(span.window for span in element.spans if span.rows)
        splits = [split for window in windows for split in splits_of(window)]
        named = [self._linear.describe(split) for split in splits[:_MAX_NAMED]]
        if len(splits) > _MAX_NAMED:
            named.append(f"{len(splits) - _MAX_NAMED} more parts of the sources")
        return "a batch of rows from " + ", ".join(named)

    def _share_of(self, share: Share) -> Node:
        """Returns the plan of a share, the same one in each repetition, so that caches are hit."""
        node = self._shares.get(share)
        if node is None:
            # Optimised afterwards: files are listed for the registered plan, as on the dispatcher.
            node = optimise(share_of(self._node, share))
            self._shares = {**dict(list(self._shares.items())[1 - _MAX_SHARES :]), share: node}
        return node

    def _context(
        self,
        epoch: int,
        cancelled: Cancelled,
        omitted: RunOmissions | None,
        times: OperatorTimes | None,
    ) -> RunContext:
        return RunContext(
            epoch=epoch,
            cancelled=cancelled,
            allow_functions=self._allow_functions,
            threads=1,
            omitted=omitted,
            times=times,
        )


@contextmanager
def _timed(
    nodes: Sequence[Node], part: int, omissions: OmissionLog | None
) -> Iterator[OperatorTimes | None]:
    """Gathers the operators' times of a run in ``omissions.work``; None without omissions."""
    if omissions is None:
        yield None
        return
    times = times_of(nodes)
    omissions.work.watch(part, times)
    try:
        yield times
    finally:
        omissions.work.retire(times)

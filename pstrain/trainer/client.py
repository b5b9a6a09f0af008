"""Parameters that live on parameter servers: pulls, pushes and everything else, over the network.

Turns requests about variables into one message per server, and combines the replies. Knows nothing
of closures except the staging of their changes. Invariant: a message that changes values at once is
never sent twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.auth import TlsConfig
from pstrain.config import ParameterConfig
from pstrain.consistency import ASYNC, Consistency
from pstrain.features.eviction import Eviction, evict
from pstrain.features.key_map import KeyMaps, KeyQuery
from pstrain.paramserver import messages, transport
from pstrain.paramserver.messages import Array, BodyPart, Header, LateBody, Message
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.trainer.consistent_reads import (
    WaitRestored,
    always_goes_on,
    consistent_read,
    never_restored,
)
from pstrain.trainer.dropping import drop_ended, forget_those_of
from pstrain.trainer.key_messages import ServerSteps, claim, count_keys
from pstrain.trainer.loading import load
from pstrain.trainer.outgoing import Push, assignment, several, with_rows
from pstrain.trainer.pull import Pull
from pstrain.trainer.server_session import ServerSession
from pstrain.trainer.snapshot import RemoteSnapshot
from pstrain.variables import read_ahead
from pstrain.variables.lifetimes import Lifetimes
from pstrain.variables.parameters import agreed, before_read, current_staging, read_with
from pstrain.variables.rows import (
    as_rows,
    groups,
    look_up,
    row_bytes,
    rows_of_value,
    scatter_parts,
    shape_of_rows,
    transfers,
    update_parts,
)
from pstrain.vocabulary import (
    Fetch,
    Lookup,
    OptimizerSpec,
    Update,
    VariableSpec,
    spec_to_json,
)

_KEPT_MAX_BYTES = 64 << 10


class RemoteParameters(ServerSession):
    """Variables on the parameter servers at ``addresses``, in a session. Thread-safe.

    Changes of a closure are staged; outside closures changes are made at once, and a change whose
    reply was lost with its connection raises instead of being repeated. ``transport_dtype``:
    "float32" or "bfloat16", for the values of :meth:`fetch` and for gradients.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str | None = None,
        session: str,
        tls: TlsConfig | None = None,
        config: ParameterConfig | None = None,
        transport_dtype: str = transport.FLOAT32,
    ) -> None:
        self.transport_dtype = transport.check_transport_dtype(transport_dtype)
        super().__init__(addresses, token=token, session=session, tls=tls, config=config)
        self.consistency: Consistency = ASYNC
        self._wholes: dict[tuple[int, int], tuple[int, Array]] = {}
        self._has_slots: set[tuple[int, str]] = set()
        self._initial_values: dict[int, list[tuple[int, Array]]] = {}
        self.dropped: list[int] = []
        """Ids of the variables that were dropped, which trainers are told to forget too."""
        self.undropped_snapshots: list[str] = []
        self.key_maps = KeyMaps()
        self.lifetimes = Lifetimes()
        self.hold_closures: Callable[[], AbstractContextManager[None]] = nullcontext
        self.wait_restored: WaitRestored = never_restored
        self.check_goes_on: Callable[[], None] = always_goes_on
        """Raises an error if the program has to go back to a checkpoint itself."""

    def device(self, ps: int) -> str:
        return f"/job:ps/task:{ps}"

    def create(self, spec: VariableSpec, value: Array | None = None) -> None:
        self.drop_ended()
        shards: dict[int, list[int]] = {}
        for index, shard in enumerate(spec.shards):
            shards.setdefault(shard.ps, []).append(index)
        described = spec_to_json(spec)
        headers: dict[int, Header] = {
            ps: {"kind": "create", "spec": described, "shards": indices}
            for ps, indices in shards.items()
        }
        if value is None or value.nbytes > _KEPT_MAX_BYTES:
            self._work_through(headers)
            if value is not None:
                self.set_initial_values(spec, value)
            return
        # One message: the cost of making many small variables is that of their messages.
        rows = as_rows(spec, value, spec.rows)
        self._answers({ps: with_rows(header, spec, rows) for ps, header in headers.items()})
        self._initial_values[spec.id] = [(0, value.copy())]

    def drop_ended(self, within_s: float | None = None) -> None:
        """Drops the variables whose lifetimes have ended; later, if servers do not answer soon.

        ``within_s``: how long this may take; never more than a few seconds.
        """
        dropped = [spec.id for spec in drop_ended(self.lifetimes, self.ask_all, within_s)]
        self.dropped += dropped
        self.forget_variables(dropped)

    def forget_variables(self, variables: Sequence[int]) -> None:
        """Forgets what is known here of variables that were dropped."""
        for variable in variables:
            self._initial_values.pop(variable, None)
        forget_those_of(variables, self._wholes)
        self.key_maps.drop(variables)

    def set_initial_values(self, spec: VariableSpec, value: Array, start: int = 0) -> None:
        self.assign(spec, "set", value, start)
        kept = self._initial_values.setdefault(spec.id, [])
        if spec.rows * row_bytes(spec) <= _KEPT_MAX_BYTES:
            kept.append((start, value.copy()))

    def reset_initial_values(self, spec: VariableSpec) -> bool:
        """Gives a variable that was created again its first values.

        False if they were too large to be kept.
        """
        parts = self._initial_values.get(spec.id)
        for start, value in parts or ():
            self.assign(spec, "set", value, start)
        return parts is None or bool(parts)

    @consistent_read
    def fetch(self, requests: Sequence[Fetch]) -> list[Array | Lookup]:
        return read_ahead.fetched(self, requests, self._pulled)

    def _pulled(self, requests: Sequence[Fetch]) -> list[Array | Lookup]:
        pull = Pull(requests, self._wholes, self._config.chunk_bytes, self.transport_dtype)
        pulls = pull.messages()
        replies = read_with([request.variable for request in requests], pulls)
        left = {ps: each for ps, each in pulls.items() if ps not in replies}
        if left:
            replies |= self._answers(left)
        for ps, reply in replies.items():
            pull.receive(ps, messages.checked(reply.header)["versions"], reply.body)
        return [
            self.read(request.variable, transport_dtype=self.transport_dtype)
            if value is None
            else value
            for request, value in zip(requests, pull.values(), strict=True)
        ]

    def apply(
        self,
        updates: Sequence[Update],
        optimizer: OptimizerSpec,
        *,
        iterations: VariableSpec | None = None,
    ) -> None:
        self._make_slots(updates, optimizer)
        pushes: dict[int, Push] = {}
        for update in updates:
            for index, ids, gradient in update_parts(update):
                ps = update.variable.shards[index].ps
                if ps not in pushes:
                    pushes[ps] = Push(self.transport_dtype)
                pushes[ps].add(update.variable, index, ids, gradient)
        counter = None
        if iterations is not None:
            counter = [iterations.id, 0]
            if iterations.shards[0].ps not in pushes:
                pushes[iterations.shards[0].ps] = Push()
        variables = [update.variable.id for update in updates]
        self._change(
            variables if iterations is None else [*variables, iterations.id],
            {
                ps: push.message(
                    optimizer=optimizer.text,
                    owner=None if iterations is None else iterations.id,
                    iterations=counter if _holds(iterations, ps) else None,
                )
                for ps, push in pushes.items()
            },
        )

    @consistent_read
    def read(
        self,
        spec: VariableSpec,
        start: int = 0,
        stop: int | None = None,
        *,
        transport_dtype: str = transport.FLOAT32,
    ) -> Array:
        stop = spec.rows if stop is None else stop
        is_whole = (start, stop) == (0, spec.rows)
        ahead = read_ahead.read_ahead(self, spec) if is_whole else None
        if ahead is not None:
            return ahead
        before_read([spec])
        header = {"kind": "read", **transport.dtype_fields(transport_dtype)}
        dtype = transport.narrowed(transport_dtype).get(spec.dtype, spec.dtype)
        out = np.empty((stop - start, spec.width), spec.dtype)
        for batch in transfers(spec, start, stop, self._config.chunk_bytes):
            replies = self._ask(
                {
                    ps: self._request({**header, "shard": [spec.id, index], "rows": [a, b]})
                    for ps, (index, a, b) in batch.items()
                }
            )
            for ps, (_, a, b) in batch.items():
                parts: list[BodyPart] = [(dtype, (b - a, spec.width))]
                (rows,) = messages.body_arrays(replies[ps].body, parts)
                out[a - start : b - start] = transport.float32_of(rows)
        return out.reshape(shape_of_rows(spec, stop - start))

    @consistent_read
    def read_all(self, specs: Sequence[VariableSpec]) -> list[Array]:
        before_read(specs)
        return [value for group in self._groups(specs) for value in self._read_group(group)]

    def _read_group(self, specs: Sequence[VariableSpec]) -> list[Array]:
        if len(specs) == 1:
            return [self.read(specs[0])]
        # No cache: its arrays must not be written into, and may have come as bfloat16.
        pull = Pull([Fetch(spec, None) for spec in specs], {}, self._config.chunk_bytes)
        for ps, reply in self._answers(pull.messages()).items():
            pull.receive(ps, reply.header["versions"], reply.body)
        return pull.values()

    @consistent_read
    def read_rows(self, spec: VariableSpec, ids: Array) -> Array:
        before_read([spec])
        lookup = look_up(spec, ids)
        rows_at_once = max(1, self._config.chunk_bytes // row_bytes(spec))
        rows = np.empty((len(lookup.unique), spec.width), spec.dtype)
        for start in range(0, len(rows), rows_at_once):
            part = look_up(spec, lookup.unique[start : start + rows_at_once])
            pull = Pull.of_rows(spec, part, rows.dtype)
            replies = self._answers(pull.messages())
            for ps, reply in replies.items():
                pull.receive(ps, reply.header["versions"], reply.body)
            (found,) = pull.values()
            rows[start : start + rows_at_once] = found.rows[part.inverse]
        return rows[lookup.inverse].reshape(shape_of_rows(spec, lookup.inverse.size))

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        count = rows_of_value(spec, value, start)
        rows = as_rows(spec, value, count)
        for batch in transfers(spec, start, start + count, self._config.chunk_bytes):
            changes = {}
            for ps, (index, a, b) in batch.items():
                part = rows[a - start : b - start]
                changes[ps] = assignment(spec, index, op, (a, b), part)
            self._change([spec.id], changes)

    def assign_all(self, values: Sequence[tuple[VariableSpec, Any]]) -> None:
        checked = [as_rows(spec, value, spec.rows) for spec, value in values]
        rows = iter(checked)
        for group in self._groups([spec for spec, _ in values]):
            self._assign_group(group, [next(rows) for _ in group])

    def _assign_group(self, specs: Sequence[VariableSpec], values: Sequence[Array]) -> None:
        if len(specs) == 1:
            self.assign(specs[0], "set", values[0].reshape(specs[0].shape))
            return
        changes: dict[int, list[Message]] = {}
        for spec, rows in zip(specs, values, strict=True):
            for index, shard in enumerate(spec.shards):
                bounds = shard.row_start, shard.row_stop
                change = assignment(spec, index, "set", bounds, rows[slice(*bounds)])
                changes.setdefault(shard.ps, []).append(change)
        self._change_together([spec.id for spec in specs], changes)

    def _groups(self, specs: Sequence[VariableSpec]) -> list[list[VariableSpec]]:
        return groups(specs, self._config.chunk_bytes)

    def scatter(self, spec: VariableSpec, op: str, ids: Array, rows: Any) -> None:
        for index, shard, part_ids, part in scatter_parts(spec, ids, rows):
            header = {"kind": "scatter", "op": op, "shard": [spec.id, index]}
            body = LateBody.of([part_ids, part])
            self._change([spec.id], {shard.ps: ({**header, "count": len(part_ids)}, body)})

    @consistent_read
    def claim(self, spec: VariableSpec, asked: KeyQuery, *, is_training: bool) -> NDArray[np.int64]:
        return claim(self._answers, spec, asked, is_training=is_training)

    @consistent_read
    def count_keys(self, spec: VariableSpec) -> dict[str, int]:
        ask = functools.partial(self.ask_all, timeout_s=self._config.transfer_timeout_s)
        return count_keys(ask, spec)

    @consistent_read
    def evict(self, eviction: Eviction) -> int:
        """Evicts keys, as :func:`pstrain.features.eviction.evict` does; returns how many.

        If a restore undoes the eviction before it has ended, it is done again afterwards, unless
        the program itself goes back to the checkpoint.
        """
        session = self.session
        with self.reassigning_rows([eviction.mapping.id]):
            self.check_goes_on()
            return evict(eviction, ServerSteps(self._answers, session, self._config.chunk_bytes))

    @contextmanager
    def reassigning_rows(self, variables: Sequence[int]) -> Iterator[None]:
        """Opens a scope that changes values at once.

        If they are keys, no closure may use the old rows of keys: running closures end first,
        others wait, and cached rows are forgotten. No snapshot is taken meanwhile.
        """
        if not self.key_maps.any_holds_keys(variables):
            yield
            return
        with self.hold_closures(), self.key_maps.moving:
            try:
                yield
            finally:
                self.key_maps.forget(variables)

    def barrier(self) -> AbstractContextManager[None]:
        return self.hold_closures()

    def check_current(self) -> None:
        self.advance(0)

    def snapshot(
        self, specs: Mapping[str, VariableSpec], tracking: Tracking | None = None
    ) -> RemoteSnapshot:
        before_read(specs.values())
        return RemoteSnapshot(self, specs, tracking)

    def load(
        self,
        directory: str,
        specs: Mapping[str, VariableSpec],
        saved: Saved,
        agree: Callable[[], None] = agreed,
    ) -> None:
        before_read(specs.values())
        with self.reassigning_rows([spec.id for spec in specs.values()]):
            load(self, directory, specs, saved, agree)

    def change_session(self, session: str) -> None:
        """Sends all further requests in another session, and forgets what is known of values."""
        super().change_session(session)
        self.forget_values()

    def forget_values(self) -> None:
        """Forgets what is known of servers' contents: some may have been started anew."""
        self._wholes.clear()
        self._has_slots.clear()
        self.key_maps.forget()

    def __reduce__(self) -> Any:
        raise TypeError(
            "parameters of a cluster can only be sent to its trainers, by scheduling a function"
        )

    def _make_slots(self, updates: Sequence[Update], optimizer: OptimizerSpec) -> None:
        """Makes optimizer slots before a first step, which a large table's slots would delay."""
        for spec, _, _ in updates:
            key = (spec.id, optimizer.name)
            if key in self._has_slots:
                continue
            if spec.rows * row_bytes(spec) > self._config.chunk_bytes:
                shards: dict[int, list[list[int]]] = {}
                for index, shard in enumerate(spec.shards):
                    shards.setdefault(shard.ps, []).append([spec.id, index])
                header = {"kind": "slots", "optimizer": optimizer.text}
                self._work_through({ps: {**header, "shards": s} for ps, s in shards.items()})
            self._has_slots.add(key)

    def _change(self, variables: Sequence[int], changes: Mapping[int, tuple[Header, Any]]) -> None:
        """Makes changes, by server: at once, or staged with those of the running closure."""
        staging = current_staging()
        if staging is None:
            with self.reassigning_rows(variables):
                self._ask({ps: self._request(*each) for ps, each in changes.items()}, repeat=False)
            return
        read_ahead.forget(self, variables)
        staging.touch(variables)
        for ps, (header, body) in changes.items():
            staging.add(ps, header, body)

    def _change_together(
        self, variables: Sequence[int], changes: Mapping[int, Sequence[Message]]
    ) -> None:
        """Makes several changes per server: at once, in one message per server, or staged."""
        if current_staging() is None:
            self._change(variables, {ps: several(each) for ps, each in changes.items()})
            return
        for ps, each in changes.items():
            for change in each:
                self._change(variables, {ps: change})


def _holds(iterations: VariableSpec | None, ps: int) -> bool:
    return iterations is not None and iterations.shards[0].ps == ps

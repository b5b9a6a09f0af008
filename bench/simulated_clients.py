"""Simulated workers and readers of one dispatcher: they call it at the intervals it asks for.

One asyncio thread speaks gRPC for thousands of clients over a few connections. Workers send
heartbeats, readers sync. Some readers are active: a worker leases windows for each of them, and the
reader reports these windows as consumed, as often as a real reader does. No pipeline runs and no
element moves. A client whose call fails retries after `RETRY_S`. All clients join at the start,
`_JOINING_AT_ONCE` calls at a time. A latency is the time from the call to the reply as this process
sees it; `late` is how far this process was behind its own schedule, which bounds its own share of a
latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from typing import Any

import grpc
import numpy as np

from bench.options import new_parser
from bench.peers import children
from dataservice.client.pacing import GROUP_S
from dataservice.config import DEFAULT_HEARTBEAT_INTERVAL_MS
from dataservice.runtime.auth import TOKEN_METADATA_KEY, resolve_token
from dataservice.runtime.retry import MAX_PAUSE_S
from dataservice.runtime.rpc.conventions import PROTOCOL_METADATA_KEY
from dataservice.vocabulary import PROTOCOL_VERSION, ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb

OWN_INTERVAL_S = DEFAULT_HEARTBEAT_INTERVAL_MS / 1_000
# The longest pause of a real client between two attempts to reach a dispatcher.
RETRY_S = MAX_PAUSE_S
_LEASE_EVERY_S = 1.0
_WINDOWS_AT_ONCE = 2
_JOINING_AT_ONCE = 64
_CALL_TIMEOUT_S = 30.0
_SETTLE_S = 2.0
_RECOVERY_S = 60.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    # Each channel has its own connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def _interval_s(reply: Any) -> float:
    """Returns how long a client without news is silent after this reply."""
    return max(OWN_INTERVAL_S, reply.heartbeat_interval_ms / 1_000)


def _next_due_s(due_s: float, interval_s: float) -> float:
    """Returns the time of the next call; a client that is late does not catch up."""
    return max(due_s, time.perf_counter() - interval_s) + interval_s


class Meter:
    """Latencies by method, lateness, and the clients with no reply since their last failure."""

    def __init__(self) -> None:
        self.latencies: dict[str, list[float]] = {}
        self.late: list[float] = []
        self.errors: dict[str, int] = {}
        self.failing: set[str] = set()
        self.noticed: set[str] = set()
        self.awaited: set[str] = set()
        self.recovered = asyncio.Event()

    def start(self) -> None:
        """Discards the measurements so far."""
        self.latencies, self.late, self.errors = {}, [], {}

    def note(self, method: str, client: str, seconds: float) -> None:
        """Records a reply."""
        self.latencies.setdefault(method, []).append(seconds)
        self.failing.discard(client)
        if self.noticed:
            self.awaited.discard(client)
            if not self.awaited and not self.failing:
                self.recovered.set()

    def await_restart(self, clients: set[str]) -> None:
        """Clears `recovered`; it is set once all `clients` have a reply again after a failure."""
        self.failing, self.noticed, self.errors = set(), set(), {}
        self.awaited = clients
        self.recovered.clear()

    def note_error(self, client: str, status: str) -> None:
        """Records a call that failed."""
        self.errors[status] = self.errors.get(status, 0) + 1
        self.failing.add(client)
        self.noticed.add(client)

    def summary(self, seconds: float) -> dict[str, Any]:
        """Returns rates, errors, and latencies in milliseconds, for all calls and by method."""
        everything = [latency for some in self.latencies.values() for latency in some]
        return {
            "replies_per_s": round(len(everything) / seconds),
            "errors": self.errors,
            **_quantiles(everything),
            "by_method": {
                name: {"per_s": round(len(some) / seconds), **_quantiles(some)}
                for name, some in self.latencies.items()
            },
            "late_p99_ms": _quantiles(self.late)["p99_ms"],
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    marks = np.quantile(seconds, [0.5, 0.99, 1.0]) * 1_000 if seconds else [0.0] * 3
    return {
        name: round(float(v), 2)
        for name, v in zip(("p50_ms", "p99_ms", "max_ms"), marks, strict=True)
    }


class Clients:
    """All simulated clients of a process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.meter = Meter()
        self._options = options
        self._metadata = (
            (TOKEN_METADATA_KEY, resolve_token(None)),
            (PROTOCOL_METADATA_KEY, str(PROTOCOL_VERSION)),
        )
        self._channels = [
            grpc.aio.insecure_channel(options.target, options=_OPTIONS)
            for _ in range(options.connections)
        ]
        self._calls: dict[tuple[int, str], Any] = {}
        self._joining = asyncio.Semaphore(_JOINING_AT_ONCE)
        self._dice = random.Random(0)
        self._workers: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def call(self, number: int, method: str, request: Any) -> Any:
        """Returns the reply of a method, called over the connection of client `number`."""
        key = (number % len(self._channels), method)
        stub = self._calls.get(key)
        if stub is None:
            stub = self._calls[key] = self._channels[key[0]].unary_unary(
                f"/dataservice.Dispatcher/{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=getattr(pb, f"{method}Reply").FromString,
            )
        return await stub(request, metadata=self._metadata, timeout=_CALL_TIMEOUT_S)

    async def join(self) -> None:
        """Registers all workers, then opens all readers; each then begins its regular calls."""
        options = self._options
        self._workers = await asyncio.gather(*map(self._register, range(options.workers)))
        await asyncio.gather(*map(self._open, range(options.readers)))

    def _begin(self, loop: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(loop))

    async def _register(self, number: int) -> str:
        async with self._joining:
            request = pb.RegisterWorkerRequest(
                address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:40000",
                pid=number,
                host=f"host-{number}",
                host_id=f"boot-{number}",
            )
            reply = await self._enter(number, "RegisterWorker", request)
        self._begin(self._beat(number, reply))
        return reply.worker_id

    async def _enter(self, number: int, method: str, request: Any) -> Any:
        began = time.perf_counter()
        reply = await self.call(number, method, request)
        self.meter.note(method, "", time.perf_counter() - began)
        return reply

    async def _open(self, number: int) -> None:
        async with self._joining:
            request = pb.OpenIterationRequest(
                dataset_id=self._options.dataset_id,
                policy=int(ShardingPolicy.DYNAMIC),
                job_name=self._options.job_name,
                reader_id=f"reader-{number:05}-0000000000000000",
                reader_host=f"host-{number}",
                reader_pid=number + 1,
            )
            reply = await self._enter(number, "OpenIteration", request)
        self._begin(self._read(number, reply, is_active=number < self._options.active))

    async def _timed(self, client: str, number: int, method: str, request: Any) -> Any:
        began = time.perf_counter()
        try:
            reply = await self.call(number, method, request)
        except grpc.aio.AioRpcError as error:
            self.meter.note_error(client, error.code().name)
            return None
        self.meter.note(method, client, time.perf_counter() - began)
        return reply

    async def _pause(self, due_s: float) -> None:
        now_s = time.perf_counter()
        if due_s > now_s:
            await asyncio.sleep(due_s - now_s)
        self.meter.late.append(max(0.0, time.perf_counter() - due_s))

    async def _beat(self, number: int, joined: pb.RegisterWorkerReply) -> None:
        """Sends the heartbeats of a worker without streams."""
        client = f"worker-{number}"
        iteration_id = self._options.iteration_id
        request = pb.WorkerHeartbeatRequest(
            worker_id=joined.worker_id,
            iteration_ids=[iteration_id],
            production=[pb.Production(iteration_id=iteration_id, rows_per_s=1_000, busy_share=0.5)],
        )
        due_s = time.perf_counter() + _interval_s(joined)
        while True:
            await self._pause(due_s)
            reply = await self._timed(client, number, "WorkerHeartbeat", request)
            interval_s = RETRY_S if reply is None else _interval_s(reply)
            due_s = _next_due_s(due_s, interval_s)

    async def _read(self, number: int, joined: pb.OpenIterationReply, *, is_active: bool) -> None:
        """Syncs as a reader; for an active one, also leases windows as the worker it reads from."""
        client = f"reader-{number}"
        interval_s = GROUP_S if is_active else _interval_s(joined)
        turn, turns_per_lease = 0, round(_LEASE_EVERY_S / GROUP_S)
        request = pb.SyncRequest(
            reader_id=joined.reader_id,
            iteration_id=joined.iteration_id,
            members_known=joined.members_version,
        )
        # Active readers report as their data comes, each at its own time.
        due_s = time.perf_counter() + interval_s + self._dice.random() * _LEASE_EVERY_S * is_active
        while True:
            await self._pause(due_s)
            if is_active and turn % turns_per_lease == 0:
                request.consumed.extend(await self._lease(number, joined, turn + 1))
            turn += 1
            reply = await self._timed(client, number, "Sync", request)
            if reply is not None:
                request.members_known = reply.members_version
                request.rows_consumed += len(request.consumed)
                del request.consumed[:]
            if not is_active:
                interval_s = RETRY_S if reply is None else _interval_s(reply)
            due_s = _next_due_s(due_s, interval_s)

    async def _lease(
        self, number: int, joined: pb.OpenIterationReply, sequence: int
    ) -> list[pb.Mark]:
        """Leases windows; returns the marks by which the reader will report them as consumed."""
        request = pb.LeaseWindowsRequest(
            worker_id=self._workers[number % len(self._workers)],
            iteration_id=joined.iteration_id,
            reader_id=joined.reader_id,
            count=_WINDOWS_AT_ONCE,
            sequence=sequence,
        )
        reply = await self._timed(f"lease-{number}", number, "LeaseWindows", request)
        leases = () if reply is None else reply.windows
        return [
            pb.Mark(window=lease.window, generation=lease.generation, row=1, final=True)
            for lease in leases
        ]


async def play(options: argparse.Namespace) -> None:
    """Joins and measures, then waits until a restarted dispatcher has answered active readers.

    Waits for `_RECOVERY_S` at most, so that a dispatcher that cannot answer is measured too.
    """
    clients = Clients(options)
    began = time.perf_counter()
    await clients.join()
    joined_s = time.perf_counter() - began
    children.say(joined_s=round(joined_s, 2), joining=clients.meter.summary(joined_s))
    await asyncio.sleep(min(_SETTLE_S, options.seconds))
    clients.meter.start()
    cpu_s = time.process_time()
    await asyncio.sleep(options.seconds)
    cpu_share = (time.process_time() - cpu_s) / options.seconds
    children.say(**clients.meter.summary(options.seconds), load_cpu_share=round(cpu_share, 2))
    # Other readers are silent for so long that hardly any of them notices a quick restart.
    clients.meter.await_restart({f"reader-{number}" for number in range(options.active)})
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(clients.meter.recovered.wait(), _RECOVERY_S)
    left = clients.meter.failing | clients.meter.awaited
    children.say(
        noticed=len(clients.meter.noticed), unanswered=len(left), errors=clients.meter.errors
    )
    await asyncio.Event().wait()


def main(argv: list[str] | None = None) -> None:
    """Runs the command line of the process that `bench.dispatcher` starts."""
    parser = new_parser("bench.simulated_clients", __doc__, has_smoke=False)
    parser.add_argument("--target", required=True, help="address of the dispatcher, host:port")
    parser.add_argument("--dataset-id", required=True, help="id of the dataset that the job reads")
    parser.add_argument(
        "--iteration-id", required=True, help="id of the iteration that the readers join"
    )
    parser.add_argument("--job-name", required=True, help="name of the job")
    parser.add_argument("--workers", type=int, required=True, help="number of workers")
    parser.add_argument("--readers", type=int, required=True, help="number of readers")
    parser.add_argument(
        "--active", type=int, required=True, help="number of readers that consume windows"
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=8,
        help="number of gRPC connections that all clients share (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, required=True, help="seconds to measure replies for"
    )
    options = parser.parse_args(argv)
    children.end_with_parent()
    asyncio.run(play(options))


if __name__ == "__main__":
    main()

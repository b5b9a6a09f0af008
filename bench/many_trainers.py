"""What does a coordinator of many trainers cost, when it is idle and when it schedules?

The coordinator and its connections are real. Another process plays all trainers on one asyncio
thread: each runs three closures at a time, which take `--step-s` and compute nothing, and holds
results as real trainers do. Trainers have addresses of their own in 127.0.0.0/8, so this runs on
Linux only. Prints JSON lines, one for each number of trainers: the seconds until all have joined,
threads, open files, the share of a core that the idle coordinator takes, closures per second (at
most three per trainer and step), and the coordinator's CPU time for each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

import pstrain as ps
from bench.options import add_common, new_parser
from bench.peers import children
from dataservice.runtime.rpc.conventions import SERVER_OPTIONS
from pstrain.serialization import results
from pstrain.trainer.result_queue import HOLD_MAX_S, HOLD_S
from pstrain.wire import trainer_pb2 as pb

_RUNNERS = 3
_HOSTS_PER_NET = 250
_POLL_S = 0.02
_VALUE = results.encode(None)


class MadeUpTrainer:
    """Answers the rpcs of a trainer; one object plays all trainers."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def configure(self, request: Any, _context: Any) -> Any:
        return pb.ConfigureReply(incarnation=f"made-up-{request.trainer_index}", pid=os.getpid())

    async def leave(self, _request: Any, _context: Any) -> Any:
        return pb.LeaveReply()

    async def run_closures(self, requests: AsyncIterator[Any], _context: Any) -> AsyncIterator[Any]:
        waiting: asyncio.Queue[Any] = asyncio.Queue()
        ended: asyncio.Queue[Any] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._run(waiting, ended)) for _ in range(_RUNNERS)]
        tasks.append(asyncio.ensure_future(_read(requests, waiting, ended)))
        try:
            while (first := await ended.get()) is not None:
                await asyncio.sleep(min(HOLD_S * waiting.qsize(), HOLD_MAX_S))
                more = [ended.get_nowait() for _ in range(ended.qsize())]
                yield pb.RunReply(results=[first, *(each for each in more if each is not None)])
                if None in more:
                    return
        finally:
            for task in tasks:
                task.cancel()

    async def _run(self, waiting: asyncio.Queue[Any], ended: asyncio.Queue[Any]) -> None:
        while True:
            run = await waiting.get()
            await asyncio.sleep(self._step_s)
            ended.put_nowait(
                pb.ClosureResult(id=run.id, attempt=run.attempt, value=_VALUE, seconds=self._step_s)
            )


async def _read(
    requests: AsyncIterator[Any], waiting: asyncio.Queue[Any], ended: asyncio.Queue[Any]
) -> None:
    try:
        async for request in requests:
            for closure in request.closures:
                waiting.put_nowait(closure)
    finally:
        ended.put_nowait(None)


async def play(step_s: float) -> None:
    """Plays trainers until killed; prints the port at which they listen."""
    trainer = MadeUpTrainer(step_s)
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers = {
        "Configure": unary(
            trainer.configure, pb.ConfigureRequest.FromString, pb.ConfigureReply.SerializeToString
        ),
        "Leave": unary(trainer.leave, pb.LeaveRequest.FromString, pb.LeaveReply.SerializeToString),
        "RunClosures": stream(
            trainer.run_closures, pb.RunRequest.FromString, pb.RunReply.SerializeToString
        ),
    }
    server = grpc.aio.server(options=SERVER_OPTIONS)
    name = pb.DESCRIPTOR.services_by_name["Trainer"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("0.0.0.0:0")
    await server.start()
    children.say(port=port)
    await server.wait_for_termination()


def addresses(trainers: int, port: int) -> list[str]:
    """Returns as many addresses of this host with that port."""
    numbers = (divmod(number, _HOSTS_PER_NET) for number in range(trainers))
    return [f"127.0.{net + 1}.{host + 1}:{port}" for net, host in numbers]


def measure(trainers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures a coordinator of so many trainers."""
    with (
        children.Children(options.deadline_s) as group,
        ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster,
    ):
        played = group.start("bench.many_trainers", ["--play", "--step-s", str(options.step_s)])
        spec = cluster.resolver.cluster_spec().as_dict()
        spec["worker"] = addresses(trainers, played.line()["port"])
        strategy = ps.ParameterServerStrategy(ps.SimpleClusterResolver(ps.ClusterSpec(spec)))
        began_s = time.perf_counter()
        coordinator = ps.ClusterCoordinator(strategy, queue_capacity=_RUNNERS * trainers)
        try:
            while len(coordinator.live_trainers()) < trainers:
                time.sleep(_POLL_S)
            joined = {"joined_s": round(time.perf_counter() - began_s, 2), **_held()}
            return {
                "bench": "many_trainers",
                "trainers": trainers,
                **joined,
                "idle_share": round(_idle_share(options.seconds), 4),
                **_schedule_for(coordinator, options),
            }
        finally:
            coordinator.close()


def _held() -> dict[str, int]:
    return {"threads": threading.active_count(), "open_files": len(os.listdir("/proc/self/fd"))}


def _idle_share(seconds: float) -> float:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu_s) / (time.perf_counter() - began_s)


def _schedule_for(
    coordinator: ps.ClusterCoordinator, options: argparse.Namespace
) -> dict[str, float]:
    """Schedules closures for about the time asked for, after some that do not count."""
    for _ in range(_RUNNERS):
        coordinator.schedule(nothing)
    coordinator.join(timeout=options.deadline_s)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    scheduled = 0
    while time.perf_counter() - began_s < options.seconds:
        coordinator.schedule(nothing)
        scheduled += 1
    coordinator.join(timeout=options.deadline_s)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return {
        "closures_per_s": round(scheduled / took_s),
        "cpu_us_per_closure": round(cpu_s / scheduled * 1e6, 1),
    }


def nothing() -> None:
    """Does nothing; it is the closure that is scheduled."""


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.many_trainers", __doc__)
    add_common(parser, trainers=[10, 100, 1_000], seconds=5.0, deadline_s=120.0)
    parser.add_argument(
        "--step-s",
        type=float,
        default=0.25,
        help="seconds that a closure takes at a trainer (default: %(default)s)",
    )
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.play:
        asyncio.run(play(options.step_s))
        return
    if options.smoke:
        options.trainers, options.seconds, options.step_s = [3], 0.2, 0.01
    for trainers in options.trainers:
        children.say(**measure(trainers, options))


if __name__ == "__main__":
    main()

"""The wires that carry messages between coordinator, trainers and parameter servers.

Stand-ins for `Connections` and `RpcClient`. Like TCP, a wire is in order and loses nothing unless
it breaks; then neither end knows which of the last messages arrived, and one in flight may arrive
late, after its retry. A cut delays messages, and the ends notice the silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    UnavailableError,
)
from dataservice.runtime.exchanges.message import Message
from dataservice.runtime.rpc import RequestSource
from pstrain.errors import ServerLostError
from pstrain.paramserver import messages
from pstrain.trainer.connections import Request
from tests.simulation.fibers import Event, Fiber, Process, SimpleQueue, running, wait
from tests.simulation.world import STAGE

SILENCE_S = 1.5
_ORDER_S = 1e-9
_END = object()


def passage_s(source: Any, target: Any) -> float:
    """Returns how long a message from one node to the other takes."""
    return source.world.blocked_s(source, target) + source.world.latency_s()


class Exchange:
    """One request to a parameter server and its reply, over a connection that may break."""

    def __init__(
        self, caller: Process, server: Any, header: bytes, on_done: Callable, *, again: bool
    ) -> None:
        self.reply: Any = None
        self._caller, self._server, self._header = caller, server, header
        self._on_done = on_done
        world = self._world = caller.world
        dice = world.dice
        # Spares some calls of the coordinator: if it cannot fence a lost trainer it gives up
        # training, which is not simulated.
        is_spared = caller is world.coordinator and (again or not world.breaks_orders)
        if not is_spared and dice.random() < world.loss:
            self._break(dice)
            return
        world.at(passage_s(caller, server), server, self._arrive, any_life=True)
        if dice.random() < world.doubling:
            world.at(passage_s(caller, server) + dice.random(), server, self._echo, any_life=True)

    def _break(self, dice: Any) -> None:
        """Breaks the connection before the request arrives, or before the reply does."""
        world, broken = self._world, UnavailableError("connection reset")
        if dice.random() < 0.6:
            late_s = dice.choice((0.0, 0.0, 0.05, 0.5))
            world.at(passage_s(self._caller, self._server) + late_s, self._server, self._echo)
        world.at(world.latency_s() * 2, self._caller, self._finish, broken)

    def _arrive(self) -> None:
        reply: Any = UnavailableError("refused")
        if self._server.alive:
            reply = self._server.answer(self._header)
        self._world.at(passage_s(self._server, self._caller), self._caller, self._finish, reply)

    def _echo(self) -> None:
        """Has the server handle the request; the reply is lost."""
        if self._server.alive:
            self._server.answer(self._header)

    def _finish(self, reply: Any) -> None:
        if self.reply is None:
            self.reply = reply
            self._on_done()


class Connections:
    """Stands for `pstrain.trainer.connections.Connections`."""

    def __init__(self, addresses: Any, **_security: object) -> None:
        self.addresses = tuple(addresses)
        self._closed = False

    def ask(
        self, requests: Mapping[int, Any], timeout_s: float, *, repeat: bool
    ) -> dict[int, Message]:
        if self._closed:
            raise CancelledError("the connections to the parameter servers are closed")
        fiber = running()
        deadline_s = STAGE.world.now_s + timeout_s
        calls = {ps: self._call(fiber, ps, request) for ps, request in requests.items()}
        replies = {}
        for ps, request in requests.items():
            reply = self._reply(calls[ps], ps, deadline_s)
            if isinstance(reply, UnavailableError) and repeat:
                reply = self._reply(self._call(fiber, ps, request, again=True), ps, deadline_s)
            if isinstance(reply, DataServiceError):
                raise ServerLostError(f"parameter server {ps} is gone: {reply}")
            replies[ps] = reply
        return replies

    def action(self, server: int, name: str, body: bytes, timeout_s: float) -> bytes:
        header = messages.encode_header({"action": name, **json.loads(body)})
        call = self._call(running(), server, Request(header), again=True)
        reply = self._reply(call, server, STAGE.world.now_s + timeout_s)
        if isinstance(reply, DataServiceError):
            raise ServerLostError(f"parameter server {server}: {reply}")
        return json.dumps(messages.decode_reply(reply.header)).encode()

    def open_stream(self, server: int, exchange: str, _timeout_s: float) -> ActionStream:
        return ActionStream(self, server, exchange)

    def close(self) -> None:
        self._closed = True

    def _call(self, fiber: Fiber, ps: int, request: Any, *, again: bool = False) -> Exchange:
        if self._closed:
            raise CancelledError("the connections to the parameter servers are closed")
        server = STAGE.world.servers[ps]
        return Exchange(fiber.node, server, request.header, fiber.wake, again=again)

    def _reply(self, call: Exchange, ps: int, deadline_s: float) -> Any:
        while call.reply is None:
            left_s = deadline_s - STAGE.world.now_s
            if left_s <= 0:
                raise DeadlineExceededError(f"parameter server {ps} did not answer in time")
            wait(left_s)
        return call.reply


class ActionStream:
    """An open stream to one process of a parameter server, for an action without arguments."""

    def __init__(self, connections: Connections, server: int, name: str) -> None:
        self._connections, self._server, self._name = connections, server, name
        self._life = self._present_life()

    def send(self, _message: bytes, *, timeout_s: float) -> None:  # noqa: ARG002
        if self._present_life() != self._life:
            raise UnavailableError("connection reset")
        request = Request(messages.encode_header({"action": self._name}))
        self._call = self._connections._call(running(), self._server, request, again=True)

    def recv(self, timeout_s: float) -> Message:
        deadline_s = STAGE.world.now_s + timeout_s
        reply = self._connections._reply(self._call, self._server, deadline_s)
        if isinstance(reply, DataServiceError):
            raise reply
        return Message(json.dumps(messages.decode_reply(reply.header)).encode(), None)

    def close(self) -> None: ...

    def _present_life(self) -> int:
        node = STAGE.world.servers[self._server]
        if not node.alive:
            raise UnavailableError("refused")
        return int(node.life)


class RpcClient:
    """Stands for `dataservice.runtime.rpc.RpcClient`, from the coordinator to a trainer."""

    def __init__(self, address: str, *_args: object, **_security: object) -> None:
        self._node = running().node
        self._trainer = STAGE.world.trainers[address]
        self._streams: list[Stream] = []

    def call(self, _method: str, request: Any, *, timeout_s: float) -> Any:
        world, fiber, answers = STAGE.world, running(), []
        sent = type(request)()
        sent.CopyFrom(request)

        def answer(value: Any) -> None:
            answers.append(value)
            fiber.wake()

        def reply(value: Any) -> None:
            if world.dice.random() < world.loss:
                value = UnavailableError("connection reset")
            world.at(passage_s(self._trainer, self._node), self._node, answer, value)

        delay_s = passage_s(self._node, self._trainer)
        world.at(delay_s, self._trainer, self._trainer.receive, sent, reply, any_life=True)
        deadline_s = world.now_s + timeout_s
        while not answers:
            left_s = deadline_s - world.now_s
            if left_s <= 0:
                raise DeadlineExceededError("the trainer did not answer in time")
            wait(left_s)
        if isinstance(answers[0], DataServiceError):
            raise answers[0]
        return answers[0]

    def stream(self, _method: str, requests: RequestSource) -> Stream:
        stream = Stream(self._node, self._trainer, requests)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        for stream in self._streams:
            stream.cancel()


class Stream:
    """A stream of orders to a trainer, and of results from it."""

    def __init__(self, node: Process, trainer: Any, requests: RequestSource) -> None:
        self._node, self._trainer, self._world = node, trainer, node.world
        self._arrivals_s = {True: 0.0, False: 0.0}
        self._down: Any = SimpleQueue()
        self.up: Any = SimpleQueue()
        self._is_over = self._was_silent = self.is_served = False
        self._woken = Event()
        # A connection that is begun while the process is down never reaches a later process.
        self._life = trainer.life if trainer.alive else None
        self._world.streams.append(self)
        node.spawn(self._send_all, requests)
        self._pass(False, self._connect)
        self._world.at(SILENCE_S, node, self._look)

    # The coordinator's end

    def __iter__(self) -> Iterator[Any]:
        while (item := self._down.get()) is not _END:
            if isinstance(item, Exception):
                raise item
            yield item

    def cancel(self) -> None:
        self._end(CancelledError("the stream was closed"))

    def reset(self) -> None:
        """Breaks the connection."""
        self._end(UnavailableError("connection reset"))

    def _send_all(self, requests: RequestSource) -> None:
        requests.listen(self._woken.set)
        while not (self._is_over or requests.is_over):
            self._woken.wait()
            self._woken.clear()
            while (request := requests.take()) is not None:
                sent = type(request)()
                sent.CopyFrom(request)
                self._pass(False, self.up.put, sent)

    def _end(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            self._world.streams.remove(self)
            self._down.put(error)
            self._woken.set()
            self._pass(False, self._hang_up)

    def _look(self) -> None:
        if self._is_over:
            return
        world, node, trainer = self._world, self._node, self._trainer
        cut = world.blocked_s(node, trainer) > 0 or world.blocked_s(trainer, node) > 0
        silent = cut or trainer.frozen_until_s > world.now_s
        if silent and self._was_silent:
            self._end(UnavailableError("silent"))
            return
        self._was_silent = silent
        world.at(SILENCE_S / 2, node, self._look)

    # The trainer's end

    def _connect(self) -> None:
        if self._trainer.alive and self._trainer.life == self._life:
            self.is_served = True
            self._trainer.spawn(self._serve)
        else:
            # The host refuses the connection, as the process is not there.
            delay_s = passage_s(self._trainer, self._node)
            self._world.at(delay_s, self._node, self._arrive, UnavailableError("refused"))

    def _serve(self) -> None:
        last: object = _END
        try:
            for reply in self._trainer.service.run_closures(self._orders()):
                sent = type(reply)()
                sent.CopyFrom(reply)
                self._pass(True, self._arrive, sent)
        except DataServiceError as error:
            last = error
        self._hang_up()
        self._pass(True, self._arrive, last)

    def _orders(self) -> Iterator[Any]:
        while (item := self.up.get()) is not _END:
            if isinstance(item, Exception):
                raise item
            yield item

    def _hang_up(self) -> None:
        self.up.put(CancelledError("the coordinator is gone"))

    def _arrive(self, item: object) -> None:
        if self._is_over:
            return
        self._down.put(item)
        if item is _END or isinstance(item, Exception):
            self._is_over = True
            self._world.streams.remove(self)
            self._woken.set()

    def died(self, trainer: Any) -> None:
        """Has the trainer's host reset the connection, if it is that trainer's."""
        if trainer is self._trainer:
            delay_s = passage_s(trainer, self._node)
            self._world.at(delay_s, self._node, self.reset)

    def _pass(self, is_up: bool, action: Callable[..., None], *args: object) -> None:
        """Sends a message to the other end, in order."""
        source, target = (self._trainer, self._node) if is_up else (self._node, self._trainer)
        if not source.alive:
            return
        due_s = self._world.now_s + passage_s(source, target)
        self._arrivals_s[is_up] = max(self._arrivals_s[is_up] + _ORDER_S, due_s)
        wait_s = self._arrivals_s[is_up] - self._world.now_s
        any_life = action == self._connect
        self._world.at(wait_s, target, action, *args, any_life=any_life)

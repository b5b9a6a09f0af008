"""The processes of a training cluster: parameter servers, a data service, trainers.

Real: a server's requests, store, commits and ledger; a trainer's service, session, iterators,
staging, turns and committer, threads included. Modelled: the wires, and the data service, which
gives each row to one reader, takes back unused rows when a reader leaves or its owner says that it
is gone, and believes the owner's marks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dataservice.errors import CancelledError, DataServiceError
from dataservice.runtime.exchanges.message import Message
from pstrain.paramserver import messages
from pstrain.paramserver.commits import Commits
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.requests import answer
from pstrain.paramserver.server import Sessions
from pstrain.sessions.presence import Presence
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.service import TrainerService
from pstrain.variables.parameters import current_step
from tests.simulation.fibers import Process, running, wait
from tests.simulation.shadow import Violation
from tests.simulation.training_values import make_counter, make_values
from tests.simulation.training_wires import passage_s
from tests.simulation.world import STAGE

SERVICE = "data:1"
FIRST_SESSION = "s1"
# How long the data service waits for the statement of a lost reader's owner.
OWNER_TIMEOUT_S = 15.0


class ServerNode(Process):
    """A parameter server."""

    def __init__(self, world: Any, number: int) -> None:
        super().__init__(world, f"ps{number}")
        self._number = number
        self._boot(FIRST_SESSION)

    @property
    def store(self) -> Any:
        return self._sessions._store

    @property
    def session(self) -> Any:
        """The server's current session; None if it holds nothing."""
        return self._sessions.identity()["session"]

    @property
    def incarnation(self) -> str:
        """Which process of the server this is."""
        return str(self._sessions.identity()["incarnation"])

    def restart(self) -> None:
        """Starts another process, which holds nothing."""
        if not self.alive:
            self._boot(None)

    def _boot(self, session: str | None) -> None:
        self.alive = True
        self._sessions = Sessions()
        self._begin(session)

    def _begin(
        self, session: str | None, replaced: str | None = None, incarnation: str | None = None
    ) -> None:
        if session is not None:
            self._sessions.begin(session, replaced, incarnation)
        self.store.ps = self._number
        make_values(self.store)
        make_counter(self.store, self.world.servers_expected)

    def answer(self, header: bytes) -> Message:
        request = messages.decode_header(header)
        try:
            if "action" in request:
                return Message(messages.encode_header(self._act(request)), None)
            store = self._sessions.store(request["session"])
            if request["kind"] == "apply_round":
                self.world.checker.round_made(self._number, request)
            reply, body = answer(store, Call(request, None))
        except DataServiceError as error:
            return Message(messages.encode_error(error), None)
        if request["kind"] == "both":
            request, reply_to = request["first"], reply["first"]
        else:
            reply_to = reply
        if "error" not in reply_to:
            self.world.checker.answered(self._number, request)
        values = body.to_buffer() if isinstance(body, LateBody) else body
        return Message(messages.encode_header(reply), values)

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["action"]:
            case "reset":
                self._begin(request["session"], request["replaced"], request["incarnation"])
                return {"ends_with_program": False}
            case "advance":
                self._sessions.store(request["session"]).advance(request["low_water"])
            case "status":
                return self._sessions.status()
            case "identity":
                return self._sessions.identity()
        return {}

    def restore_ledger(self) -> None:
        """Replaces the ledger by a copy restored from its saved state, and compares the two."""
        saved = self.store.ledger_state()
        restored: Commits[Any] = Commits()
        restored.restore(saved)
        if restored.state() != saved:
            raise Violation(f"I9: {self.name} saves a ledger that is another one when restored")
        self.store._commits._ledger = restored._ledger


class DataNode(Process):
    """A data service with one epoch of rows; the `void` rows make no element."""

    def __init__(self, world: Any, rows: int) -> None:
        super().__init__(world, "data")
        self.rows = rows
        self.void = {row for row in range(rows) if world.dice.random() < 0.1}
        self.used: set[int] = set()
        self._owners: dict[str, str] = {}
        self._released: set[str] = set()
        self._held: dict[str, list[int]] = {}

    @property
    def is_over(self) -> bool:
        return len(self.used) == self.rows

    def next(self, reader: str, owner: str, elements: int = 1) -> list[list[int]]:
        """Returns the rows of each of the next elements: void rows, then the row that makes it.

        Empty at the end of the data; the last list has only void rows if no row follows them. Rows
        that were given to one reader are given to no other, whether that reader takes them or not.
        """
        given = (self._next(reader, owner) for _ in range(elements))
        return list(itertools.takewhile(bool, given))

    def _next(self, reader: str, owner: str) -> list[int]:
        if owner in self._released or self._owners.setdefault(reader, owner) == "":
            raise CancelledError(f"reader {reader} was released")
        mine = self._held.setdefault(reader, [])
        taken = self.used.union(*self._held.values())
        got: list[int] = []
        for row in (row for row in range(self.rows) if row not in taken):
            got.append(row)
            if row not in self.void:
                break
        mine.extend(got)
        return got

    def use_up(self, reader: str, rows: list[int]) -> None:
        """Handles the acknowledgement of a reader."""
        held = self._held.get(reader, [])
        self._use_up([row for row in rows if row in held])
        self._held[reader] = [row for row in held if row not in rows]

    def release(self, owner: str, consumed: dict[str, list[list[int]]]) -> int:
        """Handles an owner's statement that its readers are gone, and which rows they have used."""
        self._released.add(owner)
        mine = [reader for reader, known in self._owners.items() if known == owner]
        for reader in mine:
            self.use_up(reader, [mark[0] for mark in consumed.get(reader, ())])
            self.leave(reader, [])
        return len(mine)

    def leave(self, reader: str, used: list[int]) -> None:
        """Closes a reader; the rows that it did not use go to others."""
        self.use_up(reader, used)
        self._owners[reader] = ""
        self._held.pop(reader, None)

    def load(self, used: set[int]) -> None:
        """Goes back to the point at which these rows were used, and releases all readers."""
        self.used = set(used)
        self._owners = dict.fromkeys(self._owners, "")
        self._held.clear()

    def _use_up(self, rows: list[int]) -> None:
        self.world.checker.use_up(row for row in rows if row not in self.void)
        self.used.update(rows)


def ask(target: Process, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of another process across the network, and waits for its value or error."""
    fiber, answers = running(), []

    def answered(value: Any) -> None:
        answers.append(value)
        fiber.wake()

    def arrive() -> None:
        try:
            value = function(*args)
        except DataServiceError as error:
            value = error
        world.at(passage_s(target, fiber.node), fiber.node, answered, value)

    world = fiber.node.world
    world.at(passage_s(fiber.node, target), target, arrive, any_life=True)
    while not answers:
        wait(None)
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


class Reader:
    """A trainer's iterator over the data; sends acknowledgements to the service after a delay."""

    def __init__(self, owner: str) -> None:
        STAGE.ids += 1
        self.name = f"reader-{STAGE.ids}"
        self.services = [SERVICE]
        self._owner = owner
        self._node = running().node
        self._node.readers.append(self.name)
        self._data: DataNode = STAGE.world.data
        self._rows: list[int] = []  # taken in this order, and not yet confirmed as used up
        self._buffer: list[list[int]] = []  # given by the service and not yet taken
        self._acknowledged: list[int] = []
        self._is_telling = False

    def __next__(self) -> list[int]:
        asks = not self._buffer
        if asks:
            wanted = self._data.world.elements_given
            self._buffer = ask(self._data, self._data.next, self.name, self._owner, wanted)
        if not self._buffer:
            raise StopIteration
        rows = self._buffer.pop(0)
        self._rows += rows
        if rows[-1] in self._data.void:
            if asks:
                raise StopIteration
            return next(self)  # rows of a lost trainer may have come since the service was asked
        self._data.world.checker.takes(current_step(), rows[-1])
        return [rows[-1]]

    def receipt(self) -> Receipt:
        return Receipt(self, list(self._rows))

    def acknowledge(self, rows: list[int]) -> None:
        self._acknowledged += [row for row in rows if row not in self._acknowledged]
        if not self._is_telling and self._node.alive:
            self._is_telling = True
            delay_s = self._node.world.dice.choice((0.0, 0.05, 0.5))
            self._node.world.at(delay_s, self._node, self._tell)

    def close(self) -> None:
        data, used = self._data, list(self._acknowledged)
        data.world.at(passage_s(self._node, data), data, data.leave, self.name, used)

    def _tell(self) -> None:
        self._is_telling = False
        self._node.spawn(self._confirm, list(self._acknowledged))

    def _confirm(self, rows: list[int]) -> None:
        ask(self._data, self._data.use_up, self.name, rows)
        self._rows = [row for row in self._rows if row not in rows]
        self._acknowledged = [row for row in self._acknowledged if row not in rows]


class Receipt:
    """A receipt for all rows of a reader up to an element."""

    def __init__(self, reader: Reader, rows: list[int]) -> None:
        self._reader, self._rows = reader, rows

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def acknowledge(self) -> None:
        self._reader.acknowledge(self._rows)

    def marks(self) -> list[dict[str, Any]]:
        marks = [[row, 0, 1, True] for row in self._rows]
        return [{"service": SERVICE, "reader": self._reader.name, "marks": marks}]


class TrainerNode(Process):
    """A trainer's process."""

    def __init__(self, world: Any, number: int) -> None:
        super().__init__(world, f"trainer{number}")
        self.address = f"{self.name}:1"
        self.crash_at: tuple[str, int] | None = None
        self.readers: list[str] = []

    def boot(self) -> None:
        """Starts a new process."""
        self.alive = True
        addresses = [server.name for server in self.world.servers]
        self.service = TrainerService(
            lambda request: RemoteParameters(addresses, session=request.session, token="-"),
            Presence(),
        )

    def crash(self) -> None:
        super().crash()
        for reader in self.readers:
            self.world.at(OWNER_TIMEOUT_S, None, self.world.data.leave, reader, [])
        self.readers = []
        for stream in list(self.world.streams):
            stream.died(self)

    def restart(self) -> None:
        if not self.alive:
            self.boot()

    def receive(self, request: Any, reply: Callable[[Any], None]) -> None:
        """Handles a request to configure the trainer; refuses it if the process is not there."""
        if self.alive:
            self.spawn(self._configure, request, reply)
        else:
            reply(CancelledError("refused"))

    def _configure(self, request: Any, reply: Callable[[Any], None]) -> None:
        try:
            reply(self.service.configure(request))
        except DataServiceError as error:
            reply(error)

    def reached(self, place: str) -> None:
        """Called when a fiber is at a place where the trainer may be killed; kills it if due."""
        if self.crash_at is None or self.crash_at[0] != place:
            return
        number = self.crash_at[1] - 1
        self.crash_at = (place, number) if number else None
        if not number:
            self.world.note(f"killed when it had {place}", self)
            self.world.at(self.world.dice.choice((0.05, 0.5, 3.0)), None, self.restart)
            self.crash_soon()

"""The faults that befall simulated clusters of any kind, and the verdict about a run.

Every choice comes from the seed's own generator. Knows no protocol. Invariant: after
FAULTS_UNTIL_S no further fault happens, and nodes that were down are up again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from tests.simulation.dispatcher_node import DispatcherNode
from tests.simulation.worker_node import WorkerNode
from tests.simulation.world import STAGE, Node, World

FAULTS_UNTIL_S = 4.0
REPLAY = "python -m tests.simulation.replay"


class Outcome(NamedTuple):
    """The outcome of a run; equal seeds give equal outcomes."""

    digest: int
    events: int
    seconds: float
    faults: tuple[str, ...]


class Failure(AssertionError):
    """The failure of a seed that breaks an invariant; its text has the command that replays it."""

    def __init__(
        self, seed: int, cause: BaseException, faults: tuple[str, ...], command: str = REPLAY
    ) -> None:
        told = ", ".join(faults) or "no fault"
        super().__init__(f"seed {seed} after {told}: {cause}\nreplay: {command} {seed}")
        self.seed = seed


class BaseScenario(ABC):
    """One cluster and its faults."""

    # The command that replays a seed.
    command: str = REPLAY
    # How long nodes are away: shorter or longer than the time-outs of their peers.
    pauses_s: ClassVar[tuple[float, ...]]
    # Probabilities that a message is lost, and that it is delivered twice.
    noises: ClassVar[tuple[tuple[float, float], ...]] = ((0.0, 0.2), (0.1, 0.0), (0.2, 0.3))

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self.world: Any = World(seed, verbose=verbose)
        STAGE.world, STAGE.node, STAGE.task, STAGE.ids = self.world, None, None, 0
        self.dice = self.world.dice
        self.faults: list[str] = []

    def note(self, what: str, *nodes: Node) -> None:
        """Records a fault that happens at this moment."""
        names = ">".join(node.name for node in nodes)
        self.faults.append(f"{what} {names} at {self.world.now_s:.3f} s".replace("  ", " "))
        self.world.note("FAULT " + self.faults[-1])

    def until_heal_s(self) -> float:
        return max(0.0, FAULTS_UNTIL_S - self.world.now_s)

    def pause_s(self) -> float:
        """Draws how long a node is away, at most until 3 s after FAULTS_UNTIL_S."""
        seconds = self.dice.choice(self.pauses_s) * self.dice.uniform(0.5, 1.5)
        return min(seconds, self.until_heal_s() + 3.0)

    def noise(self) -> None:
        """Has messages lost, doubled and delayed from this moment on."""
        self.note("noise")
        self.world.loss, self.world.doubling = self.dice.choice(self.noises)
        self.world.delay_s = self.dice.choice((0.0, 0.05, 0.3))

    def cut_between(self, nodes: Sequence[Node]) -> None:
        """Cuts the network between two of the nodes, in one direction or in both."""
        source, target = self.dice.sample(nodes, 2)
        seconds = min(self.pause_s(), self.until_heal_s())
        self.note("cut", source, target)
        self.world.cut(source, target, seconds)
        if self.dice.random() < 0.4:
            self.world.cut(target, source, seconds)

    def freeze_one(self, node: Node) -> None:
        if node.alive:
            self.note("freeze", node)
            node.freeze(self.pause_s())

    def heal(self) -> None:
        """Ends the faults; the network is sound from this moment on."""
        self.world.loss = self.world.doubling = self.world.delay_s = 0.0

    def play(self) -> Outcome:
        """Runs to the end; raises Failure if an invariant does not hold."""
        world = self.world
        try:
            self.run()
        except Exception as error:
            if world.verbose:
                self.show()
            raise Failure(world.seed, error, tuple(self.faults), self.command) from error
        finally:
            for node in self.running():
                node.crash()
        return Outcome(world.digest, world.events, world.now_s, tuple(self.faults))

    @abstractmethod
    def run(self) -> None:
        """Runs the scenario to its end and checks the result."""

    def show(self) -> None:
        """Prints the final state of a seed that fails."""
        print(*self.faults, sep="\n")

    def running(self) -> Iterable[Any]:
        """Returns the nodes whose fibers have to be ended."""
        return ()


class ServiceScenario(BaseScenario):
    """A scenario with a dispatcher and data workers, which are killed and come back."""

    dispatcher: DispatcherNode

    def some_worker(self) -> WorkerNode:
        return self.dice.choice(list(self.world.workers.values()))

    def kill_worker(self) -> None:
        worker = self.some_worker()
        if worker.alive:
            self.note("kill", worker)
            worker.crash()
            self.world.at(self.pause_s(), None, worker.restart)

    def kill_dispatcher(self) -> None:
        if self.dispatcher.alive:
            self.note("kill", self.dispatcher)
            self.dispatcher.crash()
            self.world.at(self.pause_s() / 2, None, self.dispatcher.restart)

    def slow_disk(self) -> None:
        self.note("slow disk")
        self.dispatcher.fsync_s = 0.3

    def heal(self) -> None:
        super().heal()
        self.dispatcher.fsync_s = min(self.dispatcher.fsync_s, 0.05)
        self.dispatcher.restart()
        for worker in self.world.workers.values():
            worker.restart()

"""Dependencies between closures: those that wait for the values of others.

Pure. An input is scheduled before the closures that need it, so there are no cycles, and the oldest
closure that has not ended waits for no other. Invariant: a closure is in here exactly while one of
its inputs has not ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Dependencies:
    """The graph of dependencies. Not thread-safe.

    ``missing``: by waiting closure, its inputs that have not ended; ``dependants``: the reverse.
    """

    def __init__(self) -> None:
        self.missing: dict[int, set[int]] = {}
        self.dependants: dict[int, dict[int, None]] = {}

    def add(self, closure: int, inputs: Iterable[int]) -> None:
        """Adds a closure that waits for ``inputs``, which have not ended."""
        self.missing[closure] = set(inputs)
        for each in self.missing[closure]:
            self.dependants.setdefault(each, {})[closure] = None

    def finished(self, closure: int) -> list[int]:
        """Removes an input that has a value; returns, in order, the closures that lack no other."""
        released = []
        for each in self.dependants.pop(closure, ()):
            self.missing[each].discard(closure)
            if not self.missing[each]:
                del self.missing[each]
                released.append(each)
        return released

    def drop(self, closure: int) -> None:
        """Removes a closure that has ended before its inputs."""
        for each in self.missing.pop(closure):
            self.dependants[each].pop(closure)
            if not self.dependants[each]:
                del self.dependants[each]

    def of(self, closure: int) -> tuple[int, ...]:
        """Returns the inputs that ``closure`` waits for."""
        return tuple(sorted(self.missing.get(closure, ())))

    def dependants_of(self, closures: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yields (closure, missing input) of all that need ``closures``, after the input's pair."""
        ended = deque(closures)
        known = set(ended)
        while ended:
            closure = ended.popleft()
            for each in self.dependants.get(closure, ()):
                if each not in known:
                    known.add(each)
                    ended.append(each)
                    yield each, closure

    def __contains__(self, closure: object) -> bool:
        return closure in self.missing

    def __iter__(self) -> Iterator[int]:
        return iter(self.missing)

    def __len__(self) -> int:
        return len(self.missing)

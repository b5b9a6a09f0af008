"""Dependencies between closures: those that wait for the values of others.

Pure. An input was scheduled before what needs it, so nothing ever waits for itself, and of those
that have not ended the oldest waits for nobody. Invariant: a closure is here exactly while one of
its inputs has not ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Inputs:
    """Who waits for whom. Not thread-safe.

    ``missing``: what each closure waits for; ``dependants``: who waits for each.
    """

    def __init__(self) -> None:
        self.missing: dict[int, set[int]] = {}
        self.dependants: dict[int, dict[int, None]] = {}

    def add(self, closure: int, inputs: Iterable[int]) -> None:
        """``inputs`` have not ended."""
        self.missing[closure] = set(inputs)
        for each in self.missing[closure]:
            self.dependants.setdefault(each, {})[closure] = None

    def finished(self, closure: int) -> list[int]:
        """Those that need nothing more now that it has a value, in their order."""
        released = []
        for each in self.dependants.pop(closure, ()):
            self.missing[each].discard(closure)
            if not self.missing[each]:
                del self.missing[each]
                released.append(each)
        return released

    def drop(self, closure: int) -> None:
        """It has ended without its inputs."""
        for each in self.missing.pop(closure):
            self.dependants[each].pop(closure)
            if not self.dependants[each]:
                del self.dependants[each]

    def of(self, closure: int) -> tuple[int, ...]:
        """What it waits for."""
        return tuple(sorted(self.missing.get(closure, ())))

    def needing(self, closures: Iterable[int]) -> Iterator[tuple[int, int]]:
        """All that can't run without these, each with the input that it misses, after that."""
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

    def check_invariants(self) -> None:
        """Raises AssertionError where two indexes disagree."""
        pairs = {(c, each) for c, missing in self.missing.items() for each in missing}
        assert all(self.missing.values())
        assert all(self.dependants.values())
        assert pairs == {(c, each) for each, held in self.dependants.items() for c in held}
        assert all(each < closure for closure, each in pairs)

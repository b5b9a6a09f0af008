"""Restores joined variables into other parts than those that were saved.

Knows names, rows and the manifest's description of files, and reads no file. Invariant: each row of
a joined variable keeps its number, whatever the parts are; parts that do not make up the same whole
are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pstrain.paramserver.saved import Saved, SavedShard
from pstrain.variables.names import Named


class _Part(NamedTuple):
    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + self.shape[0]


def to_json(joined: Mapping[str, Sequence[Named]]) -> dict[str, list[str]]:
    """Returns, for the manifest, the stored names of each joined variable's parts, in row order."""
    return {whole: [part.names[0] for part in parts] for whole, parts in joined.items()}


def recut(
    saved: Saved, stored: Mapping[str, Sequence[str]], joined: Mapping[str, Sequence[Named]]
) -> Saved:
    """Returns ``saved`` with the parts of ``joined`` in place of the parts that were ``stored``."""
    by_name: dict[str, list[SavedShard]] = {}
    for shard in saved.shards:
        by_name.setdefault(shard.name, []).append(shard)
    shards = list(saved.shards)
    for whole, parts in joined.items():
        names = [name for name in stored.get(whole, ()) if name in by_name]
        there = _laid_out((name, by_name[name][0].shape) for name in names)
        wanted = _laid_out((part.names[0], part.variable.spec.shape) for part in parts)
        if there != wanted and _is_same(there, wanted):
            replaced = {part.name for part in (*there, *wanted)}
            shards = [shard for shard in shards if shard.name not in replaced]
            shards += _moved(by_name, there, wanted)
    return saved._replace(shards=tuple(shards))


def _laid_out(parts: Iterator[tuple[str, tuple[int, ...]]]) -> list[_Part]:
    found: list[_Part] = []
    for name, shape in parts:
        found.append(_Part(name, shape, found[-1].stop if found else 0))
    return found


def _is_same(there: Sequence[_Part], wanted: Sequence[_Part]) -> bool:
    rests = {part.shape[1:] for part in (*there, *wanted)}
    return bool(there) and there[-1].stop == wanted[-1].stop and len(rests) == 1


def _moved(
    by_name: Mapping[str, Sequence[SavedShard]], there: Sequence[_Part], wanted: Sequence[_Part]
) -> Iterator[SavedShard]:
    """Yields, for each of the wanted parts, the shards that have some of its rows."""
    for part in wanted:
        for other in there:
            for shard in by_name[other.name]:
                moved = shard.as_part(part.name, part.shape, other.start - part.start)
                if moved.row_start < part.shape[0] and moved.row_stop > 0:
                    yield moved

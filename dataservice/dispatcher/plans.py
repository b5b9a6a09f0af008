"""How an iteration is cut into windows.

Pure values. Invariant: a plan and a round number give the same windows in every process, so the
journal holds the splits once and no windows. Work that takes long for many splits can be done
ahead (`prepare`), outside the dispatcher's lock.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dataservice.sharding import Split, epoch_of
from dataservice.split_table import SplitTable
from dataservice.windowing import Windows, make_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """How an iteration is cut: the plan and an epoch number determine all windows.

    `splits` are kept as a table, whichever sequence was given. `tail_rows` and `target_bytes` are
    as in `make_windows`; plans in older journals have none. `rounds` is how often the splits are
    read, None for endlessly. `shuffle_seed` None keeps the order of the splits; `reshuffles` False
    uses the order of epoch 0 in every epoch. `division` is a digest of everything that determines
    the windows, so that saved positions can be compared with it.
    """

    splits: Sequence[Split]
    target_rows: int
    rounds: int | None = 1
    shuffle_seed: int | None = None
    reshuffles: bool = True
    repetition: int = 0
    division: str = ""
    tail_rows: int = 0
    target_bytes: int = 0
    memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", SplitTable.of(self.splits))

    def windows_of(self, round_number: int) -> Windows:
        """Returns the windows of one reading of the splits; caches the latest result."""
        epoch = self.epoch_of(round_number) if self._varies else 0
        known: tuple[int, Windows] | None = self.memo.get("windows")
        if known is not None and known[0] == epoch:
            return known[1]
        windows = make_windows(
            self.splits,
            epoch=epoch,
            shuffle_seed=self.shuffle_seed,
            target_rows=self.target_rows,
            tail_rows=self.tail_rows,
            target_bytes=self.target_bytes,
        )
        self.memo["windows"] = (epoch, windows)
        return windows

    def count_of(self, round_number: int) -> int:
        """Returns how many windows a reading has; counts the readings up to it once, in order."""
        if not self._varies:
            return len(self.windows_of(0))
        counts: list[int] = self.memo.setdefault("counts", [])
        while len(counts) <= round_number:
            counts.append(len(self.windows_of(len(counts))))
        return counts[round_number]

    def prepare_resume(self, windows: int) -> None:
        """Counts the windows of the readings that the first `windows` windows belong to.

        Takes long for many readings; may run in any thread.
        """
        counted = number = 0
        while counted < windows and number != self.rounds and (count := self.count_of(number)):
            counted += count
            number += 1

    @property
    def _varies(self) -> bool:
        """True if each reading has different windows."""
        return self.shuffle_seed is not None and self.reshuffles

    def prepare(self, round_number: int) -> WindowPlan:
        """Computes ahead what applying and recording need: long for many splits. Any thread."""
        self.windows_of(round_number)
        self.packed_splits()
        return self

    def packed_splits(self) -> str:
        """Returns the splits as compressed text, computed once."""
        if "packed" not in self.memo:
            encoded = SplitTable.of(self.splits).encoded()
            self.memo["packed"] = base64.b64encode(zlib.compress(encoded, 1)).decode()
        packed: str = self.memo["packed"]
        return packed

    def epoch_of(self, round_number: int) -> int:
        """Returns the epoch number that keys the shuffles of a round."""
        return epoch_of(self.repetition, round_number, self.rounds)


_SCALARS: Final = (
    *("target_rows", "rounds", "shuffle_seed", "reshuffles", "repetition"),
    *("division", "tail_rows", "target_bytes"),
)


def plan_to_json(plan: WindowPlan) -> dict[str, Any]:
    """Returns the plan as JSON values."""
    return {
        "table": plan.packed_splits(),
        **{name: getattr(plan, name) for name in _SCALARS},
    }


def with_division(plan: WindowPlan) -> WindowPlan:
    """Returns the plan with its `division`: a digest of which rows are in which window.

    It depends on the sizes of files, as other sizes mean other rows, but not on their versions, as
    files may be copied or touched between two runs.
    """
    scalars = json.dumps([getattr(plan, name) for name in _SCALARS], separators=(",", ":"))
    outline = hashlib.sha256(SplitTable.of(plan.splits).encoded(with_versions=False))
    outline.update(scalars.encode())
    return replace(plan, division=outline.hexdigest()[:16])


def plan_from_json(values: dict[str, Any]) -> WindowPlan:
    """Returns the plan that `plan_to_json` wrote, also in the older formats without a table."""
    if "table" not in values:
        return _older_plan(values)
    packed = values.pop("table")
    plan = WindowPlan(splits=_unpacked(packed), **values)
    plan.memo["packed"] = packed
    return plan


def _unpacked(packed: str) -> SplitTable:
    return SplitTable.decoded(zlib.decompress(base64.b64decode(packed)))


def _older_plan(values: dict[str, Any]) -> WindowPlan:
    """Decodes a plan of an older journal: rows of JSON values, packed or not."""
    packed = values.pop("packed", None)
    if packed is not None:
        values.update(json.loads(zlib.decompress(base64.b64decode(packed))))
    files = values.pop("files")
    splits = []
    for segment, at, groups, start, stop, rows in values.pop("splits"):
        path, size_bytes, version = files[at]
        splits.append(
            Split(
                segment=segment,
                path=path,
                row_groups=None if groups is None else tuple(groups),
                start=start,
                stop=stop,
                rows=rows,
                size_bytes=size_bytes,
                version=version,
            )
        )
    return WindowPlan(splits=tuple(splits), **values)

"""What a checkpoint says of its files: which rows of which variable lie where.

Pure but for its errors. Invariant: what comes out of a manifest was checked, so that no file
outside of the checkpoint's folder is ever opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstrain.errors import DataLossError, InvalidArgumentError


class SavedFile(NamedTuple):
    """A file of rows of a table that replace those of the files before it."""

    file: str
    size_bytes: int
    checksum: int
    sums: str


class SavedShard(NamedTuple):
    """Where rows ``[row_start, row_stop)`` of a variable lie in a checkpoint.

    ``name`` is the variable's name in the checkpoint, ``file`` is relative to its folder and may
    hold several shards; ``size_bytes`` and ``checksum`` are those of the file. ``slots`` counts the
    values that the optimizer keeps for each value, ``row_slots`` those for each row, ``firsts``
    what each of these begins with, for rows that were never trained. ``sums`` are those of the
    pieces of a table's file, in hexadecimal. Older checkpoints have neither of the two.
    ``changes``, oldest first, hold rows of the table that changed after ``file`` was written.
    ``stored_as``: what the file calls the variable, where ``name`` is another of its names.
    ``shift``: where the variable is a part of what was joined of other parts, how far its rows are
    from those of the part in the file, which has ``stored_rows`` of them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    row_start: int
    row_stop: int
    file: str
    size_bytes: int
    checksum: int
    optimizer: str | None
    slots: int = 0
    row_slots: int = 0
    sums: str = ""
    changes: tuple[SavedFile, ...] = ()
    firsts: tuple[float, ...] = ()
    stored_as: str | None = None
    shift: int = 0
    stored_rows: int | None = None

    @property
    def files(self) -> list[SavedShard]:
        """One for each file, in the order in which they are to be read."""
        whole = self._replace(changes=())
        return [whole, *(whole._replace(**change._asdict()) for change in self.changes)]

    def inside(self, folder: str) -> SavedShard:
        """The same as seen from the folder that holds ``folder``."""
        changes = tuple(c._replace(file=f"{folder}/{c.file}") for c in self.changes)
        return self._replace(file=f"{folder}/{self.file}", changes=changes)

    def as_part(self, name: str, shape: tuple[int, ...], shift: int) -> SavedShard:
        """The same rows as rows of another part of the same whole."""
        return self._replace(
            name=name,
            shape=shape,
            row_start=self.row_start + shift,
            row_stop=self.row_stop + shift,
            stored_as=self.stored_as or self.name,
            shift=shift,
            stored_rows=self.shape[0],
        )

    def to_json(self) -> dict[str, Any]:
        """JSON form, for manifests and the wire."""
        changes = [change._asdict() for change in self.changes]
        lists = {"shape": list(self.shape), "changes": changes, "firsts": list(self.firsts)}
        described = {**self._asdict(), **lists}
        # Manifests never have them: they name a value once, as it was saved.
        for absent in ("stored_as", "shift", "stored_rows"):
            if not described[absent]:
                del described[absent]
        return described

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SavedShard:
        """Inverse of :meth:`to_json`; DataLossError for anything else."""
        try:
            shape = tuple(map(int, value["shape"]))
            changes = tuple(SavedFile(**change) for change in value.get("changes", ()))
            firsts = tuple(map(float, value.get("firsts", ())))
            shard = cls(**{**value, "shape": shape, "changes": changes, "firsts": firsts})
        except (KeyError, TypeError, ValueError) as error:
            raise DataLossError(
                f"the checkpoint's manifest is damaged: {value!r:.200} is no shard ({error}); "
                "restore an older checkpoint"
            ) from error
        for part in shard.files:
            check_file(part.file)
        if len(shard.firsts) not in (0, shard.slots + shard.row_slots):
            raise DataLossError(
                f"the checkpoint's manifest is damaged: {shard.name!r} has {shard.slots} and "
                f"{shard.row_slots} slots, which begin with {shard.firsts}; restore an older "
                "checkpoint"
            )
        return shard

    @property
    def columns(self) -> list[str]:
        """Names of what is kept of each row: the value, its slots, the row's own."""
        return [
            "values",
            *(f"slot_{index}" for index in range(self.slots)),
            *(f"row_slot_{index}" for index in range(self.row_slots)),
        ]


class Saved(NamedTuple):
    """What a checkpoint holds: shards, and the ledger of each server by its index.

    Ledgers mean something to servers of the same session only.
    """

    shards: tuple[SavedShard, ...]
    session: str | None = None
    ledgers: dict[str, Any] = {}  # noqa: RUF012

    def also_called(self, aliases: Mapping[str, str]) -> Saved:
        """The same, in which variables that are stored under a name are found under others too."""
        stored = {shard.name for shard in self.shards}
        others: dict[str, list[str]] = {}
        for alias, name in aliases.items():
            if alias not in stored:
                others.setdefault(name, []).append(alias)
        again = (
            shard._replace(name=alias, stored_as=shard.name)
            for shard in self.shards
            for alias in others.get(shard.name, ())
        )
        return self._replace(shards=(*self.shards, *again))

    def to_json(self) -> dict[str, Any]:
        """JSON form, for manifests and the wire."""
        return {**self._asdict(), "shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Saved:
        """Inverse of :meth:`to_json`; DataLossError for anything else."""
        try:
            return cls(**{**value, "shards": tuple(map(SavedShard.from_json, value["shards"]))})
        except (KeyError, TypeError) as error:
            raise DataLossError(
                f"the checkpoint's manifest is damaged ({error!r}); restore an older checkpoint"
            ) from error


class Tracking(NamedTuple):
    """Has rows that change noted from a snapshot on, which knows those ``since`` an older one."""

    since: str | None = None


def check_file(name: object) -> None:
    """DataLossError unless ``name`` is a relative path that stays inside its folder."""
    if isinstance(name, str) and "\\" not in name and "\0" not in name:
        parts = name.split("/")
        if all(part not in ("", ".", "..") for part in parts):
            return
    raise DataLossError(
        f"the checkpoint's manifest names the file {name!r}, which is no path inside its folder: "
        "it was not written by pstrain; restore another checkpoint"
    )


def check_shape(name: str, shape: tuple[int, ...], dtype: str, saved: SavedShard) -> None:
    """Raises InvalidArgumentError unless the variable is the one that was saved."""
    if saved.shape != shape or saved.dtype != dtype:
        raise InvalidArgumentError(
            f"variable {name!r} has shape {shape} and dtype {dtype}, but the checkpoint holds "
            f"shape {saved.shape} and dtype {saved.dtype}; restore into a model of the same "
            f"architecture"
        )

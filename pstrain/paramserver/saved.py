"""The description of a checkpoint's files: which rows of which variable lie where.

Pure: reads no files. Invariant: file names from a manifest are checked, so that no file outside the
checkpoint's folder is ever opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstrain.errors import DataLossError, InvalidArgumentError


class SavedFile(NamedTuple):
    """A file with rows of a table that replace the same rows of the files before it."""

    file: str
    size_bytes: int
    checksum: int
    sums: str


class SavedShard(NamedTuple):
    """The place of rows ``[row_start, row_stop)`` of a variable in a checkpoint.

    ``name`` is the variable's name in the checkpoint, ``file`` is relative to its folder and may
    hold several shards; ``size_bytes`` and ``checksum`` are those of the file. ``slots`` counts the
    optimizer's slots per value, ``row_slots`` those per row, and ``firsts`` are their initial
    values, for rows that were never trained. ``sums`` are the checksums of the pieces of a table's
    file, in hexadecimal. Older checkpoints have neither ``firsts`` nor ``sums``. ``changes``,
    oldest first, hold rows of the table that changed after ``file`` was written. ``stored_as`` is
    the variable's name in the file, if ``name`` is another of its names. If the variable is part of
    a joined one that was saved in other parts, its rows are ``shift`` beyond those of the part in
    the file, and ``stored_rows`` is the number of rows of that part.
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
        """The shard once per file, in the order in which the files must be read."""
        whole = self._replace(changes=())
        return [whole, *(whole._replace(**change._asdict()) for change in self.changes)]

    def inside(self, folder: str) -> SavedShard:
        """Returns the shard with file names relative to the parent of ``folder``."""
        changes = tuple(c._replace(file=f"{folder}/{c.file}") for c in self.changes)
        return self._replace(file=f"{folder}/{self.file}", changes=changes)

    def as_part(self, name: str, shape: tuple[int, ...], shift: int) -> SavedShard:
        """Returns the same rows as rows of another part, ``name``, of the same joined variable."""
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
        """Returns the JSON form, for manifests and the wire."""
        changes = [change._asdict() for change in self.changes]
        lists = {"shape": list(self.shape), "changes": changes, "firsts": list(self.firsts)}
        described = {**self._asdict(), **lists}
        # Manifests never contain these fields: they name a value once, as it was saved.
        for absent in ("stored_as", "shift", "stored_rows"):
            if not described[absent]:
                del described[absent]
        return described

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SavedShard:
        """Inverts :meth:`to_json`; raises DataLossError for anything else."""
        try:
            shape = tuple(map(int, value["shape"]))
            changes = tuple(SavedFile(**change) for change in value.get("changes", ()))
            firsts = tuple(map(float, value.get("firsts", ())))
            shard = cls(**{**value, "shape": shape, "changes": changes, "firsts": firsts})
        except (KeyError, TypeError, ValueError) as error:
            raise DataLossError(
                f"the checkpoint's manifest is damaged: {value!r:.200} is not a shard ({error}); "
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
        """The names of the columns of each row: the value, its slots, its row slots."""
        return [
            "values",
            *(f"slot_{index}" for index in range(self.slots)),
            *(f"row_slot_{index}" for index in range(self.row_slots)),
        ]


class Saved(NamedTuple):
    """The contents of a checkpoint: shards, and the ledger of each server by its index.

    Ledgers are valid only for servers of the same ``session``.
    """

    shards: tuple[SavedShard, ...]
    session: str | None = None
    ledgers: dict[str, Any] = {}  # noqa: RUF012

    def also_called(self, aliases: Mapping[str, str]) -> Saved:
        """Returns the contents with each stored variable listed under its aliases as well."""
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
        """Returns the JSON form, for manifests and the wire."""
        return {**self._asdict(), "shards": [shard.to_json() for shard in self.shards]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Saved:
        """Inverts :meth:`to_json`; raises DataLossError for anything else."""
        try:
            return cls(**{**value, "shards": tuple(map(SavedShard.from_json, value["shards"]))})
        except (KeyError, TypeError) as error:
            raise DataLossError(
                f"the checkpoint's manifest is damaged ({error!r}); restore an older checkpoint"
            ) from error


class Tracking(NamedTuple):
    """A request for a snapshot to track changes from now on, and know those ``since`` another."""

    since: str | None = None


def check_file(name: object) -> None:
    """Raises DataLossError unless ``name`` is a relative path that stays inside its folder."""
    if isinstance(name, str) and "\\" not in name and "\0" not in name:
        parts = name.split("/")
        if all(part not in ("", ".", "..") for part in parts):
            return
    raise DataLossError(
        f"the checkpoint's manifest names the file {name!r}, which is not a path inside its "
        "folder: it was not written by pstrain; restore another checkpoint"
    )


def check_shape(name: str, shape: tuple[int, ...], dtype: str, saved: SavedShard) -> None:
    """Raises InvalidArgumentError unless shape and dtype are those that were saved."""
    if saved.shape != shape or saved.dtype != dtype:
        raise InvalidArgumentError(
            f"variable {name!r} has shape {shape} and dtype {dtype}, but the checkpoint holds "
            f"shape {saved.shape} and dtype {saved.dtype}; restore into a model of the same "
            f"architecture"
        )

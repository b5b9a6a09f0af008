"""The splits of a plan, stored as columns: about a hundred bytes for each of a million splits.

A `SplitTable` is a sequence that makes a `Split` when it is asked for it. Knows the fields of a
split, not what splits are used for: neither windows nor journals. Invariant: a table never changes;
it has the same splits, in the same order, as those it was made from, also after it was encoded and
decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, overload

import numpy as np

from dataservice.packed_columns import LENGTH, PackedTexts, folded, is_folded
from dataservice.sharding import FILE_COST_BYTES, Split

# Stands for None in columns of numbers that are never negative.
NOT_KNOWN: Final = -1
# Does what `Split._make` does, but without a Python call for each of a million splits.
_SPLIT_OF: Final[Callable[[tuple[Any, ...]], Split]] = partial(tuple.__new__, Split)
# An iteration makes this many splits at once, so that it never holds the interpreter lock for long.
_CHUNK: Final = 4_096

_COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "segment": np.dtype("<i4"),
    "start": np.dtype("<i8"),
    "stop": np.dtype("<i8"),
    "rows": np.dtype("<i8"),
    "group_count": np.dtype("<i4"),
    "begins_file": np.dtype("u1"),
}
_GROUP: Final = np.dtype("<i4")
_FILE_COLUMNS: Final[dict[str, np.dtype[Any]]] = {
    "has_path": np.dtype("u1"),
    "size_bytes": np.dtype("<i8"),
}
_TEXT_COLUMNS: Final = ("path", "version")


@dataclass(frozen=True, slots=True, eq=False)
class SplitTable(Sequence[Split]):
    """A sequence of splits as columns by name, with entries per split (`columns`) or per file.

    Neighbouring splits of one file share its entry in `files` and `texts`.
    """

    columns: dict[str, np.ndarray]
    groups: np.ndarray
    files: dict[str, np.ndarray]
    texts: dict[str, PackedTexts]
    # Derived from the columns: the file of each split, and where its row groups end in `groups`.
    file_of: np.ndarray
    group_ends: np.ndarray | None

    @classmethod
    def of(cls, splits: Iterable[Split]) -> SplitTable:
        """Returns a table of the given splits."""
        if isinstance(splits, SplitTable):
            return splits
        splits = splits if isinstance(splits, list | tuple) else list(splits)
        count = len(splits)
        begins = np.ones(count, _COLUMNS["begins_file"])
        files: list[tuple[str | None, int, str]] = []
        for at, split in enumerate(splits):
            file = (split.path, split.size_bytes, split.version)
            if files and files[-1] == file:
                begins[at] = 0
            else:
                files.append(file)
        all_groups = [split.row_groups for split in splits]
        values = {
            "segment": (split.segment for split in splits),
            "start": (split.start for split in splits),
            "stop": (split.stop for split in splits),
            "rows": (NOT_KNOWN if split.rows is None else split.rows for split in splits),
            "group_count": (NOT_KNOWN if some is None else len(some) for some in all_groups),
        }
        columns = {name: _column(some, _COLUMNS[name], count) for name, some in values.items()}
        groups = np.array([group for some in all_groups for group in some or ()], _GROUP)
        return cls._made({**columns, "begins_file": begins}, groups, *_file_columns(files))

    @classmethod
    def of_files(cls, files: Iterable[tuple[str, int, str]]) -> SplitTable:
        """Returns a table with one split per file (path, size, version): whole, rows not known."""
        described, texts = _file_columns(files)
        count = len(described["size_bytes"])
        unknown = {"rows": NOT_KNOWN, "group_count": NOT_KNOWN, "begins_file": 1}
        columns = {
            name: np.broadcast_to(np.array(unknown.get(name, 0), dtype), (count,))
            for name, dtype in _COLUMNS.items()
        }
        return cls._made(columns, np.zeros(0, _GROUP), described, texts)

    @classmethod
    def joined(cls, tables: Sequence[SplitTable]) -> SplitTable:
        """Returns the splits of all tables, one table after the other."""
        if len(tables) == 1:
            return tables[0]
        if not tables:
            return cls.of(())
        files = {
            name: np.concatenate([table.files[name] for table in tables]) for name in _FILE_COLUMNS
        }
        texts = {
            name: PackedTexts(
                b"".join(table.texts[name].blob for table in tables),
                np.concatenate([table.texts[name].lengths for table in tables]),
            )
            for name in _TEXT_COLUMNS
        }
        columns = {
            name: np.concatenate([table.columns[name] for table in tables]) for name in _COLUMNS
        }
        return cls._made(columns, np.concatenate([table.groups for table in tables]), files, texts)

    @classmethod
    def _made(
        cls,
        columns: dict[str, np.ndarray],
        groups: np.ndarray,
        files: dict[str, np.ndarray],
        texts: dict[str, PackedTexts],
    ) -> SplitTable:
        columns = {name: folded(column) for name, column in columns.items()}
        files = {name: folded(column) for name, column in files.items()}
        file_of = np.cumsum(columns["begins_file"], dtype=np.int32) - np.int32(1)
        ends = np.cumsum(np.maximum(columns["group_count"], 0)) if len(groups) else None
        return cls(columns, groups, files, texts, file_of, ends)

    # As a sequence

    def __len__(self) -> int:
        return len(self.file_of)

    @overload
    def __getitem__(self, at: int) -> Split: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Split, ...]: ...
    def __getitem__(self, at: int | slice) -> Split | tuple[Split, ...]:
        places = range(len(self))[at]
        if isinstance(places, range):
            return self.take(np.arange(places.start, places.stop, places.step))
        return self.take(np.array([places]))[0]

    def __iter__(self) -> Iterator[Split]:
        for first in range(0, len(self), _CHUNK):
            yield from self[first : first + _CHUNK]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SplitTable) and self.encoded() == other.encoded():
            return True
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SplitTable({len(self):,} splits)"

    def take(self, at: np.ndarray) -> tuple[Split, ...]:
        """Returns the splits at the given indices."""
        file_of = self.file_of[at]
        paths: list[str | None] = [*self.texts["path"].take(file_of)]
        for place in np.flatnonzero(self.files["has_path"][file_of] == 0).tolist():
            paths[place] = None
        segments, starts, stops, rows = (
            self.columns[name][at].tolist() for name in ("segment", "start", "stop", "rows")
        )
        fields = zip(
            segments,
            paths,
            self._groups_at(at),
            starts,
            stops,
            [None if count == NOT_KNOWN else count for count in rows],
            self.files["size_bytes"][file_of].tolist(),
            self.texts["version"].take(file_of),
            strict=True,
        )
        return tuple(map(_SPLIT_OF, fields))

    def _groups_at(self, at: np.ndarray) -> list[tuple[int, ...] | None]:
        counts = self.columns["group_count"][at].tolist()
        if self.group_ends is None:
            return [None if count == NOT_KNOWN else () for count in counts]
        pairs = zip(counts, self.group_ends[at].tolist(), strict=True)
        return [
            None if count == NOT_KNOWN else tuple(self.groups[end - count : end].tolist())
            for count, end in pairs
        ]

    # As columns

    def in_segment(self, segment: int) -> SplitTable:
        """Returns the same splits as parts of another segment."""
        column = np.broadcast_to(np.array(segment, _COLUMNS["segment"]), (len(self),))
        return replace(self, columns={**self.columns, "segment": column})

    @property
    def rows(self) -> np.ndarray:
        """The number of rows of each split, or NOT_KNOWN."""
        return self.columns["rows"]

    def costs_bytes(self) -> np.ndarray:
        """Returns the cost of reading each split: the size of its file or lines, and a constant."""
        sizes = self.files["size_bytes"][self.file_of]
        start, stop, groups = (self.columns[name] for name in ("start", "stop", "group_count"))
        are_lines = (self.rows == NOT_KNOWN) & (groups == NOT_KNOWN) & (stop > 0)
        if are_lines.any():
            sizes = np.where(are_lines, stop - start, sizes)
        return sizes + FILE_COST_BYTES

    def have_path(self) -> np.ndarray:
        """Returns for each split whether it is a part of a file."""
        return self.files["has_path"][self.file_of] != 0

    def total_rows(self) -> int | None:
        """Returns the sum of the rows, or None if the rows of some split are not known."""
        rows = self.rows
        return None if (rows == NOT_KNOWN).any() else int(rows.sum())

    def total_unknown_bytes(self) -> int:
        """Returns the cost of reading those splits whose rows are not known."""
        return int(self.costs_bytes()[self.rows == NOT_KNOWN].sum())

    def total_bytes(self) -> int:
        """Returns the cost of reading all splits."""
        return int(self.costs_bytes().sum())

    def has_sizes(self) -> bool:
        """True if the size of some file is known."""
        return bool(self.files["size_bytes"].any())

    # As bytes

    def encoded(self, *, with_versions: bool = True) -> bytes:
        """Encodes the table, uncompressed; of a constant column only its value is stored."""
        arrays = {**self.columns, **self.files, "groups": self.groups}
        arrays |= {name: self.texts[name].lengths for name in _TEXT_COLUMNS}
        left_out = () if with_versions else ("version",)
        head: dict[str, Any] = {"splits": len(self), "files": len(self.files["size_bytes"])}
        parts = []
        for name, array in arrays.items():
            if name in left_out:
                continue
            column = folded(array)
            head[name] = int(column[0]) if is_folded(column) else len(column)
            if not is_folded(column):
                head.setdefault("listed", []).append(name)
                parts.append(column.tobytes())
        parts.extend(self.texts[name].blob for name in _TEXT_COLUMNS if name not in left_out)
        return b"".join((json.dumps(head).encode(), b"\n", *parts))

    @classmethod
    def decoded(cls, encoded: bytes) -> SplitTable:
        """Decodes the result of `encoded()`, which must have its versions.

        Raises ValueError or KeyError for other bytes.
        """
        end = encoded.index(b"\n")
        head = json.loads(encoded[:end])
        at = end + 1
        listed = set(head.get("listed", ()))

        def read(name: str, dtype: np.dtype, count: int) -> np.ndarray:
            nonlocal at
            if name not in listed:
                return np.broadcast_to(np.array(head[name], dtype), (count,))
            at, first = at + count * dtype.itemsize, at
            return np.frombuffer(encoded, dtype, count, first)

        columns = {name: read(name, dtype, head["splits"]) for name, dtype in _COLUMNS.items()}
        files = {name: read(name, dtype, head["files"]) for name, dtype in _FILE_COLUMNS.items()}
        group_count = int(np.maximum(columns["group_count"], 0).sum(dtype=np.int64))
        groups = read("groups", _GROUP, group_count)
        lengths = {name: read(name, LENGTH, head["files"]) for name in _TEXT_COLUMNS}
        texts = {}
        for name, column in lengths.items():
            first, at = at, at + int(column.sum(dtype=np.int64))
            texts[name] = PackedTexts(encoded[first:at], column)
        if at != len(encoded):
            raise ValueError(f"a table of splits has {len(encoded)} bytes instead of {at}")
        return cls._made(columns, groups, files, texts)


def _column(values: Iterable[int], dtype: np.dtype, count: int) -> np.ndarray:
    return np.fromiter(values, dtype, count)


def _file_columns(
    files: Iterable[tuple[str | None, int, str]],
) -> tuple[dict[str, np.ndarray], dict[str, PackedTexts]]:
    paths: list[str | None] = []
    sizes, versions = [], []
    for path, size_bytes, version in files:
        paths.append(path)
        sizes.append(size_bytes)
        versions.append(version)
    count = len(paths)
    has_path = _column((path is not None for path in paths), _FILE_COLUMNS["has_path"], count)
    columns = {
        "has_path": has_path,
        "size_bytes": _column(iter(sizes), _FILE_COLUMNS["size_bytes"], count),
    }
    texts = {
        "path": PackedTexts.of([path or "" for path in paths]),
        "version": PackedTexts.of(versions),
    }
    return columns, texts

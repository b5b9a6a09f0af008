"""Rows of joined variables that are restored into other parts keep their numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.checkpoints.joined import recut
from pstrain.paramserver.saved import Saved, SavedShard


def shard(name: str, shape: tuple[int, ...], start: int, stop: int) -> SavedShard:
    """A shard with rows ``[start, stop)`` of a part of this shape."""
    return SavedShard(name, shape, "float32", start, stop, f"{name}_{start}", 1, 1, "SGD")


def parts(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """A joined variable ``w`` with parts of these names and shapes."""
    return {
        "w": [
            SimpleNamespace(
                names=(name,), variable=SimpleNamespace(spec=SimpleNamespace(shape=shape))
            )
            for name, shape in shapes.items()
        ]
    }


SAVED = Saved(
    (
        shard("a", (4, 2), 0, 2),
        shard("a", (4, 2), 2, 4),
        shard("b", (3, 2), 0, 3),
        shard("c", (3, 2), 0, 3),
        shard("other", (5,), 0, 5),
    )
)
STORED = {"w": ["a", "b", "c"]}


def test_each_part_gets_the_shards_with_rows_of_its_own() -> None:
    recutted = recut(SAVED, STORED, parts(x=(2, 2), y=(5, 2), z=(3, 2)))
    assert [
        (each.name, each.file, each.row_start, each.row_stop, each.shift)
        for each in recutted.shards
    ] == [
        ("other", "other_0", 0, 5, 0),
        ("x", "a_0", 0, 2, 0),
        ("y", "a_2", 0, 2, -2),
        ("y", "b_0", 2, 5, 2),
        ("z", "c_0", 0, 3, 0),
    ]


def test_shard_with_rows_of_two_parts_goes_to_both() -> None:
    recutted = recut(SAVED, STORED, parts(x=(5, 2), y=(5, 2)))
    assert [(each.name, each.row_start, each.row_stop) for each in recutted.shards[-2:]] == [
        ("y", -1, 2),
        ("y", 2, 5),
    ]
    assert ("x", "b_0", 4, 7) in [
        (each.name, each.file, each.row_start, each.row_stop) for each in recutted.shards
    ]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        pytest.param({}, parts(x=(10, 2)), id="saved as no joined variable"),
        pytest.param(STORED, parts(x=(9, 2)), id="fewer rows"),
        pytest.param(STORED, parts(x=(4, 2), y=(3, 2), z=(4, 2)), id="more rows"),
        pytest.param(STORED, parts(x=(10, 3)), id="wider rows"),
        pytest.param({"w": [*STORED["w"], "lost"]}, parts(x=(11, 2)), id="a part is not there"),
        pytest.param(STORED, parts(a=(4, 2), b=(3, 2), c=(3, 2)), id="the same parts"),
    ],
)
def test_what_is_not_the_same_whole_in_other_parts_is_left_as_it_is(
    stored: dict[str, list[str]], wanted: dict[str, Any]
) -> None:
    assert recut(SAVED, stored, wanted) == SAVED

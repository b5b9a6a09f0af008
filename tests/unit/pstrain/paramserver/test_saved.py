"""The description of a checkpoint's shards: its JSON form, other names and parts, damage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pstrain.errors import DataLossError
from pstrain.paramserver.saved import Saved, SavedFile, SavedShard

CHANGE = SavedFile("ps0-2.bin", 30, 3, "cc")
SHARD = SavedShard(
    name="table",
    shape=(100, 4),
    dtype="float32",
    row_start=20,
    row_stop=60,
    file="ps0.bin",
    size_bytes=10,
    checksum=1,
    optimizer="adagrad",
    slots=1,
    row_slots=1,
    sums="aa",
    changes=(SavedFile("ps0-1.bin", 20, 2, "bb"), CHANGE),
    firsts=(0.1, 0.0),
)
ALIAS = SHARD._replace(name="other", stored_as="table")


@pytest.mark.parametrize("shard", [SHARD, ALIAS, SHARD.as_part("part", (50, 4), -10)])
def test_shard_is_the_same_after_its_json_form(shard: SavedShard) -> None:
    again = SavedShard.from_json(json.loads(json.dumps(shard.to_json())))
    assert again == shard
    assert isinstance(again.changes[0], SavedFile)


def test_json_form_of_a_stored_shard_has_no_other_name_or_part() -> None:
    assert not {"stored_as", "shift", "stored_rows"} & SHARD.to_json().keys()
    assert ALIAS.to_json().keys() - SHARD.to_json().keys() == {"stored_as"}


def test_files_are_read_oldest_first() -> None:
    files = SHARD.inside("ckpt-1").files
    assert [(each.file, each.size_bytes, each.checksum, each.sums) for each in files] == [
        ("ckpt-1/ps0.bin", 10, 1, "aa"),
        ("ckpt-1/ps0-1.bin", 20, 2, "bb"),
        ("ckpt-1/ps0-2.bin", 30, 3, "cc"),
    ]
    assert {each.changes for each in files} == {()}
    assert SHARD.columns == ["values", "slot_0", "row_slot_0"]


@pytest.mark.parametrize("shard", [SHARD, ALIAS])
def test_part_of_another_name_knows_where_its_rows_are_stored(shard: SavedShard) -> None:
    part = shard.as_part("part", (50, 4), -10)
    assert (part.name, part.shape, part.row_start, part.row_stop) == ("part", (50, 4), 10, 50)
    assert (part.stored_as, part.shift, part.stored_rows) == ("table", -10, 100)


def test_aliases_are_added_except_those_that_were_stored_themselves() -> None:
    own = SHARD._replace(name="own")
    saved = Saved((SHARD, own), "session", {"0": {}})
    aliases = {"first": "table", "second": "table", "own": "table", "third": "missing"}
    again = saved.also_called(aliases)
    assert (again.session, again.ledgers) == ("session", {"0": {}})
    assert [(each.name, each.stored_as) for each in again.shards] == [
        ("table", None),
        ("own", None),
        ("first", "table"),
        ("second", "table"),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": None},
        {"shape": ["x"]},
        {"firsts": ["x", 0.0]},
        {"changes": [{"file": "ps0-1.bin"}]},
        {"unknown": 1},
    ],
)
def test_damaged_shard_is_data_loss(damage: dict[str, Any]) -> None:
    with pytest.raises(DataLossError, match=r"is not a shard .*restore an older checkpoint"):
        SavedShard.from_json({**SHARD.to_json(), **damage})


def test_shard_without_a_beginning_for_each_slot_is_data_loss() -> None:
    assert SavedShard.from_json({**SHARD.to_json(), "firsts": []}).firsts == ()
    with pytest.raises(DataLossError, match=r"has 1 and 1 slots, which begin with \(0\.1,\)"):
        SavedShard.from_json({**SHARD.to_json(), "firsts": [0.1]})


@pytest.mark.parametrize("file", ["../ps0.bin", "/ps0.bin", "a//b", "a\\b", "a\0b", "", None])
def test_file_outside_of_the_folder_is_data_loss(file: Any) -> None:
    for damage in ({"file": file}, {"changes": [{**CHANGE._asdict(), "file": file}]}):
        with pytest.raises(DataLossError, match="not a path inside its folder"):
            SavedShard.from_json({**SHARD.to_json(), **damage})


@pytest.mark.parametrize("value", [{}, 3, {"shards": 3}, {"shards": [], "unknown": 1}])
def test_damaged_description_is_data_loss(value: Any) -> None:
    with pytest.raises(DataLossError, match=r"manifest is damaged .*restore an older checkpoint"):
        Saved.from_json(value)
    saved = Saved((SHARD, ALIAS), "session", {"0": {}})
    assert Saved.from_json(json.loads(json.dumps(saved.to_json()))) == saved

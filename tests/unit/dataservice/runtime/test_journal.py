"""A journal: appended frames are replayed, and damage is never taken for contents."""

from __future__ import annotations

import pathlib
import resource
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataservice.errors import (
    DataLossError,
    FailedPreconditionError,
    ResourceExhaustedError,
)
from dataservice.runtime.journal import Journal, SqliteJournal

APPENDS = [[b"frame %d of append %d" % (i, n) * 20 for i in range(3)] for n in range(12)]
ALL = [frame for frames in APPENDS for frame in frames]


@pytest.fixture
def journal(tmp_path: pathlib.Path) -> Iterator[Journal]:
    made = SqliteJournal(tmp_path / "j")
    yield made
    made.close()


def contents(path: pathlib.Path) -> list[bytes]:
    journal = SqliteJournal(path)
    try:
        return list(journal.replay())
    finally:
        journal.close()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the files of a journal whose process died after its last append."""
    folder = tmp_path_factory.mktemp("crashed")
    journal = SqliteJournal(folder / "live")
    for frames in APPENDS:
        journal.append(frames)
    for suffix in ("", "-wal"):
        shutil.copy(folder / f"live{suffix}", folder / f"dead{suffix}")
    journal.close()
    return folder / "dead"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the file of a journal that was closed."""
    path = tmp_path_factory.mktemp("closed") / "journal"
    write(path, APPENDS)
    return path


def write(path: pathlib.Path, appends: Sequence[Sequence[bytes]]) -> None:
    journal = SqliteJournal(path)
    for frames in appends:
        journal.append(frames)
    journal.close()


def copy_of(files: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    for old in folder.glob("copy*"):
        old.unlink()
    for suffix in ("", "-wal"):
        source = files.with_name(files.name + suffix)
        if source.exists():
            shutil.copy(source, folder / f"copy{suffix}")
    return folder / "copy"


# --- Frames


def test_appended_frames_are_replayed_in_order(journal: Journal) -> None:
    assert list(journal.replay()) == []
    journal.append([])
    journal.append([b"a", b"", b"\x00\xff"])
    journal.append([b"b"])
    assert list(journal.replay()) == [b"a", b"", b"\x00\xff", b"b"]


def test_replay_omits_frames_appended_after_its_call(journal: Journal) -> None:
    journal.append([b"a"])
    frames = journal.replay()
    first = next(frames)
    journal.append([b"b"])
    assert [first, *frames] == [b"a"]


def test_replace_discards_all_earlier_frames(journal: Journal) -> None:
    journal.append([b"a", b"b"])
    journal.replace([b"sum"])
    journal.append([b"c"])
    assert list(journal.replay()) == [b"sum", b"c"]
    journal.replace([])
    assert list(journal.replay()) == []


def test_closed_journal_refuses_frames(journal: Journal) -> None:
    journal.close()
    journal.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        journal.append([b"a"])
    with pytest.raises(FailedPreconditionError, match="closed"):
        journal.replace([b"a"])


def test_concurrent_appends_are_not_interleaved(journal: Journal) -> None:
    def append(number: int) -> None:
        for index in range(5):
            journal.append([b"%d %d %d" % (number, index, part) for part in range(3)])

    threads = [threading.Thread(target=append, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    frames = list(journal.replay())
    assert len(frames) == 6 * 5 * 3
    for start in range(0, len(frames), 3):
        number, index, _ = frames[start].split()
        assert frames[start : start + 3] == [b"%s %s %d" % (number, index, p) for p in range(3)]


class HandedOverLock:
    """A lock that runs `enter` as soon as it is released, as a thread that waits for it would."""

    def __init__(self, enter: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._waiting = [enter]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()
        while self._waiting:
            self._waiting.pop()()


def test_append_that_waited_for_lock_gets_next_position(tmp_path: pathlib.Path) -> None:
    journal = SqliteJournal(tmp_path / "j")
    journal._lock = HandedOverLock(lambda: journal.append([b"second"]))
    journal.append([b"first"])
    assert list(journal.replay()) == [b"first", b"second"]
    journal.close()


# --- the file


def test_reopened_journal_continues_after_its_last_frame(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "j", [[b"a"], [b"b", b"c"]])
    write(tmp_path / "j", [[b"d"]])
    assert contents(tmp_path / "j") == [b"a", b"b", b"c", b"d"]
    journal = SqliteJournal(tmp_path / "j")
    journal.replace([b"sum"])
    journal.close()
    write(tmp_path / "j", [[b"e"]])
    assert contents(tmp_path / "j") == [b"sum", b"e"]


def test_frames_of_several_pages_are_all_replayed(tmp_path: pathlib.Path) -> None:
    frames = [b"%d" % index for index in range(2500)]
    write(tmp_path / "j", [frames])
    assert contents(tmp_path / "j") == frames


def test_journal_file_is_readable_by_its_owner_only(closed: pathlib.Path) -> None:
    assert stat.S_IMODE(closed.stat().st_mode) == 0o600


def test_opening_journal_in_use_is_refused_and_harmless(tmp_path: pathlib.Path) -> None:
    first = SqliteJournal(tmp_path / "j")
    first.append([b"a"])
    with pytest.raises(FailedPreconditionError, match="in use"):
        SqliteJournal(tmp_path / "j")
    first.append([b"b"])
    first.close()
    assert contents(tmp_path / "j") == [b"a", b"b"]


def test_missing_journal_folder_is_refused_naming_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FailedPreconditionError, match="nowhere"):
        SqliteJournal(tmp_path / "nowhere" / "j")


def test_journal_of_unknown_format_is_refused(closed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = copy_of(closed, tmp_path)
    edit(path, "UPDATE header SET format = 99")
    with pytest.raises(FailedPreconditionError, match="format 99"):
        SqliteJournal(path)


def test_failed_append_writes_no_frames(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "j"
    journal = SqliteJournal(path)
    journal.append([b"a"])
    with pytest.raises(TypeError):
        journal.append([b"b", "not bytes"])  # type: ignore[list-item]
    journal.append([b"c"])
    journal.close()
    assert contents(path) == [b"a", b"c"]


def test_append_on_full_disk_fails_and_succeeds_once_there_is_room(tmp_path: pathlib.Path) -> None:
    journal = SqliteJournal(tmp_path / "j")
    journal.append([b"a"])
    connection = journal._opened()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ResourceExhaustedError, match="no room"):
        journal.append([b"x" * 100_000])
    connection.execute("PRAGMA max_page_count = 1000000")
    journal.append([b"b"])
    assert list(journal.replay()) == [b"a", b"b"]
    journal.close()


def test_append_over_file_size_limit_fails_without_damage(tmp_path: pathlib.Path) -> None:
    journal = SqliteJournal(tmp_path / "j")
    journal.append([b"a"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ResourceExhaustedError, match=r"cannot be written.*a quota"):
            journal.append([b"x" * 200_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append([b"b"])
    assert list(journal.replay()) == [b"a", b"b"]
    journal.close()


# --- damage


def edit(path: pathlib.Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE frames SET payload = x'00' WHERE position = 7",
        "UPDATE frames SET crc = crc + 1 WHERE position = 7",
        "DELETE FROM frames WHERE position = 7",
        "DELETE FROM frames WHERE position = 0",
        "UPDATE header SET first_position = 1 - 2",
        "DELETE FROM header",
        "UPDATE header SET first_position = 'zero'",
        "UPDATE frames SET payload = 12 WHERE position = 7",
        "UPDATE frames SET position = position + 1000 WHERE position > 7",
    ],
)
def test_edited_header_or_frames_are_data_loss(
    closed: pathlib.Path, tmp_path: pathlib.Path, statement: str
) -> None:
    path = copy_of(closed, tmp_path)
    edit(path, statement)
    with pytest.raises(DataLossError, match=r"copy.*(backup|move it away)"):
        contents(path)


def test_swapped_frames_are_data_loss(closed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = copy_of(closed, tmp_path)
    for old, new in ((4, -1), (5, 4), (-1, 5)):
        edit(path, "UPDATE frames SET position = ? WHERE position = ?", new, old)
    with pytest.raises(DataLossError, match="CRC"):
        contents(path)


def test_file_that_is_no_database_is_data_loss(tmp_path: pathlib.Path) -> None:
    (tmp_path / "j").write_bytes(b"these are not the frames you are looking for" * 100)
    with pytest.raises(DataLossError, match="not a database"):
        SqliteJournal(tmp_path / "j")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"INTEGER PRIMARY", b"INTEGER PDIMARY"), (b"tableframes", b"tableflames")],
)
def test_damaged_table_definition_is_data_loss(
    closed: pathlib.Path, tmp_path: pathlib.Path, old: bytes, new: bytes
) -> None:
    path = copy_of(closed, tmp_path)
    whole = path.read_bytes()
    assert whole.count(old) == 1
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(DataLossError):
        SqliteJournal(path)


def damage_byte(path: pathlib.Path, offset: int, change: Callable[[int], int]) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([change(byte)]))


FILE_SETTINGS = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FILE_SETTINGS
@given(data=st.data())
def test_flipped_bit_in_database_file_never_changes_frames(
    closed: pathlib.Path, tmp_path: pathlib.Path, data: st.DataObject
) -> None:
    path = copy_of(closed, tmp_path)
    offset = data.draw(st.integers(0, path.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    damage_byte(path, offset, lambda byte: byte ^ (1 << bit))
    try:
        frames = contents(path)
    except (DataLossError, FailedPreconditionError):
        return
    assert frames == ALL


@FILE_SETTINGS
@given(data=st.data())
def test_truncated_wal_replays_prefix_of_whole_appends(
    crashed: pathlib.Path, tmp_path: pathlib.Path, data: st.DataObject
) -> None:
    path = copy_of(crashed, tmp_path)
    log = tmp_path / "copy-wal"
    with log.open("r+b") as file:
        file.truncate(data.draw(st.integers(0, log.stat().st_size)))
    frames = contents(path)
    assert len(frames) % 3 == 0
    assert frames == ALL[: len(frames)]


def test_intact_wal_after_crash_replays_all_frames(
    crashed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert (crashed.with_name("dead-wal")).stat().st_size > 12 * 4096
    assert contents(copy_of(crashed, tmp_path)) == ALL


@FILE_SETTINGS
@given(data=st.data())
def test_flipped_bit_in_wal_silently_loses_at_most_last_two_appends(
    crashed: pathlib.Path, tmp_path: pathlib.Path, data: st.DataObject
) -> None:
    path = copy_of(crashed, tmp_path)
    log = tmp_path / "copy-wal"
    offset = data.draw(st.integers(0, log.stat().st_size - 1))
    damage_byte(log, offset, lambda byte: byte ^ (1 << data.draw(st.integers(0, 7))))
    try:
        frames = contents(path)
    except DataLossError:
        with pytest.raises(DataLossError, match="copy-wal"):
            contents(path)
        return
    assert frames == ALL[: len(frames)]
    assert len(frames) >= len(ALL) - 2 * 3


@pytest.mark.parametrize("offset", [40, 100, 5000, 20_000, 40_000])
def test_flipped_bit_before_tail_of_wal_is_data_loss(
    crashed: pathlib.Path, tmp_path: pathlib.Path, offset: int
) -> None:
    path = copy_of(crashed, tmp_path)
    damage_byte(tmp_path / "copy-wal", offset, lambda byte: byte ^ 1)
    with pytest.raises(DataLossError, match="copy-wal"):
        contents(path)
    assert (tmp_path / "copy-wal").stat().st_size > 12 * 4096


@pytest.mark.parametrize("offset", [0, 10, 17, 30])
def test_damaged_wal_header_is_data_loss(
    crashed: pathlib.Path, tmp_path: pathlib.Path, offset: int
) -> None:
    path = copy_of(crashed, tmp_path)
    damage_byte(tmp_path / "copy-wal", offset, lambda byte: byte ^ 4)
    with pytest.raises(DataLossError, match="header"):
        contents(path)


@pytest.mark.parametrize("lost_bytes", [32, 512])
def test_wal_that_lost_its_first_bytes_is_data_loss(
    crashed: pathlib.Path, tmp_path: pathlib.Path, lost_bytes: int
) -> None:
    path = copy_of(crashed, tmp_path)
    log = tmp_path / "copy-wal"
    log.write_bytes(bytes(lost_bytes) + log.read_bytes()[lost_bytes:])
    with pytest.raises(DataLossError, match="copy-wal has lost its header"):
        contents(path)
    assert log.stat().st_size > 12 * 4096


def test_wal_whose_first_transaction_was_torn_before_its_header_is_empty(
    crashed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = copy_of(crashed, tmp_path)
    log = tmp_path / "copy-wal"
    whole, frame = log.read_bytes(), 24 + 4096
    pages = next(n for n in range(20) if any(whole[32 + n * frame + 4 : 32 + n * frame + 8])) + 1
    log.write_bytes(bytes(32) + whole[32 : 32 + pages * frame])
    assert contents(path) == []

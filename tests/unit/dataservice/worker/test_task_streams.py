"""What a worker sends on the stream of a reader that has a job without windows to itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import dataservice as ds
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import encode_plan
from dataservice.errors import CancelledError, InvalidArgumentError, UnavailableError
from dataservice.runtime.exchanges.message import Message
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.bookmarks import Bookmark, decode_bookmark
from dataservice.wire.elements import FrameKind, Header, pack_credit, unpack
from dataservice.worker.outgoing import FrameBuffer
from dataservice.worker.rebatch import Element
from dataservice.worker.service import WorkerService


class Dispatcher:
    """A dispatcher that has one dataset and ignores reports."""

    def __init__(self, dataset: ds.Dataset) -> None:
        self._plan = encode_plan(freeze_schemas(dataset.node))

    def get_dataset(self, _dataset_id: str) -> pb.GetDatasetReply:
        return pb.GetDatasetReply(plan=self._plan, compression="AUTO")

    def finish_task(self, *_: Any) -> None: ...


class Channel:
    """A channel that gives credit for everything sent, and has nothing more to say after END."""

    shares_memory = False

    def __init__(self) -> None:
        self.headers: list[Header] = []

    def send(self, header: bytes, body: object = None) -> None:  # noqa: ARG002
        self.headers.append(unpack(header))

    def recv(self) -> Message | None:
        if self.headers and self.headers[-1].kind is FrameKind.END:
            return None
        return Message(pack_credit(1), None)

    def cancelled(self) -> bool:
        return False


class EndingChannel(Channel):
    """A channel whose iteration ends when its second element comes, before it is confirmed."""

    shares_memory = True

    def __init__(self, service: WorkerService) -> None:
        super().__init__()
        self._service = service
        self.batches: list[weakref.ref[Any]] = []

    def send(self, header: bytes, body: Any = None) -> None:
        super().send(header, body)
        if body is not None:
            self.batches.append(weakref.ref(body.batch))
        if len(self.batches) == 2:
            self._service.end_iterations({COMMAND["iteration"]})


COMMAND = {
    "worker": "w1",
    "iteration": "i1",
    "dataset": "d1",
    "policy": int(ds.ShardingPolicy.OFF),
    "epoch": 0,
    "options": {"num_consumers": 0},
    "credit": 1,
}


def service_of(dataset: ds.Dataset) -> WorkerService:
    config = ds.WorkerConfig("127.0.0.1:5050")
    service = WorkerService(config, Dispatcher(dataset), "127.0.0.1:6060")  # type: ignore[arg-type]
    service.rejoin("w1")
    return service


def headers_sent(told: dict[str, Any]) -> list[Header]:
    """Returns the elements and bookmarks that a reader gets of 12 rows in batches of 4."""
    service = service_of(ds.Dataset.range(12).batch(4))
    channel = Channel()
    try:
        service.stream({**COMMAND, **told}, channel)
    finally:
        service.stop()
    kinds = (FrameKind.DATA, FrameKind.BOOKMARK)
    return [header for header in channel.headers if header.kind in kinds]


@pytest.fixture(autouse=True)
def _bookmarks_with_each_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.worker.producer_factory.BOOKMARK_EVERY_S", 0.0)


def test_bookmark_is_sent_before_its_rows() -> None:
    headers = headers_sent({"tasks": {"7": []}, "bookmarks": {}})
    assert [header.kind for header in headers] == [FrameKind.BOOKMARK, FrameKind.DATA] * 3
    bookmarks = [decode_bookmark(header.notes) for header in headers[::2]]
    assert [(task, bookmark.row) for task, bookmark in bookmarks] == [(7, 0), (7, 4), (7, 8)]


def test_task_begins_at_bookmark_of_its_request() -> None:
    headers = headers_sent({"tasks": {"7": []}, "bookmarks": {}})
    _, bookmark = decode_bookmark(headers[4].notes)
    told = {"tasks": {"7": [[0, 8]]}, "bookmarks": {"7": list(bookmark)}}
    (again, data) = headers_sent(told)
    assert decode_bookmark(again.notes) == (7, bookmark)
    assert [(span.first_row, span.end_row) for span in data.spans] == [(8, 12)]


def test_reader_that_knows_no_bookmarks_is_sent_none() -> None:
    """Readers of an earlier version would take one for damage, and read again for ever."""
    headers = headers_sent({"tasks": {"7": []}})
    assert [header.kind for header in headers] == [FrameKind.DATA] * 3
    assert [header.kind for header in headers_sent({})] == [FrameKind.DATA] * 3, "shared by readers"


def test_bookmark_of_two_values_is_refused() -> None:
    with pytest.raises(ValueError, match="unpack"):
        Bookmark.from_json([1, "plan"])


def test_ended_task_frees_unconfirmed_elements() -> None:
    """Even without the garbage collector, and although the error that ends the stream is kept."""
    gc.collect()
    gc.disable()
    try:
        service = service_of(ds.Dataset.range(4_000).batch(4))
        channel = EndingChannel(service)
        with pytest.raises(UnavailableError, match="gave the stream up"):
            service.stream({**COMMAND, "credit": 8}, channel)
        service.stop()
        assert len(channel.batches) == 2
        assert [batch() for batch in channel.batches] == [None, None]
    finally:
        gc.enable()


class BreakingChannel(Channel):
    """A channel whose reader goes when it is told which rows the next element lacks."""

    def send(self, header: bytes, body: object = None) -> None:
        if unpack(header).kind is FrameKind.OMITTED:
            raise CancelledError("the reader has gone")
        super().send(header, body)


def test_element_unsent_when_reader_left_is_sent_to_next_reader() -> None:
    service = service_of(ds.Dataset.range(12).batch(4))
    again = Channel()
    try:
        with pytest.raises(CancelledError):
            service.stream(COMMAND, BreakingChannel())
        service.stream(COMMAND, again)
    finally:
        service.stop()
    spans = [span for header in again.headers for span in header.spans]
    assert [(span.first_row, span.end_row) for span in spans] == [(0, 4), (4, 8), (8, 12)]


def test_sent_row_count_does_not_shrink_when_reader_reconnects() -> None:
    service = service_of(ds.Dataset.range(12).batch(4))
    key = ("i1", "r1")
    service._new_windows(key, COMMAND, run=1).frames.rows = 5
    service._new_windows(key, COMMAND, run=1).frames.rows = 2
    assert service.load()[0] == 7
    service.stop()
    assert service.load()[0] == 7


@pytest.mark.parametrize("returned", [False, True])
def test_discarding_unsent_frames_makes_stream_unavailable_not_ended(*, returned: bool) -> None:
    """After an end, a reader would not ask the next worker at that place for the share's tail."""
    frames = FrameBuffer(1 << 20, None)
    frames.put(Element(next(iter(ds.Dataset.range(4).batch(4))), ()))
    if returned:
        frames.put_back([frames.get(0.0)])  # type: ignore[list-item]
    frames.end()
    frames.discard()
    with pytest.raises(UnavailableError, match="gave the stream up"):
        frames.get(0.0)


def test_discarding_after_last_frame_was_taken_keeps_end_of_task() -> None:
    frames = FrameBuffer(1 << 20, None)
    frames.end()
    frames.discard()
    with pytest.raises(CancelledError):
        frames.get(0.0)


def test_command_that_names_no_consumer_starts_no_rounds() -> None:
    service = service_of(ds.Dataset.range(12).batch(4))
    command = {**COMMAND, "options": {"num_consumers": 2}}
    with pytest.raises(InvalidArgumentError, match="the command lacks 'consumer'"):
        service.stream(command, Channel())
    assert service.iterations() == []
    service.stop()


@pytest.mark.parametrize(
    "forged",
    [
        {"trainer": "t1"},
        {"consumer": 0, "options": {"num_consumers": 2}},
    ],
)
def test_stream_of_another_kind_is_refused_and_leaves_the_producer_of_the_iteration(
    forged: dict[str, Any],
) -> None:
    service = service_of(ds.Dataset.range(12).batch(4))
    told = {**COMMAND, "tasks": {"7": []}, "bookmarks": {}}
    try:
        service.stream(told, Channel())
        (kept,) = producers_of(service)
        with pytest.raises(InvalidArgumentError, match="iteration i1 is read in another way on th"):
            service.stream({**told, **forged}, Channel())
        assert producers_of(service) == [kept]
    finally:
        service.stop()


def producers_of(service: WorkerService) -> list[Any]:
    return [producer for _, producer in service._producers.by_iteration()]

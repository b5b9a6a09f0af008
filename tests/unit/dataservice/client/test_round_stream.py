"""A consumer's stream from a worker that answers some asks and then goes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from dataservice.client.round_stream import RoundStream
from dataservice.client.streams import StreamTable
from dataservice.client.worker_stream import StreamEvents, WorkerStream
from dataservice.errors import DataServiceError
from dataservice.runtime.exchanges.message import Message
from dataservice.runtime.frames import BatchBody
from dataservice.wire.elements import KEEPALIVE, Ask, pack_data

SCHEMA = pa.schema([("id", pa.int64())])


class Exchange:
    """An exchange with a worker that says these things and then ends it."""

    protocol = "flight"
    shares_memory = False

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def send(self, header: bytes) -> None:
        pass

    def recv(self, _timeout_s: float) -> Message | None:
        return self._messages.pop(0) if self._messages else None

    def cancel(self) -> None:
        pass


def streams_after(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> StreamTable[RoundStream]:
    """Returns a consumer's streams once that from its only worker, asked for two rounds, broke."""

    @contextmanager
    def open_exchange(*_: Any, **__: Any) -> Iterator[Exchange]:
        yield exchange

    monkeypatch.setattr("dataservice.client.worker_stream.open_exchange", open_exchange)
    broken = threading.Event()

    def on_broken(stream: WorkerStream, error: DataServiceError) -> None:
        table.record_broken(stream, error, 0.0)
        broken.set()

    def open_stream(worker_id: str, address: str) -> RoundStream:
        events = StreamEvents(
            on_open=lambda *_: None,
            on_frame=lambda *_: None,
            on_broken=on_broken,
            on_failure=lambda _: None,
        )
        command = {"reader": "r", "credit": 0}
        return RoundStream(
            worker_id, address, command, SCHEMA, events, token="", tls=None, protocol=None
        )

    table: StreamTable[RoundStream] = StreamTable(open_stream)
    table.update({"w": "host:1"}, 0.0)
    (stream,) = table.all()
    stream.ask([Ask(0, 2, 0)], 0)
    stream.start()
    assert broken.wait(10.0)
    return table


@pytest.mark.parametrize("said", [[], [KEEPALIVE]])
def test_worker_that_has_said_something_is_not_out_of_reach_when_its_stream_breaks(
    said: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = streams_after(Exchange([Message(each, None) for each in said]), monkeypatch)
    assert streams.unreachable().keys() == (set() if said else {"host:1"})


def test_no_frame_is_kept_while_the_next_one_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[weakref.ref[pa.RecordBatch]] = []
    kept = []

    class Worker(Exchange):
        def recv(self, _timeout_s: float) -> Message | None:
            if batches:
                kept.append(batches[0]())
                return None
            batch = pa.RecordBatch.from_pydict({"id": [1]}, schema=SCHEMA)
            batches.append(weakref.ref(batch))
            header = pack_data(1, 0, [], divisible=False)
            return Message(header, None, BatchBody(batch, 0, 8))

    streams_after(Worker([]), monkeypatch)
    assert kept == [None]

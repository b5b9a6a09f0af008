"""A consumer's stream from a worker that answers its first ask and then goes."""

from __future__ import annotations

import threading
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
from dataservice.wire.elements import KEEPALIVE, Ask

SCHEMA = pa.schema([("id", pa.int64())])


class Exchange:
    """An exchange with a worker that says these things and then ends it."""

    protocol = "flight"
    shares_memory = False

    def __init__(self, headers: list[bytes]) -> None:
        self._headers = headers

    def send(self, header: bytes) -> None:
        pass

    def recv(self, _timeout_s: float) -> Message | None:
        return Message(self._headers.pop(0), None) if self._headers else None

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("said", [[], [KEEPALIVE]])
def test_worker_that_has_said_something_is_not_out_of_reach_when_its_stream_breaks(
    said: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_exchange(*_: Any, **__: Any) -> Iterator[Exchange]:
        yield Exchange(list(said))

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
    stream.ask([Ask(0, 1, 0)], 0)
    stream.start()
    assert broken.wait(10.0)
    assert table.unreachable().keys() == (set() if said else {"host:1"})

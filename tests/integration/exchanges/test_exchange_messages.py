"""Messages that exchanges and actions carry, and the errors that end them."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dataservice.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UserFunctionError,
)
from dataservice.runtime.auth import TOKEN_METADATA_KEY
from dataservice.runtime.exchanges import connection_channel
from dataservice.runtime.exchanges.segment_pool import POOL_BYTES
from tests.exchanges import answer_to
from tests.integration.exchange_ends import (
    CONNECTED,
    FLIGHT,
    MIB,
    TIMEOUT_S,
    TOKEN,
    Ends,
    over_network,
    over_sockets,
    send_many,
    takes,
)
from tests.waiting import wait_until


@pytest.mark.parametrize("size", [None, 0, 1, 127, 16_384, 20_000, 700_000])
@pytest.mark.parametrize(
    "header", [b"", b"\x00\xff" * 40, bytes(20_000), bytes(3 * MIB)], ids=lambda header: len(header)
)
def test_messages_come_back_unchanged(client: Any, header: bytes, size: int | None) -> None:
    body = None if size is None else np.random.default_rng(1).bytes(size)
    with client.exchange({"exchange": "echo"}) as exchange:
        if not header and body is None:
            with pytest.raises(InvalidArgumentError, match="neither"):
                exchange.send(header, body)
            header = b"still open"
        for _ in range(3):
            reply = answer_to(exchange, header, body, timeout_s=TIMEOUT_S)
            assert reply.header == header
            assert (None if reply.body is None else reply.body.to_pybytes()) == body


def test_body_larger_than_shared_memory_may_be_comes_back_unchanged(client: Any) -> None:
    body = pa.py_buffer(np.random.default_rng(7).bytes(POOL_BYTES + MIB))
    with client.exchange({"exchange": "echo"}) as exchange:
        for _ in range(2):
            assert answer_to(exchange, b"big", body, timeout_s=TIMEOUT_S).body == body


def test_stream_ended_by_server_gives_all_messages_then_none(client: Any) -> None:
    with client.exchange({"exchange": "count", "n": 5, "size": 10}) as exchange:
        headers = [message.header for message in iter(lambda: exchange.recv(TIMEOUT_S), None)]
        assert headers == [b"0", b"1", b"2", b"3", b"4"]
        assert exchange.recv(TIMEOUT_S) is None


def test_client_that_finished_writing_still_receives_replies(client: Any) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:
        exchange.send(b"a", b"1")
        exchange.send(b"b")
        exchange.done_writing()
        assert exchange.recv(TIMEOUT_S) is not None
        assert exchange.recv(TIMEOUT_S) is not None
        assert exchange.recv(TIMEOUT_S) is None


def test_exchange_without_messages_ends_cleanly(client: Any) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:
        exchange.done_writing()
        assert exchange.recv(TIMEOUT_S) is None


@pytest.mark.parametrize("attempt", range(20))
def test_messages_of_server_that_ends_at_once_all_arrive(client: Any, attempt: int) -> None:
    with client.exchange({"exchange": "count", "n": attempt}) as exchange:
        assert len(list(iter(lambda: exchange.recv(TIMEOUT_S), None))) == attempt


def test_concurrent_exchanges_and_threads_get_their_own_replies(client: Any) -> None:
    def converse(number: int) -> int:
        turns = threading.Lock()
        with client.exchange({"exchange": "echo"}) as exchange, ThreadPoolExecutor(2) as pool:

            def ask(index: int) -> bool:
                body = bytes([index % 256]) * (index * 1_700 % 70_000)
                with turns:
                    reply = answer_to(exchange, b"%d" % index, body, timeout_s=TIMEOUT_S)
                return reply.header == b"%d" % index and reply.body == pa.py_buffer(body)

            return sum(pool.map(ask, range(number, number + 40)))

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(converse, range(24))) == [40] * 24


def test_one_thread_sends_while_another_receives(client: Any) -> None:
    with client.exchange({"exchange": "echo"}) as exchange:

        def push() -> None:
            for index in range(500):
                exchange.send(b"%d" % index, b"z" * 100_000, timeout_s=TIMEOUT_S)
            exchange.done_writing()

        pusher = threading.Thread(target=push)
        pusher.start()
        headers = [message.header for message in iter(lambda: exchange.recv(TIMEOUT_S), None)]
        pusher.join(TIMEOUT_S)
        assert headers == [b"%d" % index for index in range(500)]


def test_unknown_exchange_is_refused_listing_known_ones(client: Any) -> None:
    with pytest.raises(NotFoundError, match=r"'nope'.*'count', 'echo'"):
        client.exchange({"exchange": "nope"}).recv(TIMEOUT_S)


@over_sockets
def test_unknown_action_is_refused_listing_known_ones(client: Any) -> None:
    with pytest.raises(NotFoundError, match=r"'nope'.*reverse"):
        client.action("nope", timeout_s=TIMEOUT_S)


def test_command_without_exchange_name_is_refused(client: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="command"):
        client.exchange({"name": "echo"}).recv(TIMEOUT_S)


@pytest.mark.parametrize("after_message", [False, True])
def test_service_error_keeps_class_and_long_details(client: Any, after_message: bool) -> None:
    with client.exchange({"exchange": "fail", "how": "user", "after_message": after_message}) as x:
        with pytest.raises(UserFunctionError, match="map function failed") as caught:
            answer_to(x, b"go", timeout_s=TIMEOUT_S) if after_message else x.recv(TIMEOUT_S)
        assert caught.value.user_traceback.startswith('File "features.py", line 3')
        assert len(caught.value.user_traceback) > 100_000
        assert caught.value.source == "part-7.parquet rows 10-20"
        with pytest.raises(UserFunctionError):
            x.send(b"more")


def test_unexpected_handler_error_is_internal_and_logged(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = client.exchange({"exchange": "fail", "how": "bug"})
    with exchange, pytest.raises(InternalError, match="ZeroDivisionError: division by nothing"):
        exchange.recv(TIMEOUT_S)
    assert "raise ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "ends", [ends for ends in CONNECTED if ends is not FLIGHT], ids=lambda ends: ends.name
)
def test_sending_to_server_that_has_closed_raises_its_error(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_channel, "_LINGER_S", 0.1)
    exchange = client.exchange({"exchange": "fail", "how": "user"})
    with exchange:
        wait_until(exchange._connection.is_gone, "the server to close its end")
        for _ in range(2):
            with pytest.raises(UserFunctionError, match="map function failed"):
                exchange.send(b"too late")


def test_sending_to_failed_handler_raises_its_error(client: Any) -> None:
    exchange = client.exchange({"exchange": "fail", "how": "bug"})
    with exchange, pytest.raises(InternalError, match="ZeroDivisionError"):
        send_many(exchange, 10_000, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("column", [pa.array([7]), pa.array([[1, 2]])], ids=["number", "list"])
@pytest.mark.parametrize("ends", [FLIGHT], ids=["flight"])
def test_flight_batch_that_is_no_message_is_data_loss(server: Any, column: pa.Array) -> None:
    batch = pa.record_batch([column], names=["body"])
    options = flight.FlightCallOptions(headers=[(TOKEN_METADATA_KEY.encode(), TOKEN.encode())])
    command = flight.FlightDescriptor.for_command(b'{"exchange": "echo"}')
    with flight.connect(f"grpc://{server.address}") as foreign:
        writer, reader = foreign.do_exchange(command, options)
        writer.begin(batch.schema)
        writer.write_with_metadata(batch, b"header")
        assert reader.read_chunk().data.num_rows == 0
        report = json.loads(reader.read_chunk().app_metadata.to_pybytes())
        assert report["code"] == "DATA_LOSS"
        with pytest.raises(flight.FlightServerError):
            reader.read_chunk()
        with pytest.raises(flight.FlightServerError):
            writer.close()


@over_sockets
def test_action_returns_result_error_or_times_out(client: Any) -> None:
    assert client.action("reverse", b"abc", timeout_s=TIMEOUT_S) == b"cba"
    assert client.action("reverse", timeout_s=TIMEOUT_S) == b""
    with pytest.raises(InternalError, match="KeyError"):
        client.action("missing", b"k", timeout_s=TIMEOUT_S)
    with takes(0.2), pytest.raises(DeadlineExceededError):
        client.action("sleep", b"0.9", timeout_s=0.3)


@over_network
def test_many_exchanges_leak_no_file_descriptors(ends: Ends, server: Any) -> None:
    with ends.connect(server.address) as client:
        client.exchange({"exchange": "echo"}).close()
        before = len(os.listdir("/proc/self/fd"))
        for index in range(200):
            with client.exchange({"exchange": "echo"}) as exchange:
                if index % 2:
                    answer_to(exchange, b"x", timeout_s=TIMEOUT_S)
        # The server closes its ends on threads of its own.
        give_up_s = time.monotonic() + TIMEOUT_S
        while len(os.listdir("/proc/self/fd")) > before + 50:
            assert time.monotonic() < give_up_s, "the server keeps its ends open"
            time.sleep(0.01)

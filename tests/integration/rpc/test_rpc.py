"""RPC calls of every kind, and the errors that end them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from dataservice import errors
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    UserFunctionError,
)
from dataservice.runtime.auth import TOKEN_METADATA_KEY, tokens_equal
from dataservice.runtime.rpc import RpcClient, RpcServer
from dataservice.runtime.rpc.conventions import PROTOCOL_METADATA_KEY
from dataservice.vocabulary import PROTOCOL_VERSION
from tests.integration.echo_service import (
    DEADLINE_S,
    SERVICE,
    TOKEN,
    EchoBox,
    Other,
    Questions,
    Text,
    _pool,
    connect,
    serve,
    texts,
)

# Calls of every kind


def test_calls_of_all_four_streaming_kinds_are_answered(client: RpcClient) -> None:
    assert client.call("SayBack", Text(text="héllo")).text == "héllo"
    assert client.call("SayTogether", iter([Text(text="a"), Text(text="b")])).text == "ab"
    assert texts(client.stream("SpellOut", Text(text="abc"))) == ["a", "b", "c"]
    questions = Questions("x", "y")
    questions.end()
    assert texts(client.stream("ChatOn", questions)) == ["X", "Y"]


def test_bidirectional_stream_answers_each_request_in_turn(client: RpcClient) -> None:
    questions = Questions()
    replies = client.stream("ChatOn", questions)
    for text in ("one", "two", "three"):
        questions.ask(text)
        assert next(replies).text == text.upper()
    questions.end()
    assert texts(replies) == []


def test_cancelling_stream_ends_client_and_handler(client: RpcClient, box: EchoBox) -> None:
    questions = Questions()
    replies = client.stream("ChatOn", questions)
    questions.ask("one")
    assert next(replies).text == "ONE"
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(next, replies)
        replies.cancel()
        with pytest.raises(CancelledError):
            blocked.result(DEADLINE_S)
    assert box.chat_ended.wait(DEADLINE_S)
    questions.end()


def test_wrong_method_kind_or_request_type_is_refused_before_sending(
    client: RpcClient, box: EchoBox
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'Shout'.*SayBack"):
        client.call("Shout", Text())
    with pytest.raises(InvalidArgumentError, match="not a single-reply method"):
        client.call("SpellOut", Text())
    with pytest.raises(InvalidArgumentError, match="not a streaming method"):
        client.stream("SayBack", Text())
    with pytest.raises(InvalidArgumentError, match="takes a Text, got a Other"):
        client.call("SayBack", Other())
    assert box.calls == 0


def test_service_object_that_lacks_methods_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"object lacks .* echo\.EchoBox: chat_on, hold"):
        RpcServer("127.0.0.1", 0, token=TOKEN).add_service(SERVICE, object())


def test_method_unknown_to_server_is_unimplemented(server: RpcServer) -> None:
    newer = _pool({"Whistle": (False, False)}).FindServiceByName("echo.EchoBox")
    with RpcClient(f"127.0.0.1:{server.port}", newer, token=TOKEN) as client:
        request = GetMessageClass(newer.methods[0].input_type)()
        with pytest.raises(
            UnimplementedError, match=r"Whistle: it is another kind of server.*same version"
        ):
            client.call("Whistle", request)


def test_client_of_another_protocol_is_refused_naming_both_versions(
    server: RpcServer, box: EchoBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataservice.runtime.rpc.client.PROTOCOL_VERSION", 7)
    versions = f"protocol: {PROTOCOL_VERSION}, and this client speaks 7"
    refusal = f"echo box at .* refused.* {versions}; install the same"
    with connect(server.port) as client:
        with pytest.raises(FailedPreconditionError, match=refusal):
            client.call_retrying("SayBack", Text(text="a"), timeout_s=DEADLINE_S)
        with pytest.raises(FailedPreconditionError, match=refusal):
            list(client.stream("SpellOut", Text(text="a")))
    assert box.calls == 0


def test_client_that_tells_no_protocol_speaks_the_first(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataservice.runtime.rpc.client.PROTOCOL_METADATA_KEY", "x-other")
    monkeypatch.setattr("dataservice.runtime.rpc.server._PROTOCOL_VERSION", "1")
    with connect(server.port) as client:
        client.call("SayBack", Text(text="a"), timeout_s=DEADLINE_S)
        monkeypatch.setattr("dataservice.runtime.rpc.server._PROTOCOL_VERSION", "2")
        with pytest.raises(FailedPreconditionError, match="protocol: 2, and this client speaks 1"):
            client.call("SayBack", Text(text="a"), timeout_s=DEADLINE_S)


def test_server_runs_many_calls_at_once(client: RpcClient, box: EchoBox) -> None:
    with ThreadPoolExecutor(40) as pool:
        replies = [pool.submit(client.call, "HoldOn", Text(text=str(i))) for i in range(40)]
        for _ in range(40):
            assert box.holding.acquire(timeout=DEADLINE_S)
        assert client.call("SayBack", Text(text="still alive")).text == "still alive"
        box.release.set()
        assert [reply.result(DEADLINE_S).text for reply in replies] == [str(i) for i in range(40)]


def test_calls_over_thread_limit_are_refused_and_retried(box: EchoBox) -> None:
    with (
        serve(box, max_threads=2) as server,
        connect(server.port) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        held = [pool.submit(client.call, "HoldOn", Text()) for _ in range(2)]
        for _ in held:
            assert box.holding.acquire(timeout=DEADLINE_S)
        with pytest.raises(
            UnavailableError, match="refused SayBack: it already runs as many calls"
        ):
            client.call("SayBack", Text())
        # A call with retries succeeds once there is room.
        reply = client.call_retrying(
            "SayBack",
            Text(text="late"),
            timeout_s=DEADLINE_S,
            on_wait=lambda _waited_s: box.release.set(),
        )
        assert reply.text == "late"
        for call in held:
            call.result(DEADLINE_S)


def test_burst_of_calls_is_answered_or_refused_as_resource_exhausted(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = threading.Event()

    def look_late(*tokens: Any) -> bool:
        return looking.wait(DEADLINE_S) and tokens_equal(*tokens)

    monkeypatch.setattr("dataservice.runtime.rpc.server.tokens_equal", look_late)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        say_back = channel.unary_unary("/echo.EchoBox/SayBack")
        metadata = (
            (TOKEN_METADATA_KEY, TOKEN),
            (PROTOCOL_METADATA_KEY, str(PROTOCOL_VERSION)),
        )
        calls = [say_back.future(b"", timeout=DEADLINE_S, metadata=metadata) for _ in range(3_000)]
        # Gives most calls time to arrive; the test does not depend on how many did.
        threading.Timer(1.0, looking.set).start()
        codes = {call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


# Errors


@pytest.mark.parametrize("cls", sorted(errors._classes_by_code.values(), key=lambda c: c.code))
def test_error_arrives_with_its_class(
    client: RpcClient, box: EchoBox, cls: type[DataServiceError]
) -> None:
    box.error = cls("the file 'é' has 3 rows")
    with pytest.raises(DataServiceError, match="the file 'é' has 3 rows") as caught:
        client.call("SayBack", Text())
    assert type(caught.value) is cls


def test_error_details_survive_shortened_to_fit(client: RpcClient, box: EchoBox) -> None:
    box.error = UserFunctionError(
        "é" * 100_000, user_traceback="first" + "\x00" * 500_000 + "last", source="a rows 0..9"
    )
    with pytest.raises(UserFunctionError, match=r"left out\]") as caught:
        client.call("SayBack", Text())
    error = caught.value
    assert error.user_traceback.startswith("first")
    assert error.user_traceback.endswith("last")
    assert error.source == "a rows 0..9"


def test_error_ends_stream_after_its_replies(client: RpcClient, box: EchoBox) -> None:
    box.error = errors.SchemaError("no column 'x'")
    replies = client.stream("SpellOut", Text(text="ab"))
    assert [next(replies).text, next(replies).text] == ["a", "b"]
    with pytest.raises(errors.SchemaError, match="no column 'x'"):
        next(replies)


def test_unexpected_error_is_internal_with_its_class_and_logged(
    client: RpcClient, box: EchoBox, caplog: pytest.LogCaptureFixture
) -> None:
    box.error = ZeroDivisionError("division by zero")
    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero"):
        client.call("SayBack", Text())
    assert "echo.EchoBox.SayBack failed" in caplog.text
    assert "Traceback" in caplog.text
    box.error = None
    assert client.call("SayBack", Text(text="next")).text == "next"


def test_reply_of_wrong_type_is_internal_error(client: RpcClient) -> None:
    with pytest.raises(InternalError, match="gave a Other, not a Text"):
        client.call("SayBack", Text(text="other"))


def test_call_without_answer_in_time_exceeds_its_deadline(client: RpcClient) -> None:
    with pytest.raises(DeadlineExceededError, match=r"did not answer HoldOn within 0\.2 s"):
        client.call("HoldOn", Text(), timeout_s=0.2)


def test_message_over_size_limit_is_refused(client: RpcClient) -> None:
    with pytest.raises(ResourceExhaustedError, match="SayBack"):
        client.call("SayBack", Text(text="x" * (65 << 20)))

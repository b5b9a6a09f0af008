"""Arguments and output of the commands, without a dispatcher."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest

from dataservice.__main__ import main
from dataservice.commands import inspect


@pytest.mark.parametrize(
    ("command", "option", "value", "rule"),
    [
        *(
            ("status localhost:1", "--watch", seconds, "a number of seconds above 0")
            for seconds in ("-1", "0", "nan", "inf", "often")
        ),
        *(
            ("worker --dispatcher localhost:1", "--processes", count, "an integer of at least 1")
            for count in ("0", "-1", "two", "1.5")
        ),
    ],
)
def test_invalid_number_is_refused_naming_its_option(
    command: str, option: str, value: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), f"{option}={value}"])
    assert ended.value.code == 2
    assert f"{option}: must be {rule}, got {value!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["jobs", "delete", "h:1", "train"], {"job": "train", "deleted": True}),
        (["datasets", "delete", "h:1", "1000"], {"dataset_id": "1000", "deleted": True}),
        (["snapshots", "cancel", "h:1", "s-1"], {"snapshot_id": "s-1", "cancelled": True}),
    ],
)
def test_json_option_prints_result_of_command(
    words: list[str],
    answer: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(inspect, "call", lambda *_arguments, **_fields: None)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer


def test_full_disk_behind_stdout_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspect, "call", lambda *_arguments, **_fields: None)
    # Closing it fails as well.
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", full)
            status = main(["jobs", "delete", "h:1", "train"])
        assert status == 1
    assert capsys.readouterr().err == "dataservice: [Errno 28] No space left on device\n"


def test_characters_outside_terminal_encoding_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspect, "call", lambda *_arguments, **_fields: None)
    with monkeypatch.context() as patched:
        shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        patched.setattr(sys, "stdout", shown)
        assert main(["jobs", "delete", "h:1", "café"]) == 0
    assert shown.buffer.getvalue() == b"deleted job caf\\xe9\n"

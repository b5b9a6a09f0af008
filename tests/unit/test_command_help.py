"""Help texts of the commands, their output on any terminal, and their log folders."""

from __future__ import annotations

import argparse
import io
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import dataservice.__main__ as dataservice_main
import pstrain.__main__ as pstrain_main
from dataservice.config import DispatcherConfig, WorkerConfig
from dataservice.errors import FailedPreconditionError
from dataservice.runtime.process.children import spawn_module
from pstrain.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_begins_with_plain_description(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert f"\npstrain {command}: " in shown
    assert "``" not in shown


def test_characters_outside_terminal_encoding_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        patched.setattr(sys, "stdout", shown)
        assert main(["evaluate", "café", "--data", "a.csv"]) == 2
    assert b"evaluating caf\\xe9 on" in shown.buffer.getvalue()


def options_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)


@pytest.mark.parametrize("program", [dataservice_main, pstrain_main])
def test_every_command_option_has_help(program: Any) -> None:
    options = list(options_of(program._parser()))
    assert len(options) > 40
    options = [option for option in options if not isinstance(option, argparse._SubParsersAction)]
    assert not [option.option_strings for option in options if not option.help]


def test_time_defaults_in_help_equal_config_defaults() -> None:
    configs: tuple[Any, ...] = (DispatcherConfig(), WorkerConfig("localhost:1"))
    times = [o for o in options_of(dataservice_main._parser()) if o.dest.endswith("_ms")]
    assert len(times) == 9
    for option in times:
        told = re.search(r"\(default: (\d+)\)", option.help or "")
        in_seconds = f"{option.dest.removesuffix('_ms')}_s"
        defaults = [getattr(config, in_seconds, None) for config in configs]
        assert told is not None
        assert int(told[1]) / 1_000 in defaults, option.option_strings


def test_log_folder_that_is_a_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(FailedPreconditionError, match=r"logs/worker-0\.log' cannot be written"):
        spawn_module("dataservice", ["--version"], log_path=tmp_path / "logs" / "worker-0.log")

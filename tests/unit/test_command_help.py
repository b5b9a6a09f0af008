"""What ``pstrain COMMAND --help`` shows."""

from __future__ import annotations

import io
import sys

import pytest

from pstrain.__main__ import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_in_plain_words_what_it_does(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    shown = capsys.readouterr().out
    assert f"\npstrain {command}: " in shown
    assert "``" not in shown


def test_letters_that_a_terminal_has_not_are_written_by_their_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        patched.setattr(sys, "stdout", shown)
        assert main(["evaluate", "café", "--data", "a.csv"]) == 2
    assert b"evaluating caf\\xe9 on" in shown.buffer.getvalue()

"""What ``pstrain COMMAND --help`` shows."""

from __future__ import annotations

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

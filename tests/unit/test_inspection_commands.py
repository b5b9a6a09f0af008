"""Arguments of the commands that ask a dispatcher."""

from __future__ import annotations

import pytest

from dataservice.__main__ import main


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "often"])
def test_a_pause_that_cannot_be_waited_is_refused_by_its_name(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "localhost:1", "--watch", seconds])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert f"--watch: must be a number of seconds above 0, got {seconds!r}" in message


@pytest.mark.parametrize("count", ["0", "-1", "two", "1.5"])
def test_a_number_of_processes_that_cannot_be(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["worker", "--dispatcher", "localhost:1", f"--processes={count}"])
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert f"--processes: must be an integer of at least 1, got {count!r}" in message

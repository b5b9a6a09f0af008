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
    assert "--watch" in message
    assert seconds in message

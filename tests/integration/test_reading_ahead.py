"""Programs and forked children that abandon a file end promptly, although Arrow reads ahead."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("kind", "said"), [("end", ""), ("fork", "the child has ended\n")], ids=["end", "fork"]
)
def test_file_abandoned_halfway_does_not_delay_program_end(kind: str, said: str) -> None:
    # From Python 3.12 on, a fork beside other threads warns, of which Arrow has some.
    command = [sys.executable, "-W", "ignore::DeprecationWarning"]
    for _ in range(3):
        ended = subprocess.run(
            [*command, "-m", "tests.integration.programs.reading_ahead", kind],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")

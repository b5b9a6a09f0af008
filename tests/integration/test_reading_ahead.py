"""Programs and forked children that abandon a file end promptly, although Arrow reads ahead."""

from __future__ import annotations

import pathlib
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


def test_program_ends_after_a_text_that_was_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": "{"x" * 9_000_000}"}}\n' * 8)
    command = [sys.executable, "-m", "tests.integration.programs.unopened_text", str(path)]
    # Otherwise Arrow's threads meet the shutdown of the interpreter in about one run of ten.
    for _ in range(8):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "it is refused\n", "")

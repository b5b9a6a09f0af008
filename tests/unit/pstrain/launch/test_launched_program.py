"""A program that cannot be started is refused, with a remedy, before a cluster starts."""

from __future__ import annotations

import pathlib
import sys

import pytest

from pstrain.__main__ import main
from pstrain.errors import InvalidArgumentError, MissingFileError
from pstrain.launch import local_engine
from pstrain.launch.program import check_program


def test_program_must_be_readable_file_or_command(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for program in (str(script), sys.executable, "env"):
        check_program(program)
    with pytest.raises(MissingFileError, match=r"no program 'missing.py': nothing is at /.*mis"):
        check_program("missing.py")
    with pytest.raises(InvalidArgumentError, match=r"is a folder; give the .py file"):
        check_program(str(tmp_path))
    folder = tmp_path / "package.py"
    folder.mkdir()
    with pytest.raises(InvalidArgumentError, match="is a folder"):
        check_program(str(folder))
    plain = tmp_path / "train"
    plain.write_text("print(1)")
    with pytest.raises(InvalidArgumentError, match=r"run it as `-- python .*train`, or.*chmod"):
        check_program(str(plain))
    plain.chmod(0o755)
    check_program(str(plain))
    with pytest.raises(MissingFileError, match=r"no command .* here; give a \.py"):
        check_program("no-such-command")


def test_launch_of_missing_program_starts_no_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_engine, "TaskProcess", lambda *_: pytest.fail("a task was started"))
    assert main(["launch", "--", "missing.py", "--steps", "3"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("pstrain launch: there is no program 'missing.py'")
    assert printed.count("\n") == 1


def test_missing_program_is_not_checked_for_other_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["launch", "--engine", "slurm", "--insecure-network", "--", "missing.py"]) == 0
    assert "missing.py" in capsys.readouterr().out

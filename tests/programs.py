"""Programs that tests run in processes of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Mapping


def run_program(
    text: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, with ``env`` beside the environment of this process."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def said_by(
    text: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> str:
    """Returns what a program prints, which must end without an error."""
    done = run_program(text, *arguments, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_program(text: str, *arguments: object) -> subprocess.Popen[str]:
    """Starts a Python program in a session of its own, with pipes for all that it says."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

"""The age of a process: from /proc where there is one, else from the import of the package."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from dataservice.runtime import identity


def test_process_age_counts_from_process_start_and_grows() -> None:
    since_import_s, first_s = time.monotonic() - identity._IMPORTED_S, identity.process_age_s()
    assert first_s > since_import_s - 0.1, "it began before it imported anything"
    assert identity.process_age_s() >= first_s


def test_process_age_is_read_despite_parentheses_in_process_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, uptime = tmp_path / "stat", tmp_path / "uptime"
    fields = " ".join(str(number) for number in range(3, 22))
    stat.write_text(f"7 (a) b (c) S {fields[2:]} 1000 5 6")
    uptime.write_text("42.5 80.0")
    monkeypatch.setattr(identity, "_OWN_STAT", stat)
    monkeypatch.setattr(identity, "_UPTIME", uptime)
    assert identity.process_age_s() == 42.5 - 1_000 / os.sysconf("SC_CLK_TCK")


def test_process_age_without_proc_counts_from_import(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_OWN_STAT", tmp_path / "none")
    age_s = time.monotonic() - identity._IMPORTED_S
    assert identity.process_age_s() == pytest.approx(age_s, abs=30.0)

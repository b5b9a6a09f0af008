"""What `pstrain launch --engine ray` prints before it uses Ray."""

from __future__ import annotations

import sys

import pytest

from pstrain.__main__ import main
from pstrain.errors import InvalidArgumentError
from pstrain.launch.ray import RayOptions


def test_missing_ray_is_reported_with_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["launch", "--engine", "ray", "--insecure-network", "--", "t.py"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'pstrain[ray]'" in line


def test_ray_launch_requires_explicit_open_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--engine", "ray", "--", "t.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--insecure-network" in line


def test_options_of_other_engines_are_refused_for_ray(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--engine", "ray", "--image", "i", "--", "t.py"]) == 2
    assert main(["launch", "--timeout", "3", "--", "t.py"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--image is for --engine k8s, not for ray" in first
    assert "--timeout is for --engine ray, not for local" in second
    with pytest.raises(InvalidArgumentError, match="--cpus-per-task must be at least 1, got 0"):
        RayOptions(cpus_per_task=0)

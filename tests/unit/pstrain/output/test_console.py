"""Standard output carries results only."""

from __future__ import annotations

import json

import pytest

from pstrain.output.console import Console


def test_json_console_prints_only_result_line_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(as_json=True)
    console.log("working")
    console.table("Result", [("AUC", "0.7")])
    console.print_result({"auc": 0.7})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"auc": 0.7}
    assert out.count("\n") == 1
    assert "working" in err


def test_plain_console_prints_everything_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.log("working")
    console.table("Result", [("AUC", "0.7"), ("log loss", "0.5")])
    console.print_result({"auc": 0.7})
    out, err = capsys.readouterr()
    assert "working" in out
    assert "  AUC       0.7\n  log loss  0.5\n" in out
    assert "{" not in out
    assert not err


def test_non_finite_results_are_printed_as_null(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).print_result({"auc": float("nan"), "loss": 0.5, "rows": 3})
    assert capsys.readouterr().out == '{"auc": null, "loss": 0.5, "rows": 3}\n'

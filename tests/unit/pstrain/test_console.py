"""Standard output carries results only."""

from __future__ import annotations

import json

import pytest

from pstrain.console import Console


def test_with_json_only_the_closing_line_is_on_standard_output(
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


def test_without_json_all_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.log("working")
    console.table("Result", [("AUC", "0.7"), ("log loss", "0.5")])
    console.print_result({"auc": 0.7})
    out, err = capsys.readouterr()
    assert "working" in out
    assert "  AUC       0.7\n  log loss  0.5\n" in out
    assert "{" not in out
    assert not err


def test_what_json_does_not_have_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).print_result({"auc": float("nan"), "loss": 0.5, "rows": 3})
    assert capsys.readouterr().out == '{"auc": null, "loss": 0.5, "rows": 3}\n'

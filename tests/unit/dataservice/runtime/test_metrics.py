"""Figures in the text form of Prometheus."""

from __future__ import annotations

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dataservice.errors import UnimplementedError
from dataservice.runtime.monitoring.metrics import Metric, Sample, exposition


def test_exposition_is_read_back_by_prometheus_library() -> None:
    labels = {"job": 'a "b"\n\\c', "worker": "h:1"}
    kind, text = exposition(
        [
            Metric("up", "gauge", "whether it answers", [Sample(1.0)]),
            Metric("rows_total", "counter", "rows sent", [Sample(3.0, labels), Sample(4.0)]),
        ]
    )
    up, rows = text_string_to_metric_families(text.decode())
    assert kind.startswith("text/plain; version=0.0.4")
    assert (up.name, up.type, up.documentation) == ("up", "gauge", "whether it answers")
    assert rows.type == "counter"
    read = [(each.name, each.labels, each.value) for each in rows.samples]
    assert read == [("rows_total", labels, 3.0), ("rows_total", {}, 4.0)]


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UnimplementedError, match=r"pip install 'pstrain\[metrics\]'"):
        exposition([])

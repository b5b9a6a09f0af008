"""Figures for monitoring systems, in the text form that Prometheus reads.

Knows nothing of what is measured; the text itself is written by prometheus-client, an extra.
Invariant: importing this module does not import that library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from dataservice.errors import UnimplementedError

# The library's names for it differ between versions.
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One figure; ``labels`` tell it from the others of its metric."""

    value: float
    labels: Mapping[str, str] = {}


class Metric(NamedTuple):
    """Figures of one kind. The name of a counter ends in ``_total``; units come last."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    samples: list[Sample]


def exposition(metrics: Iterable[Metric]) -> tuple[str, bytes]:
    """Returns the content type and the text; UnimplementedError if the extra is not installed."""
    try:
        from prometheus_client import generate_latest
    except ImportError as error:
        raise UnimplementedError(
            "metrics need the package prometheus-client: pip install 'pstrain[metrics]'"
        ) from error
    families = list(_families(metrics))
    return _CONTENT_TYPE, generate_latest(_Collected(families))


class _Collected:
    """What prometheus-client writes down: anything that has ``collect``."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        return self._families


def _families(metrics: Iterable[Metric]) -> Iterator[Any]:
    from prometheus_client.metrics_core import Metric as Family

    for metric in metrics:
        # The library adds the suffix to the name of a counter by itself.
        family = Family(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
        for value, labels in metric.samples:
            family.add_sample(metric.name, dict(labels), value)
        yield family

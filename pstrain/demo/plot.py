"""The picture of a training: loss and AUC over time. The only module that uses matplotlib."""

from __future__ import annotations

from pathlib import Path

from pstrain.demo.trace import Trace


def draw(trace: Trace, target: Path) -> bool:
    """Writes a picture, PNG or SVG by ``target``'s name; False where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.subplots()
    seconds, losses = zip(*trace.losses, strict=True) if trace.losses else ((), ())
    left.plot(seconds, losses, color="tab:blue", alpha=0.5, label="training loss")
    left.plot(
        [point.seconds for point in trace.tests],
        [point.loss for point in trace.tests],
        "o-", color="tab:blue", label="test loss",
    )  # fmt: skip
    left.set_xlabel("seconds of training")
    left.set_ylabel("log loss")
    right = left.twinx()
    right.plot(
        [point.seconds for point in trace.tests],
        [point.auc for point in trace.tests],
        "s-", color="tab:orange", label="test AUC",
    )  # fmt: skip
    right.set_ylabel("AUC")
    figure.legend(loc="outside upper center", ncols=3)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return True

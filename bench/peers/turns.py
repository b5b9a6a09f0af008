"""Processes that train in turns, so that a change of the machine's speed affects all of them.

Standard library only. A process waits for a line with a number of CPU seconds, trains for that
time, and prints its steps and their CPU seconds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from bench.peers import children


def serve(step: Callable[[], float]) -> None:
    """Serves turns, in the training process, until its input ends. ``step`` returns the loss."""
    for line in sys.stdin:
        least_s, steps = float(line), 0
        began, cpu_s, loss = time.process_time(), 0.0, 0.0
        while cpu_s < least_s or not steps:
            loss = step()
            steps += 1
            cpu_s = time.process_time() - began
        if not math.isfinite(loss):
            raise ArithmeticError(f"the loss became {loss}: the run is no measurement")
        children.say(steps=steps, cpu_s=cpu_s)


def cpu_ms_of_step(child: children.Child, seconds: float) -> float:
    """Lets a process take one turn; returns the CPU milliseconds of a step."""
    child.tell(str(seconds))
    turn = child.line()
    return 1e3 * float(turn["cpu_s"]) / int(turn["steps"])

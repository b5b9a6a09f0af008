"""Kernels compile in processes of their own, into the cache that all share."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

# The shortest first.
MODULES = ["marks", "losses", "bfloat16", "metrics"]
# How often it has others compile, twice over, and what this process compiled itself.
PROGRAM = f"""
import importlib, json
from numba.core.dispatcher import Dispatcher
from pstrain import compiling
compiling.available_cores = lambda: 2
fill, asked, told = compiling._fill_cache, [], []
def counted(names, processes):
    asked.append(sorted(names))
    fill(names, processes)
compiling._fill_cache = counted
compiling.compile_kernels(told.append, {MODULES})
compiling.compile_kernels(modules={MODULES})
compiled = []
for name in {MODULES}:
    kernels = vars(importlib.import_module("pstrain.kernels." + name)).values()
    stats = [kernel.stats for kernel in kernels if isinstance(kernel, Dispatcher)]
    compiled += [name] * any(each.cache_misses for each in stats)
print(json.dumps([sorted(told), asked, compiled]))
"""
TOLD = sorted(f"compiled {name}" for name in MODULES)
TRAINER = """
import threading
from pstrain.kernels import losses
from pstrain.trainer.server import TrainerServer
server = TrainerServer("127.0.0.1", 0)
server.start()
(thread,) = [each for each in threading.enumerate() if each.name == "kernel-warm-up"]
thread.join()
server.stop()
kernels = [value for value in vars(losses).values() if hasattr(value, "signatures")]
print([bool(kernel.signatures) for kernel in kernels])
"""


def output(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def run(cache: pathlib.Path) -> Any:
    return json.loads(output(PROGRAM, NUMBA_CACHE_DIR=str(cache)))


def test_one_module_shows_that_the_others_are_to_be_compiled_elsewhere(
    tmp_path: pathlib.Path,
) -> None:
    assert run(tmp_path) == [TOLD, [["bfloat16", "losses", "metrics"]], ["marks"]]
    assert run(tmp_path) == [TOLD, [], []]


def test_what_was_cut_short_is_compiled_elsewhere_too(tmp_path: pathlib.Path) -> None:
    output("from pstrain import kernels; kernels.warm_up('marks')", NUMBA_CACHE_DIR=str(tmp_path))
    assert run(tmp_path) == [TOLD, [["bfloat16", "metrics"]], ["losses"]]


def test_a_trainer_has_its_kernels_before_its_first_step() -> None:
    compiled = output(TRAINER)
    assert "True" in compiled
    assert "False" not in compiled

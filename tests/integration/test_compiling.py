"""Kernels compile in processes of their own, into the cache that all share."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

MODULES = ["marks", "metrics", "losses"]
PROGRAM = f"""
import importlib, json, os
from numba.core.dispatcher import Dispatcher
from pstrain import compiling
compiling.available_cores = lambda: 2
told = []
compiling.compile_kernels(told.append, {MODULES})
compiled = {{}}
for name in {MODULES}:
    kernels = vars(importlib.import_module("pstrain.kernels." + name)).values()
    stats = [kernel.stats for kernel in kernels if isinstance(kernel, Dispatcher)]
    compiled[name] = any(each.cache_misses for each in stats)
print(json.dumps([sorted(told), compiled]))
"""


def run(cache: pathlib.Path) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return list(json.loads(done.stdout))


def test_one_module_shows_that_the_others_are_to_be_compiled_elsewhere(
    tmp_path: pathlib.Path,
) -> None:
    told = sorted(f"compiled {name}" for name in MODULES)
    assert run(tmp_path) == [told, {"marks": True, "metrics": False, "losses": False}]
    assert run(tmp_path) == [told, dict.fromkeys(MODULES, False)]

"""Kernels compile in processes of their own, into the cache that all processes share."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tests.programs import run_program

# ``marks``, the shortest, is compiled first.
MODULES = ["marks", "losses", "bfloat16", "metrics"]
# Compiles twice; prints what it reported, the modules that it had other processes compile in each
# call, and the modules that it compiled and loaded itself.
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
compiling.compile_kernels({{report}}, {MODULES})
compiling.compile_kernels(modules={MODULES})
compiled, loaded = [], []
for name in {MODULES}:
    values = vars(importlib.import_module("pstrain.kernels." + name)).values()
    kernels = [value for value in values if isinstance(value, Dispatcher)]
    compiled += [name] * any(kernel.stats.cache_misses for kernel in kernels)
    loaded += [name] * any(kernel.signatures for kernel in kernels)
print(json.dumps([sorted(told), asked, compiled, loaded]))
"""
# Too few modules to start other processes for.
FEW = MODULES[:2]
# Starts a server; prints which modules are then in the cache, and which it has loaded.
SERVER = f"""
import importlib, json, threading
from numba.core.dispatcher import Dispatcher
from pstrain import kernels
from pstrain.{{module}} import {{name}}
kernels.modules = lambda: {FEW}
importlib.import_module("pstrain.{{module}}")._KERNELS = {FEW}
server = {{name}}("127.0.0.1", 0)
server.start()
for thread in threading.enumerate():
    if thread.name == "kernel-warm-up":
        thread.join()
server.stop()
def is_loaded(name):
    values = vars(importlib.import_module("pstrain.kernels." + name)).values()
    return any(value.signatures for value in values if isinstance(value, Dispatcher))
names = {FEW}
print(json.dumps([[*filter(kernels.is_compiled, names)], [*filter(is_loaded, names)]]))
"""
SERVERS = [("trainer.server", "TrainerServer"), ("paramserver.server", "ParameterServer")]
# Compiles one module whole, and one kernel of a module that is not the next in order.
CUT_SHORT = """
import numpy as np
from pstrain import kernels
from pstrain.kernels import bfloat16
kernels.warm_up("marks")
bfloat16.from_bfloat16(np.zeros(2, np.uint16), np.zeros(2, np.uint32))
"""


def run(program: str, cache: pathlib.Path) -> tuple[Any, int]:
    """Returns what a program prints, and how often it explains that it compiles."""
    done = run_program(program, env={"NUMBA_CACHE_DIR": str(cache)}, timeout_s=300.0)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    explained = done.stderr.count("compiling kernels, which takes")
    return json.loads(done.stdout or "null"), explained


def test_modules_after_the_first_are_compiled_in_other_processes_which_is_explained_once(
    tmp_path: pathlib.Path,
) -> None:
    program = PROGRAM.format(report=None)
    others = ["bfloat16", "losses", "metrics"]
    assert run(program, tmp_path) == ([[], [others], ["marks"], ["marks"]], 1)
    assert run(program, tmp_path) == ([[], [], [], []], 0)


def test_interrupted_compilation_is_completed_in_other_processes(tmp_path: pathlib.Path) -> None:
    run(CUT_SHORT, tmp_path)
    told = ["compiled bfloat16", "compiled losses", "compiled metrics"]
    found, _ = run(PROGRAM.format(report="told.append"), tmp_path)
    assert found == [told, [["bfloat16", "metrics"]], ["losses"], ["losses"]]


@pytest.mark.parametrize(("module", "name"), SERVERS)
def test_server_with_all_kernels_compiled_loads_only_the_first(
    module: str, name: str, tmp_path: pathlib.Path
) -> None:
    program = SERVER.format(module=module, name=name)
    (everything, loaded), _ = run(program, tmp_path)
    assert everything == FEW
    assert "marks" in loaded
    assert run(program, tmp_path) == ([FEW, ["marks"]], 0)

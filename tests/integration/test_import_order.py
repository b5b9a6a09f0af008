"""Imports that may run on several threads at once, as in a program with a dispatcher of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from dataservice.public_names import HOMES

# Python holds the lock of a module whose import has begun, also while it imports its package.
_ORDER = """
    import importlib, os, sys
    from importlib import _bootstrap

    class Finder:
        def find_spec(self, name, path=None, target=None):
            begun = [n for n in list(_bootstrap._module_locks) if n.startswith(f"{name}.")]
            if name == "dataservice.dataset" and begun:
                print(entry, "began with", *begun)

    def enter(entry):
        from dataservice import public_names
        if entry in public_names.HOMES:
            public_names.resolve(entry)
            return
        from dataservice.dispatcher import planning
        from dataservice.job_options import JobOptions
        from dataservice.vocabulary import ShardingPolicy
        calls = {
            "preload": planning.preload,
            "list_files": lambda: planning.list_files(b"", ShardingPolicy.FILE, 1, JobOptions()),
            "plan_windows": lambda: planning.plan_windows(b"", 0, JobOptions()),
            "plan_snapshot": lambda: planning.plan_snapshot(b""),
        }
        calls[entry]()

    import grpc, numpy, pyarrow.compute  # what most entries load, once for all forks
    sys.meta_path.insert(0, Finder())
    for entry in sys.argv[1:]:
        if not os.fork():
            try:
                enter(entry)
            finally:
                sys.stdout.flush()
                os._exit(0)
        os.wait()
    print("done")
"""


def test_package_of_datasets_is_imported_before_its_modules() -> None:
    """Otherwise a thread that loads the package and one that began with a module deadlock."""
    homes = {home: name for name, home in HOMES.items()}
    entries = [*homes.values(), "preload", "list_files", "plan_windows", "plan_snapshot"]
    program = [sys.executable, "-c", textwrap.dedent(_ORDER), *entries]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout == "done\n"


# The thread that imports the package of callbacks is held where it would import one of its modules,
# until the other thread has begun with another of them.
_FIT_BESIDE_EVALUATE = """
    import sys, threading, time
    from importlib import _bootstrap
    import pstrain as ps

    package, later = "pstrain.callbacks", "pstrain.callbacks.monitor"

    class Finder:
        def find_spec(self, name, path=None, target=None):
            owner = sys.modules.get(package)
            if name.startswith(package + ".") and owner.__spec__._initializing:
                deadline = time.monotonic() + 30
                while name != package + ".base" and later not in list(_bootstrap._module_locks):
                    assert time.monotonic() < deadline
                    time.sleep(0.001)

    def first(name):
        start.wait()
        try:
            said = getattr(ps, name).__name__
        except BaseException as error:
            said = error
        print(f"{said}\\n", end="")  # in one write, as both threads print

    sys.meta_path.insert(0, Finder())
    ps.models, ps.metrics, ps.optimizers  # what a compiled model has imported
    start = threading.Barrier(2)
    threads = [threading.Thread(target=first, args=(name,)) for name in ("fit", "evaluate")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_first_fit_beside_first_evaluate_imports_callbacks() -> None:
    program = [sys.executable, "-c", textwrap.dedent(_FIT_BESIDE_EVALUATE)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert sorted(ended.stdout.split()) == ["evaluate", "fit"]


@pytest.mark.parametrize("package", ["dataservice", "pstrain"])
@pytest.mark.parametrize(("given", "found"), [(None, "0"), ("1", "1")])
def test_support_of_forks_is_off_before_anything_imports_grpc(
    package: str, given: str | None, found: str
) -> None:
    """Otherwise forked children crash if the program imports grpc before a name of the package."""
    name = "GRPC_ENABLE_FORK_SUPPORT"
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment |= {} if given is None else {name: given}
    code = f"import os, sys, {package}; print(os.environ[{name!r}], 'grpc' in sys.modules)"
    program = [sys.executable, "-c", code]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    assert ended.stdout == f"{found} False\n"

"""Children announce themselves, obey, and never outlive their parent."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from dataservice.errors import DeadlineExceededError, FailedPreconditionError, UnavailableError
from dataservice.runtime.process.children import ChildProcess, spawn_module
from tests.programs import said_by
from tests.waiting import is_running, wait_until

CHILD = """
import os, signal, socket, sys, time
from dataservice.runtime.process.children import announce_ready, exit_with_parent, spawn_module

mode = sys.argv[1]
exit_with_parent()
print("chatter before", flush=True)
if mode == "crash":
    print("about to fail", file=sys.stderr)
    raise SystemExit("cannot find the answer " + os.environ.get("ANSWER", "?"))
if mode == "mute":
    print("thinking", file=sys.stderr, flush=True)
    time.sleep(600)
if mode == "listen":
    listener = socket.create_server(("127.0.0.1", 0))
    announce_ready(address="127.0.0.1:%d" % listener.getsockname()[1])
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    announce_ready()
if mode == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    announce_ready()
if mode == "stopping":
    from dataservice.runtime.process.signals import StopSignals
    stop = StopSignals()
    announce_ready()
    while not stop.wait(0.5):
        pass
    assert all(stop.wait(1.0) for _ in range(20_000)) and stop.is_set()
    os._exit(9)
if mode == "talk":
    announce_ready()
    print("y" * 1_000_000, flush=True)
    print("talked", file=sys.stderr, flush=True)
if mode == "parent":
    child = spawn_module("child_under_test", ["listen"])
    announce_ready(child=child.wait_ready(60))
time.sleep(600)
"""


@pytest.fixture
def spawn(tmp_path: pathlib.Path) -> Iterator[Callable[..., ChildProcess]]:
    (tmp_path / "child_under_test.py").write_text(CHILD)
    started: list[ChildProcess] = []

    def start(mode: str, **options: object) -> ChildProcess:
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "ANSWER": "42"}
        child = spawn_module("child_under_test", [mode], env=env, **options)  # type: ignore[arg-type]
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()


def test_child_announces_its_address(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("listen")
    fields = child.wait_ready(60)
    assert fields["pid"] == child.pid
    assert fields["address"].startswith("127.0.0.1:")
    assert child.wait_ready(0.0) == fields
    assert child.returncode is None


def test_child_that_dies_early_is_reported_with_its_log(
    spawn: Callable[..., ChildProcess],
) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        spawn("crash").wait_ready(60)
    text = str(caught.value)
    assert "child_under_test" in text
    assert "status 1" in text
    assert "chatter before" in text
    assert "cannot find the answer 42" in text


def test_child_that_is_never_ready_is_reported_with_its_log(
    spawn: Callable[..., ChildProcess], tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "logs" / "mute.log"
    child = spawn("mute", log_path=log)
    wait_until(lambda: "thinking" in log.read_text(), "its first word")
    with pytest.raises(DeadlineExceededError, match=r"(?s)not ready within 0.1 s.*thinking"):
        child.wait_ready(0.1)
    child.kill()  # as another thread may; this closes the log
    with pytest.raises(FailedPreconditionError, match=r"(?s)status -9 before.*thinking"):
        child.wait_ready(0.1)


def test_child_with_much_output_is_not_blocked(
    spawn: Callable[..., ChildProcess], tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "talk.log"
    spawn("talk", log_path=log).wait_ready(60)
    wait_until(
        lambda: "talked" in log.read_text() and log.read_text().count("y") >= 1_000_000,
        "all that it says",
    )


def test_terminate_lets_child_end_by_itself(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("polite")
    child.wait_ready(60)
    assert child.terminate(60.0) == 7
    assert child.terminate() == 7
    assert child.kill() == 7


def test_stop_signals_survive_a_flood_of_signals(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("stopping")
    child.wait_ready(60)
    give_up_s = time.monotonic() + 60.0
    while child.returncode is None:
        assert time.monotonic() < give_up_s, "a signal that came while one was noted stopped it"
        os.kill(child.pid, signal.SIGTERM)
    assert child.wait(1.0) == 9


def test_server_shows_the_stacks_of_its_threads_when_asked(
    spawn: Callable[..., ChildProcess], tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "log"
    child = spawn("stopping", log_path=log)
    child.wait_ready(60)
    os.kill(child.pid, signal.SIGUSR1)
    wait_until(lambda: "child_under_test.py" in log.read_text(), "the stacks")
    assert child.returncode is None


def test_terminate_kills_child_that_ignores_the_signal(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("stubborn")
    child.wait_ready(60)
    start_s = time.monotonic()
    assert child.terminate(0.3) == -signal.SIGKILL
    assert time.monotonic() - start_s < 30.0
    assert not is_running(child.pid)


def test_suspended_child_can_be_resumed_or_terminated(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("polite")
    child.wait_ready(60)
    for _ in range(2):
        child.suspend()
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
    child.resume()
    wait_until(lambda: psutil.Process(child.pid).status() != psutil.STATUS_STOPPED, "the signal")
    child.suspend()
    assert child.terminate(60.0) == 7
    with pytest.raises(UnavailableError, match="has ended"):
        child.suspend()
    with pytest.raises(UnavailableError, match="has ended"):
        child.resume()


def test_wait_for_running_child_times_out(spawn: Callable[..., ChildProcess]) -> None:
    child = spawn("listen")
    child.wait_ready(60)
    with pytest.raises(DeadlineExceededError, match="still runs"):
        child.wait(0.1)


def test_children_die_with_killed_parent(
    spawn: Callable[..., ChildProcess],
) -> None:
    parent = spawn("parent")
    grandchild = parent.wait_ready(60)["child"]
    assert is_running(grandchild["pid"])
    assert psutil.Process(grandchild["pid"]).ppid() == parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(grandchild["pid"]), "its end")


def test_frozen_children_die_with_killed_parent(
    spawn: Callable[..., ChildProcess],
) -> None:
    parent = spawn("parent")
    grandchild = parent.wait_ready(60)["child"]
    os.kill(grandchild["pid"], signal.SIGSTOP)
    wait_until(
        lambda: psutil.Process(grandchild["pid"]).status() == psutil.STATUS_STOPPED, "the signal"
    )
    try:
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: not is_running(grandchild["pid"]), "its end")
    finally:
        if is_running(grandchild["pid"]):
            os.kill(grandchild["pid"], signal.SIGKILL)


def test_children_die_with_parent_that_ends_normally(tmp_path: pathlib.Path) -> None:
    (tmp_path / "child_under_test.py").write_text(CHILD)
    code = (
        "from dataservice.runtime.process.children import spawn_module\n"
        "print(spawn_module('child_under_test', ['listen']).wait_ready(60)['pid'])"
    )
    pid = int(said_by(code, env={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}))
    wait_until(lambda: not is_running(pid), "its end")


def test_killing_a_child_leaves_the_other_running(spawn: Callable[..., ChildProcess]) -> None:
    first, second = spawn("listen"), spawn("listen")
    first.wait_ready(60)
    second.wait_ready(60)
    assert first.kill() == -signal.SIGKILL
    assert is_running(second.pid)
    assert second.returncode is None


def test_killed_children_leave_no_open_files(spawn: Callable[..., ChildProcess]) -> None:
    spawn("listen").kill()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        child = spawn("listen")
        child.wait_ready(60)
        child.kill()
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert not is_running(child.pid)


def test_collect_seldom_freezes_existing_objects_and_raises_thresholds() -> None:
    program = (
        "import gc\n"
        "from dataservice.runtime.process.children import collect_seldom\n"
        "often = gc.get_threshold()\n"
        "collect_seldom()\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 1_000, gc.get_threshold() > often)\n"
    )
    assert said_by(program).split() == ["True"] * 3


def test_objects_made_without_collection_are_frozen() -> None:
    program = (
        "import gc\n"
        "from dataservice.runtime.process.children import without_collection\n"
        "before = [kind['collections'] for kind in gc.get_stats()]\n"
        "with without_collection():\n"
        "    made = [[] for _ in range(100_000)]\n"
        "after = [kind['collections'] for kind in gc.get_stats()]\n"
        "print(before == after, gc.get_freeze_count() > 100_000, gc.isenabled())\n"
    )
    assert said_by(program).split() == ["True"] * 3


STARTED = """
import gc, importlib, os, sys
from {package}.__main__ import main
def start(self):
    print(gc.isenabled() and gc.get_freeze_count() > 1_000, "fsspec" in sys.modules, flush=True)
    os._exit(0)
module, _, name = {server!r}.rpartition(".")
getattr(importlib.import_module(module), name).start = start
main({arguments!r})
"""
COMMANDS = [
    ("dataservice", "dataservice.dispatcher.server.DispatchServer", "dispatcher"),
    ("dataservice", "dataservice.worker.server.WorkerServer", "worker --dispatcher 127.0.0.1:1"),
    ("pstrain", "pstrain.server.Server", "server --job ps --port 0"),
    ("pstrain", "pstrain.server.Server", "server --job worker --port 0"),
]


@pytest.mark.parametrize(("package", "server", "command"), COMMANDS)
def test_starting_server_has_frozen_its_imports_and_not_imported_fsspec(
    package: str, server: str, command: str
) -> None:
    program = STARTED.format(package=package, server=server, arguments=command.split())
    assert said_by(program) == "True False\n"


@pytest.mark.parametrize("package", ["dataservice", "pstrain"])
def test_help_imports_no_heavy_libraries(package: str) -> None:
    program = f"""
import sys
from {package}.__main__ import main
try:
    main(["--help"])
except SystemExit:
    needed = {{"grpc", "importlib.metadata", "numba", "numpy", "pyarrow"}}
    print(sorted(needed & set(sys.modules)))
"""
    assert said_by(program).endswith("[]\n")


LIMITED = """
import sys
import dataservice.__main__, dataservice.commands.worker, pstrain.__main__, pstrain.commands.server
from dataservice.runtime.machine import cores
assert not {"numpy", "pyarrow", "numba"} & sys.modules.keys(), "they have counted the cores already"
cores._runnable, cores._quota = lambda: 64, lambda: 3
cores.limit_libraries()
import numba, pyarrow
print(pyarrow.cpu_count(), numba.config.NUMBA_NUM_THREADS)
"""


def test_limit_libraries_sets_thread_counts_before_their_import() -> None:
    chosen = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], env=chosen, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["3", "3"], "")

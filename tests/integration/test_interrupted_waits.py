"""Waits of the main thread end with an interrupt, also with one that another thread took.

The operating system may give a signal to any thread, but Python handles it in the main thread,
which has to wake up for that.
"""

from __future__ import annotations

import pytest

from tests.programs import run_program


@pytest.mark.parametrize(
    "wait",
    [
        "ps.Server({'worker': ['localhost:0']}).join()",
        "ps.Server({'ps': ['localhost:0']}).join()",
        "ds.DispatchServer().join()",
        "ds.DispatchServer().join(100)",
        "ds.MonitorServer('localhost:1').join()",
        "RemoteValue(0, threading.Condition(), unittest.mock.Mock()).fetch()",
        "RemoteValue(0, threading.Condition(), unittest.mock.Mock()).fetch(100)",
    ],
)
def test_wait_ends_with_interrupt_that_another_thread_took(wait: str) -> None:
    done = run_program(
        f"""
        import signal, threading, time, unittest.mock
        import dataservice as ds, pstrain as ps
        from pstrain.coordinator.remote_value import RemoteValue

        def interrupt():
            # Again, since one that comes before the wait, in a callback, is lost.
            while True:
                time.sleep(1.0)
                signal.raise_signal(signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        try:
            {wait}
        except KeyboardInterrupt:
            print("interrupted")
        """,
        timeout_s=30.0,
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_context_starts_monitor_whose_join_was_refused_before() -> None:
    done = run_program(
        """
        import dataservice as ds
        monitor = ds.MonitorServer("localhost:1", start=False)
        try:
            monitor.join()
        except RuntimeError as error:
            print(error)
        with monitor:
            print(monitor.address.endswith(":0"))
        monitor.join()
        """,
        timeout_s=30.0,
    )
    assert done.stdout == "there is nothing to wait for before start()\nFalse\n", done.stderr

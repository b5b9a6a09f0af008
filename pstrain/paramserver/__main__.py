"""``python -m pstrain.paramserver``: one parameter server, in a process of its own."""

from __future__ import annotations

import argparse
import os

from dataservice.runtime.machine.allocator import keep_freed_memory
from dataservice.runtime.machine.open_files import allow_most_files
from dataservice.runtime.process.children import announce_ready, exit_with_parent
from dataservice.runtime.process.signals import StopSignals
from pstrain.paramserver.server import ParameterServer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pstrain.paramserver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    args = parser.parse_args()
    exit_with_parent()
    keep_freed_memory()
    allow_most_files()
    stop = StopSignals()
    with ParameterServer(args.host, args.port) as server:
        announce_ready(address=server.address, pid=os.getpid())
        # A wait without a time-out would not wake for a signal that another thread received.
        while not stop.wait(0.5):
            pass


if __name__ == "__main__":
    main()

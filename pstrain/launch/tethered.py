"""Runs a command that the kernel kills when the process that started it is gone.

``python -m pstrain.launch.tethered PARENT_PID COMMAND...`` becomes the command, of which it knows
nothing. Invariant: on Linux the command never outlives its parent; elsewhere it runs untethered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    if sys.platform == "linux":
        # The setting survives exec. A parent that died before it took effect shows in getppid().
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

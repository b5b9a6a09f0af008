"""Takes from Python what it has on Linux and lacks on macOS, before a program imports anything.

For programs that are started with this folder in PYTHONPATH; their children inherit it. What stays
Linux's own: the kernel, and `epoll`, which has the properties of macOS's `kqueue` that matter here.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import mmap
import os
import resource
import select
import signal
import socket
import time
from typing import Any

_ABSENT = {
    os: (
        "MFD_ eventfd EFD_ fdatasync getrandom memfd_create pidfd_open pipe2 posix_fadvise "
        "posix_fallocate POSIX_FADV sched_ splice SPLICE_ copy_file_range waitid O_DIRECT O_PATH "
        "O_TMPFILE O_NOATIME"
    ),
    socket: (
        "MSG_CMSG_CLOEXEC MSG_NOSIGNAL MSG_MORE SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED SO_DOMAIN "
        "SO_PROTOCOL SO_PASSCRED SCM_CREDENTIALS TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK"
    ),
    signal: "sigtimedwait sigwaitinfo SIGRT SIGPOLL SIGCLD SIGPWR SIGSTKFLT pidfd_send_signal",
    mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_REMOVE MAP_POPULATE",
    fcntl: "F_SEAL_ F_ADD_SEALS F_GET_SEALS F_OFD_ F_SETSIG F_GETSIG F_SETPIPE_SZ F_GETPIPE_SZ",
    resource: "prlimit",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
    select: "POLLMSG",
}
_ABSENT_FOLDERS = ("/proc/", "/sys/")


def _without_folders(opening: Any) -> Any:
    def open_if_present(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(_ABSENT_FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return opening(path, *args, **kwargs)

    return open_if_present


for module, names in _ABSENT.items():
    for name in [each for each in vars(module) if each.startswith(tuple(names.split()))]:
        delattr(module, name)
io.open = builtins.open = _without_folders(io.open)
os.open = _without_folders(os.open)

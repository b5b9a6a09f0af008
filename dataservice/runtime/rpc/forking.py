"""Refuses gRPC in processes that were forked from one that had used it.

gRPC's threads do not come along to a child, so its calls there wait for ever. Knows nothing of
calls. Invariant: whoever passes `check_not_forked` is in the process that used gRPC first, or in
one that was started anew.
"""

from __future__ import annotations

import os

from dataservice.errors import FailedPreconditionError

_used_in_process: int | None = None


def check_not_forked(user: str) -> None:
    """To be called before gRPC is used; FailedPreconditionError in such a child."""
    global _used_in_process
    if _used_in_process is None:
        _used_in_process = os.getpid()
    if _used_in_process != os.getpid():
        raise FailedPreconditionError(
            f"{user} cannot be made in this process, which was forked from one (pid "
            f"{_used_in_process}) that used the data service already; start processes by 'spawn', "
            "for example DataLoader(..., multiprocessing_context='spawn')"
        )

"""The finalizer of streams: closes the reader of a stream that was garbage-collected.

Responsible for the thread that does this. Knows nothing of what a reader reads. Invariant: the
reader is closed, and neither garbage collection nor the end of the process waits for ever.
"""

from __future__ import annotations

import threading

from dataservice.client.joined_iteration import RELEASE_TIMEOUT_S
from dataservice.client.reader import ServiceReader
from dataservice.client.round_reader import RoundReader


def abandon(reader: ServiceReader | RoundReader) -> None:
    """Closes the reader of a stream that is no longer referenced.

    Garbage collection may run at any point of any thread, also while that thread holds the reader's
    lock, so another thread closes the reader. The main thread, and so the end of the process, waits
    up to `RELEASE_TIMEOUT_S` for it.
    """
    closing = threading.Thread(target=reader.close, name="reader-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:
        # From Python 3.12 on no thread starts while the interpreter shuts down.
        reader.close()
        return
    if threading.current_thread() is threading.main_thread():
        closing.join(RELEASE_TIMEOUT_S)

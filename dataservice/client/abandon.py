"""The finalizer of streams: closes the reader of one that was collected as garbage.

Invariant: it is closed, and neither a collection nor the end of the process waits for ever.
"""

from __future__ import annotations

import threading

from dataservice.client.joined_iteration import RELEASE_TIMEOUT_S
from dataservice.client.reader import ServiceReader
from dataservice.client.round_reader import RoundReader


def abandon(reader: ServiceReader | RoundReader) -> None:
    """Closes the reader of a stream that nobody holds any more.

    Collection may come at any point of any thread, also where that thread holds the reader's lock,
    so another one does the work. The main thread, and so the end of the process, waits for it.
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

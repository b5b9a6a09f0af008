"""Flow control: sends the frames of a stream as far as the reader's credit goes, and then the end.

Knows frames and the channel it is given, nothing of who makes frames. Invariant: no element is
sent without credit for one at least, and a reader that waits hears a sign of life.
"""

from __future__ import annotations

import logging
from collections import deque

from dataservice.errors import CancelledError, InvalidArgumentError
from dataservice.wire.elements import END, KEEPALIVE, FrameKind, pack_omitted, unpack
from dataservice.worker.outgoing import Channel, Frame, FrameSender, FrameSource

logger = logging.getLogger(__name__)

KEEPALIVE_S = 1.0


def pump(
    frames: FrameSource, channel: Channel, credit: int, unconfirmed: deque[Frame] | None = None
) -> None:
    """Sends frames as they come, a sign of life when none does, and the end.

    None without credit for one element at least, so that a reader that stalls leaves the rest of
    the rows to others. A frame of more goes as a whole, and what was lacking is owed: readers give
    credit back in parts, so one that waited for all of its own could wait for ever. `unconfirmed`
    gets the frames that are taken, until new credit says that they arrived; they are of one
    element each.
    """
    sender = FrameSender(channel)

    def await_credit() -> None:
        nonlocal credit
        while credit < 1:
            more = _more_credit(channel)
            credit += more
            if unconfirmed is not None:
                _confirm(unconfirmed, more)

    while True:
        await_credit()
        try:
            frame = frames.get(KEEPALIVE_S)
        except CancelledError:
            _send_notes(frames, channel, is_last=True)
            channel.send(END)
            return
        if frame is not None and unconfirmed is not None:
            # Before anything is sent: from here on nobody else has it.
            unconfirmed.append(frame)
        _send_notes(frames, channel, is_last=frame is not None and _may_be_last(frame))
        if frame is not None:
            credit -= frame.elements
            sender.send(frame)
        elif channel.cancelled():
            raise CancelledError("the reader has gone")
        else:
            channel.send(KEEPALIVE)
        # The buffer keeps the error that ends a wait, and with its traceback would keep this.
        frame = None


def _may_be_last(frame: Frame) -> bool:
    """Whether a reader that has the frame may find that it has everything, and leave."""
    return not frame.more_follows and any(span.final for span in frame.spans)


def _send_notes(frames: FrameSource, channel: Channel, *, is_last: bool) -> None:
    while (notes := frames.take_notes(is_last=is_last)) is not None:
        channel.send(pack_omitted(notes))
        # Work goes on meanwhile, so there would always be something new of it.
        is_last = False


def _more_credit(channel: Channel) -> int:
    message = channel.recv()
    if message is None:
        raise CancelledError("the reader has gone")
    header = unpack(message.header)
    if header.kind is not FrameKind.CREDIT or not header.rows:
        raise InvalidArgumentError(f"a reader sent a frame of kind {header.kind.name}")
    return header.rows


def _confirm(unconfirmed: deque[Frame], count: int) -> None:
    for _ in range(min(count, len(unconfirmed))):
        unconfirmed.popleft()


def await_confirmation(channel: Channel, unconfirmed: deque[Frame]) -> None:
    """Until the reader says that it has the end, and by credit which frames arrived before."""
    while (message := channel.recv()) is not None:
        _confirm(unconfirmed, unpack(message.header).rows)


def await_close(channel: Channel) -> None:
    """Lets the reader go first: credit that meets a stream that is gone would look like a loss."""
    try:
        while channel.recv() is not None:
            pass
    except CancelledError:
        logger.debug("a reader closed its stream after the end")

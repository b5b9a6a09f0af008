"""Flow control: sends the frames of a stream as the reader's credit allows, and then the end.

Knows frames and the channel it is given, nothing of who makes the frames. Invariant: no frame is
sent without credit for at least one element, and a reader that waits receives keep-alives.
"""

from __future__ import annotations

import logging
from collections import deque

from dataservice.errors import CancelledError, InvalidArgumentError
from dataservice.wire.elements import END, KEEPALIVE, FrameKind, pack_omitted, unpack
from dataservice.worker.outgoing import Channel, Frame, FrameSender, FrameSource

logger = logging.getLogger(__name__)

KEEPALIVE_S = 1.0


def send_frames(
    frames: FrameSource, channel: Channel, credit: int, unconfirmed: deque[Frame] | None = None
) -> None:
    """Sends frames as they come, keep-alives while none comes, and then the end.

    Sends a frame only with credit for at least one element, so that a stalled reader leaves the
    remaining rows to others. A frame of more elements than there is credit for is sent whole, and
    the credit becomes negative: readers return credit in parts, so a wait for all of it might never
    end. `unconfirmed` holds the frames that were taken until new credit confirms that they arrived;
    such frames are of one element each.
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
            # Before anything is sent: the buffer has handed it over, so it must not get lost.
            unconfirmed.append(frame)
        _send_notes(frames, channel, is_last=frame is not None and _may_be_last(frame))
        if frame is not None:
            credit -= frame.elements
            sender.send(frame)
        elif channel.cancelled():
            raise CancelledError("the reader has gone")
        else:
            channel.send(KEEPALIVE)
        # The buffer keeps the error that ends a wait, whose traceback would keep the frame alive.
        frame = None


def _may_be_last(frame: Frame) -> bool:
    """True if a reader that receives the frame may find that it has all rows, and leave."""
    return not frame.more_follows and any(span.final for span in frame.spans)


def _send_notes(frames: FrameSource, channel: Channel, *, is_last: bool) -> None:
    while (notes := frames.take_notes(is_last=is_last)) is not None:
        channel.send(pack_omitted(notes))
        # Only once: work goes on meanwhile, so there would always be new times to send.
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
    """Waits until the reader has the end; drops the frames that its credit confirms before."""
    while (message := channel.recv()) is not None:
        _confirm(unconfirmed, unpack(message.header).rows)


def await_close(channel: Channel) -> None:
    """Waits until the reader closes the stream.

    If the worker closed it first, credit still on its way would make the stream look broken.
    """
    try:
        while channel.recv() is not None:
            pass
    except CancelledError:
        logger.debug("a reader closed its stream after the end")

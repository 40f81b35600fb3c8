"""The operations that take messages: get, get_all, and the steps of a loop.

Messages leave a stream in order, and one target has it at a time. `get` acknowledges before it returns: the
message stays at the head of its stream until the acknowledgement is acknowledged, so that one whose
acknowledgement went astray is given out by the next `get` and neither lost nor doubled. A loop acknowledges a
message when the next one is asked for.

With an inbox a message counts as handed out once the inbox has it on disk: it is never given out again, not
even if its acknowledgement fails or the loop ends with it in flight. So that is the last thing that is done before it
is handed out: a process that dies on that short way takes the message with it. The acknowledgement goes out when more
is asked for, and if the process dies before, the next one finds the message in its inbox and acknowledges it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from tidings.client.inbox import CREATED
from tidings.client.operations import (
    Core,
    Operation,
    Until,
    conclude,
    end_leaving,
    exclusive,
    subscriptions,
    wait_for,
)
from tidings.client.stream import Stream
from tidings.errors import Fenced, InvalidRequest, LocalError, NotSubscribed, StorageError, TidingsError, Unavailable
from tidings.message import Batch, Message
from tidings.protocols.broker.messages import Position

STRIDE_MAX = 256
"""Messages that a loop hands out before it looks after the connection again."""
QUICK_MS = 2
SLOW_MS = 20

_OWNERS = {
    "loop": "is being read by a loop: finish the loop first, or take the next message there",
    "transaction": "is being read in a transaction: use tx.get there, or finish it first",
}


def claim(stream: Stream, owner: str) -> Operation[None]:
    """Makes the caller the one who takes from this stream."""
    while stream.owner is not None:
        if stream.owner in _OWNERS:
            raise InvalidRequest(f"The subscription to {', '.join(stream.topics)} {_OWNERS[stream.owner]}.")
        yield Until(lambda: stream.owner is None)
    stream.owner = owner


def check(core: Core, stream: Stream) -> None:
    """Raises what has happened to the stream meanwhile."""
    fenced = core.session.main.fenced
    if fenced is not None:
        raise Fenced(str(fenced))
    if stream.error is not None:
        error, stream.error = stream.error, None
        raise error


def make_ready(core: Core, streams: Iterable[Stream]) -> Operation[None]:
    """Opens what is closed, after what an earlier life or a transaction of unknown outcome left to be done."""
    for stream in streams:
        fenced = core.session.main.fenced
        if fenced is not None:
            raise Fenced(str(fenced))
        if stream.leaving:
            yield from end_leaving(core, stream.topics)
        if stream.unknown is not None:
            yield from _resolve(core, stream)
        if not stream.opened:
            marks = {} if core.inbox is None else core.inbox.positions(stream.topics)
            if core.inbox is not None and marks:
                positions = tuple(Position(topic, offset) for topic, offset in marks.items() if topic in stream.topics)
                core.session.now_ms = core.now_ms()
                try:
                    created_epoch = marks.get(CREATED, 0)
                    acked = core.session.streams.acknowledge(stream, positions, created_epoch)
                    yield from wait_for(acked.future)
                except NotSubscribed:  # What the inbox knows is of an earlier subscription.
                    core.inbox.forget(stream.topics)
                except InvalidRequest as error:
                    raise InvalidRequest(
                        f"The inbox was used with another broker, or this one has older data than it had ({error}): "
                        "open the bus with the inbox that belongs to it, or with none and expect repeated messages."
                    ) from error
            stream.opened = True


def _resolve(core: Core, stream: Stream) -> Operation[None]:
    """Brings a transaction to its end of which it is not known whether it happened."""
    assert stream.unknown is not None
    core.session.now_ms = core.now_ms()
    core.session.main.outbox.resend(stream.unknown)
    try:
        yield from conclude(core, stream.unknown)
    except Unavailable:
        raise
    except TidingsError:
        pass  # It did not happen, and what it had taken comes again.


def fill(core: Core, stream: Stream, deadline_ms: int | None) -> Operation[bool]:
    """Waits until the stream has a message; asks the broker first, so that even no wait at all is a sure answer."""
    yield from make_ready(core, [stream])
    if stream.ready():
        return True
    core.session.now_ms = core.now_ms()
    probe = core.session.streams.probe(stream)
    yield Until(lambda: stream.ready() or probe.done)
    if not stream.ready():
        if probe.error is not None:
            stream.error = None
            raise probe.error
        yield Until(lambda: stream.ready() or stream.closed or stream.error is not None, deadline_ms)
        if not stream.ready():
            check(core, stream)
    return stream.ready()


def get(core: Core, topics: tuple[str, ...], deadline_ms: int | None) -> Operation[Message | None]:
    """The next message, acknowledged, or written down in the inbox; None when the deadline passed without one."""
    streams = core.session.streams
    stream = streams.of(topics)
    yield from claim(stream, "get")
    try:
        acknowledge_handed(core, stream)
        if isinstance(stream.error, LocalError):  # The last acknowledgement was refused, say.
            check(core, stream)
        if not (yield from fill(core, stream, deadline_ms)):
            return None
        message = stream.peek()
        assert message is not None
        write_down_head(core, stream)
        position = Position(message.topic, message.offset + 1)
        if core.inbox is not None:
            yield from hand_out(core, stream, message.topic, 1, position.offset)
            return message
        core.session.now_ms = core.now_ms()
        yield from wait_for(streams.acknowledge(stream, (position,)).future)
        took(core, stream, message.topic, 1, position.offset)
        stream.acknowledged_up_to((position,))
        return message
    finally:
        stream.owner = None


def hand_out(core: Core, stream: Stream, topic: str, count: int, next_offset: int) -> Operation[None]:
    """With an inbox: the next messages count as handed out, and nothing more is sent before the caller has them."""
    yield from hand_out_all(core, {stream: (topic, count, next_offset)})


def hand_out_all(core: Core, heads: dict[Stream, tuple[str, int, int]]) -> Operation[None]:
    """The same for the heads of several streams: topic, how many messages, and where they end."""
    assert core.inbox is not None
    if core.session.outgoing:
        yield Until(lambda: True)  # It goes out now, and not between the inbox and the caller.
    try:
        created = [(stream.topics, CREATED, stream.created_epoch) for stream in heads]
        core.inbox.mark_all([*created, *((stream.topics, topic, end) for stream, (topic, _, end) in heads.items())])
    except StorageError:
        for stream, (topic, count, end) in heads.items():
            stream.marked = None
            with contextlib.suppress(StorageError):
                give_back(stream, topic, end - count, end)
        raise
    for stream, (topic, count, end) in heads.items():
        stream.marked = None
        stream.advance(count)
        stream.handed[topic] = end


def acknowledge_handed(core: Core, stream: Stream) -> None:
    """More is asked for: what the inbox says was handed out is acknowledged, without waiting for it."""
    if core.inbox is not None:
        stream.note_handed()
        core.session.now_ms = core.now_ms()
        core.session.streams.renew(stream)
        core.session.streams.flush(stream)


def write_down_head(core: Core, stream: Stream) -> None:
    """The next message is about to be handed out; one that stayed because its acknowledgement failed is known."""
    batch = stream.head()
    assert batch is not None
    place = (batch.topic, batch.first_offset + stream.index)
    if stream.marked != place:
        write_down(core, stream, batch, stream.index, stream.index + 1)
        stream.marked = place


def write_down(core: Core, stream: Stream, batch: Batch, start: int, end: int) -> None:
    """Records, if the subscriber wants it, that rows of a batch are about to be handed out."""
    recorder = stream.record or core.record
    if recorder is None:
        return
    if stream.marked == (batch.topic, batch.first_offset + start):
        stream.marked = None
        start += 1
        if start == end:
            return
    who = exclusive(core.client_id, stream.topics)
    if stream.on_return is None:
        stream.on_return = partial(recorder.returned, who)
    if batch.topic in stream.began:
        recorder.stands(who, batch.topic, stream.began[batch.topic])
        del stream.began[batch.topic]  # Not before it is written: the disk may have been full.
    recorder.handed(who, batch, start, end)


def give_back(stream: Stream, topic: str, start: int, end: int) -> None:
    """Records that messages which had been handed out will be handed out again."""
    if stream.on_return is not None and start < end:
        stream.on_return(topic, range(start, end))


def took(core: Core, stream: Stream, topic: str, count: int, next_offset: int) -> None:
    """So many messages have been handed out and dealt with."""
    stream.marked = None
    stream.advance(count)
    stream.note(topic, next_offset)
    core.session.streams.renew(stream)


def get_all(core: Core) -> Operation[dict[str, Message]]:
    """One message of each one-topic subscription that has any, acknowledged together."""
    names = yield from subscriptions(core)
    streams = [core.session.streams.of(topics) for topics in names if len(topics) == 1]
    claimed: list[Stream] = []
    try:
        for stream in streams:
            yield from claim(stream, "get")
            claimed.append(stream)
            acknowledge_handed(core, stream)
        yield from make_ready(core, streams)
        core.session.now_ms = core.now_ms()
        probes = [core.session.streams.probe(stream) for stream in streams if not stream.ready()]
        for probe in probes:
            yield from wait_for(probe)
        found = {stream: message for stream in streams if (message := stream.peek()) is not None}
        for stream in found:
            write_down_head(core, stream)
        if core.inbox is not None:
            yield from hand_out_all(
                core, {stream: (message.topic, 1, message.offset + 1) for stream, message in found.items()}
            )
            return {message.topic: message for message in found.values()}
        core.session.now_ms = core.now_ms()
        acked = [
            core.session.streams.acknowledge(stream, (Position(message.topic, message.offset + 1),))
            for stream, message in found.items()
        ]
        for request in acked:
            yield from wait_for(request.future)
        for stream, message in found.items():
            took(core, stream, message.topic, 1, message.offset + 1)
        return {message.topic: message for message in found.values()}
    finally:
        for stream in claimed:
            stream.owner = None


class Reader:
    """The steps of one loop over a subscription.

    The shell asks for a piece with `step`, hands the messages out, and counts in `done` those after which the
    next one was asked for. `leave` ends the loop; what is not `done` stays in the stream.
    """

    def __init__(self, core: Core, stream: Stream, timeout: float | None) -> None:
        self.done = 0
        self._core = core
        self._stream = stream
        self._timeout = timeout
        self._claimed = False
        self._batch: Batch | None = None
        self._messages: Iterator[Message] | None = None
        self._stride = 1
        self._stepped_ms = 0
        self._given_end = 0
        """Up to which row the present batch has been handed out."""

    def step(self) -> Operation[Iterator[Message] | None]:
        """The next few messages, or None at the end of the loop."""
        self._note_done()
        self._check_fenced()
        batch = self._batch
        if batch is None:
            batch = yield from self._next_batch()
            if batch is None:
                return None
            self._batch, self._messages = batch, iter(batch)
        index = self._stream.index
        if self._core.inbox is not None:
            write_down(self._core, self._stream, batch, index, index + 1)
            yield from self._hand_out(batch, 1, batch.first_offset + index + 1)
        else:
            self._pace()
            end = min(index + self._stride, len(batch.values))
            write_down(self._core, self._stream, batch, index, end)
            self._given_end = end
        assert self._messages is not None
        return islice(self._messages, self._stride)

    def step_batch(self) -> Operation[Batch | None]:
        """The next batch, or None at the end of the loop."""
        self._note_done()
        self._check_fenced()
        batch = yield from self._next_batch()
        if batch is not None:
            write_down(self._core, self._stream, batch, 0, len(batch.values))
            if self._core.inbox is not None:
                yield from self._hand_out(batch, len(batch.values), batch.next_offset)
            else:
                self._batch, self._given_end = batch, len(batch.values)
        return batch

    def leave(self) -> None:
        """Ends the loop: what was dealt with is acknowledged, the rest stays."""
        if self._claimed:
            self._note_done()
            if self._batch is not None and self._core.inbox is None and self._stream.holds(self._batch):
                first = self._batch.first_offset
                give_back(self._stream, self._batch.topic, first + self._stream.index, first + self._given_end)
            self._claimed = False
            self._stream.owner = None
            self._batch = None

    def _next_batch(self) -> Operation[Batch | None]:
        core, stream = self._core, self._stream
        if not self._claimed:
            yield from claim(stream, "loop")
            self._claimed = True
        while not stream.closed:
            if self._timeout is not None:
                found = yield from fill(core, stream, core.deadline_ms(self._timeout))
                return stream.rest() if found and not stream.closed else None
            yield from make_ready(core, [stream])
            if stream.ready():
                return stream.rest()
            check(core, stream)
            if not stream.number:
                core.session.now_ms = core.now_ms()
                core.session.streams.open(stream)
            yield Until(lambda: stream.ready() or stream.closed or stream.error is not None)
        return None

    def _note_done(self) -> None:
        """Takes note of what has been dealt with since the last step."""
        done, self.done = self.done, 0
        core, stream, batch = self._core, self._stream, self._batch
        acknowledge_handed(core, stream)
        if batch is not None and not stream.holds(batch):
            self._batch = self._messages = None  # The subscription has been ended or made again.
        elif core.inbox is None and batch is not None and done:
            next_offset = batch.first_offset + stream.index + done
            took(core, stream, batch.topic, done, next_offset)
            core.session.now_ms = core.now_ms()
            core.session.streams.flush(stream)
            if next_offset == batch.next_offset:
                self._batch = self._messages = None

    def _check_fenced(self) -> None:
        fenced = self._core.session.main.fenced
        if fenced is not None:
            raise Fenced(str(fenced))

    def _hand_out(self, batch: Batch, count: int, next_offset: int) -> Operation[None]:
        """With an inbox what is handed out counts as dealt with."""
        yield from hand_out(self._core, self._stream, batch.topic, count, next_offset)
        if next_offset == batch.next_offset:
            self._batch = None

    def _pace(self) -> None:
        """Quick loops look after the connection every now and then, slow ones after each message."""
        now_ms = self._core.session.now_ms
        if now_ms - self._stepped_ms <= QUICK_MS:
            self._stride = min(self._stride * 2, STRIDE_MAX)
        elif now_ms - self._stepped_ms >= SLOW_MS:
            self._stride = 1
        self._stepped_ms = now_ms

"""The streams of a session: opening, credit, gaps, beats and acknowledgements.

Every stream has a number that is never used again in the session. When something is missing, or the connection
or the epoch is a new one, the stream is opened again under the next number at the positions received so far; what
still comes under an old number is dropped. Nothing is taken on trust: a repeated delivery is cut to what is new,
and one that leaves a gap is dropped and asked for again.

The first time, nothing is granted until the broker has said where the stream starts.
Credit is granted so that at most `credit_messages` and `credit_bytes` lie in the buffer, and is renewed when
half of it has been used.

Acknowledgements of a loop are noted and sent without waiting, one request at a time for each subscription,
so that many messages share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.client.future import Future
from tidings.client.link import Frame
from tidings.client.request import Asks, Request
from tidings.client.stream import Stream
from tidings.errors import NoSuchTopic, NotSubscribed, ProtocolError, TidingsError, Unavailable
from tidings.protocols.broker.messages import (
    Ack,
    Acknowledgement,
    AnyAnswer,
    Beat,
    BeatDone,
    Delivery,
    Flow,
    Flowing,
    Position,
)

ASKED_AT_A_BEAT_MAX = 16
"""Silent streams that are asked at each beat how far they stand."""


class MemberStreams(Protocol):
    """The streams of consumer group members: they take part in the same beat."""

    def numbers(self) -> tuple[int, ...]:
        """The streams that are open."""

    def on_beaten(self, missing: Sequence[int]) -> None:
        """The broker does not serve these streams."""


class HasMembers(Asks, Protocol):
    """The session of which the streams are a part."""

    @property
    def members(self) -> MemberStreams:
        """The memberships of the session's name."""


class Streams:
    """All streams of the session's own name."""

    def __init__(self, session: HasMembers) -> None:
        self._session = session
        self._streams: dict[tuple[str, ...], Stream] = {}
        self._numbers: dict[int, Stream] = {}
        self._last_number = 0
        self._beat: Request | None = None
        self._turn = 0
        self.beat_due_ms: int | None = None
        self._survey_due_ms = 0
        """When silent streams are looked at next: every `beat_ms` of the settings, however often a group is asked."""

    def of(self, topics: tuple[str, ...]) -> Stream:
        """The stream of a subscription; it is closed until `open`."""
        stream = self._streams.get(topics)
        if stream is None:
            stream = self._streams[topics] = Stream(topics)
        return stream

    def all(self) -> list[Stream]:
        """Every stream, open or not."""
        return list(self._streams.values())

    def drop(self, topics: tuple[str, ...]) -> None:
        """The subscription is no more, or is a new one: nothing of the old one is left."""
        stream = self._streams.pop(topics, None)
        if stream is not None:
            self._close(stream)
            self._restart(stream)
            self._rest_if_empty()

    # Opening and closing.

    def open(self, stream: Stream, tries: int = 1) -> None:
        """Starts the stream under a new number, at the positions received so far."""
        self._close(stream)
        stream.begin(self.next_number())
        stream.opened = True
        self._numbers[stream.number] = stream
        self.keep_beating()
        self._send_flow(stream, tries)

    def next_number(self) -> int:
        """A number for a stream, of a subscription or of a group's member."""
        self._last_number += 1
        return self._last_number

    def keep_beating(self) -> None:
        """A stream is open: the next beat is due in a while, if none is."""
        if self.beat_due_ms is None:
            self.beat_due_ms = self._session.now_ms + self._session.beat_ms

    def probe(self, stream: Stream) -> Future[None]:
        """Done once everything that the broker had when it was asked has come in."""
        asked: Future[None] = Future()
        if stream.number:
            self._send_flow(stream)
        else:
            self.open(stream)
        if stream.flows:
            stream.probes.append((stream.flows[-1], asked))
        else:  # The request was refused on this side already, for instance because the session is fenced.
            asked.fail(stream.error or ProtocolError("The stream could not be opened: try again."))
        return asked

    def renew(self, stream: Stream) -> None:
        """Grants more credit if half of it has been used."""
        if not stream.number:
            return
        settings = self._session.settings
        messages, size_bytes = self._limits(stream)
        if (
            messages - stream.limit_messages >= settings.credit_messages // 2
            or size_bytes - stream.limit_bytes >= settings.credit_bytes // 2
        ):
            self._send_flow(stream)

    def reopen_all(self, tries: int) -> None:
        """The connection or the epoch is a new one, so every open stream begins again."""
        if self._beat is not None:
            self._session.forget(self._beat)
            self._beat = None
        for stream in list(self._numbers.values()):
            self.open(stream, tries)
        if self.beat_due_ms is not None:
            self.beat_due_ms = self._session.now_ms + self._session.beat_ms

    def close_all(self, error: Callable[[], TidingsError]) -> None:
        """Every open stream ends with this error; the next use opens it again."""
        if self._beat is not None:
            self._session.forget(self._beat)
            self._beat = None
        for stream in list(self._numbers.values()):
            self._end(stream, error)

    def _close(self, stream: Stream) -> None:
        self._numbers.pop(stream.number, None)
        stream.number = 0
        for request in stream.flows:
            self._session.forget(request)
        stream.flows.clear()

    def _end(self, stream: Stream, error: Callable[[], TidingsError]) -> None:
        self._close(stream)
        if isinstance(error(), NotSubscribed | NoSuchTopic):
            self._restart(stream)
        stream.error = error()
        probes, stream.probes = stream.probes, []
        for _, asked in probes:
            asked.fail(error())
        self._rest_if_empty()

    def _restart(self, stream: Stream) -> None:
        """The subscription is no more: what was still to be acknowledged there must not move a new one of its name."""
        if stream.acking is not None:
            self._session.forget(stream.acking)
            stream.acking = None
        stream.restart()

    def _rest_if_empty(self) -> None:
        if not self._numbers and not self._session.members.numbers():
            self.beat_due_ms = None

    # Credit.

    def _limits(self, stream: Stream) -> tuple[int, int]:
        if not stream.started:
            # A first delivery that got lost could not be told from a later start: ask for the start alone.
            return 0, 0
        settings = self._session.settings
        messages = stream.counted_messages + max(0, settings.credit_messages - stream.buffered_messages)
        size_bytes = stream.counted_bytes + max(0, settings.credit_bytes - stream.buffered_bytes)
        return max(messages, stream.limit_messages), max(size_bytes, stream.limit_bytes)

    def _send_flow(self, stream: Stream, tries: int = 1) -> None:
        stream.limit_messages, stream.limit_bytes = messages, size_bytes = self._limits(stream)
        name, number, positions = self._session.main.name, stream.number, stream.positions()
        request = self._session.request(
            self._session.now_ms,
            lambda request, epoch: Flow(request, name, epoch, stream.topics, number, positions, messages, size_bytes),
            tries=tries,
        )
        stream.flows.append(request)
        request.future.then(lambda p: self._on_flowing(stream, number, request, p))
        stream.probes = [(request, asked) for _, asked in stream.probes]  # The latest answer covers the earlier ones.

    def _on_flowing(self, stream: Stream, number: int, request: Request, answered: Future[AnyAnswer]) -> None:
        if stream.number != number:
            return
        stream.flows = [flow for flow in stream.flows if flow is not request]
        error = answered.error
        if error is None:
            answer = answered.outcome()
            if not isinstance(answer, Flowing):
                error = ProtocolError("The broker answered something other than was asked: is that a tidings broker?")
            elif answer.stream != number:
                return
            elif not stream.started:
                if stream.start(answer):
                    self._send_flow(stream)
                    return
                error = ProtocolError("The broker did not say where the stream starts: is that a tidings broker?")
            elif not stream.stands(answer.sent):
                self.open(stream)  # Something that was sent has not come.
                return
        if error is not None:
            if isinstance(error, TidingsError):
                kind, text = type(error), str(error)
                self._end(stream, lambda: kind(text))
            return
        probes, stream.probes = stream.probes, []
        for asking, asked in probes:
            if asking.number <= request.number:
                asked.finish(None)
            else:
                stream.probes.append((asking, asked))

    # Coming in.

    def on_delivery(self, delivery: Delivery, bodies: Sequence[Frame]) -> None:
        """Messages have come; those of an old or unknown stream are dropped."""
        stream = self._numbers.get(delivery.stream)
        if stream is None:
            return
        if not stream.deliver(delivery, bodies):
            self.open(stream)
            return
        settings = self._session.settings
        if (
            stream.buffered_messages > 2 * settings.credit_messages + 65_536
            or stream.buffered_bytes > 4 * settings.credit_bytes
        ):
            self.open(stream)  # Far more than was granted: the broker lost count, perhaps in a restart.

    # Beats.

    def tick(self) -> None:
        """Sends a beat when one is due."""
        now_ms = self._session.now_ms
        if self.beat_due_ms is None or now_ms < self.beat_due_ms:
            return
        self.beat_due_ms = now_ms + self._session.beat_ms
        name, numbers = self._session.main.name, (*self._numbers, *self._session.members.numbers())
        if self._beat is None and numbers:
            survey = now_ms >= self._survey_due_ms
            if survey:
                self._survey_due_ms = now_ms + self._session.settings.beat_ms
            beat = self._session.request(now_ms, lambda request, epoch: Beat(request, name, epoch, numbers))
            self._beat = beat
            beat.future.then(lambda p: self._on_beaten(beat, survey, p))

    def _on_beaten(self, beat: Request, survey: bool, answered: Future[AnyAnswer]) -> None:
        if self._beat is not beat:
            return
        self._beat = None
        if answered.error is not None:
            return
        answer = answered.outcome()
        missing = answer.missing if isinstance(answer, BeatDone) else ()
        for number in missing:
            if number in self._numbers:
                self.open(self._numbers[number])
        self._session.members.on_beaten(missing)
        if survey:
            self._ask_the_silent()

    def _ask_the_silent(self) -> None:
        """A delivery that got lost shows when the next one comes. If none comes, only asking helps: in turn."""
        silent = []
        for stream in list(self._numbers.values()):
            if self._may_have_lost_count(stream):
                self.open(stream)
            elif not (stream.heard or stream.ready() or stream.flows):
                silent.append(stream)
            stream.heard = False
        for step in range(min(len(silent), ASKED_AT_A_BEAT_MAX)):
            self._send_flow(silent[(self._turn + step) % len(silent)])
        self._turn += ASKED_AT_A_BEAT_MAX

    def _may_have_lost_count(self, stream: Stream) -> bool:
        """Silence on a stream that has used credit: perhaps the two sides count differently.

        A broker counts a batch as it is stored, and may send less of it; and it may grant less than it was
        asked for. A new stream counts from nothing on both sides.
        """
        return stream.counted_messages > 0 and not (stream.heard or stream.ready())

    # Acknowledgements.

    def acknowledge(self, stream: Stream, positions: tuple[Position, ...], created_epoch: int = 0) -> Request:
        """Moves the subscription's cursor; answered once the broker has moved it."""
        name = self._session.main.name
        acknowledgement = Acknowledgement(stream.topics, positions, created_epoch or stream.created_epoch)
        return self._session.request(
            self._session.now_ms, lambda request, epoch: Ack(request, name, epoch, acknowledgement)
        )

    def flush(self, stream: Stream) -> None:
        """Sends what has been noted, unless an acknowledgement of this subscription is in flight.

        Behind an unsubscribe nothing is sent: it could come so late that it moves the cursor of the next subscription.
        """
        if stream.acking is not None or stream.leaving or self._session.failing:
            return
        positions = tuple(
            Position(topic, offset)
            for topic, offset in stream.noted.items()
            if offset > stream.acknowledged.get(topic, 0)
        )
        if positions:
            request = stream.acking = self.acknowledge(stream, positions)
            request.future.then(lambda p: self._on_acked(stream, request, positions, p))

    def _on_acked(
        self, stream: Stream, request: Request, positions: tuple[Position, ...], answered: Future[AnyAnswer]
    ) -> None:
        if stream.acking is not request:
            return
        stream.acking = None
        error = answered.error
        if error is None:
            stream.acknowledged_up_to(positions)
            self.flush(stream)
        elif isinstance(error, TidingsError) and not isinstance(error, Unavailable):
            stream.error = error

"""The other end of a client in tests: a scripted peer for a bare session, and a small broker behind a fake link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidings.client.future import Future
from tidings.client.puts import Bulk, Record
from tidings.client.request import Identity
from tidings.client.rows import Source
from tidings.client.session import Session
from tidings.errors import NoSuchTopic, NotSubscribed, TidingsError
from tidings.message import Columns, TopicInfo
from tidings.protocols.broker import messages as m
from tidings.settings import ClientSettings
from tidings.wire import codec

TOKEN = b"t" * 16
LIMITS = (1, 1024 * 1024, 8 * 1024 * 1024, 65_536)
"""Version and limits of a Welcome."""


class Script:
    """A session and the frames that it sends, answered by hand."""

    def __init__(
        self, *, anonymous: bool = False, greeted: bool = True, address: str = "tcp://broker:7400", **settings: Any
    ) -> None:
        self.now_ms = 1_000
        self.session = Session("alice", TOKEN, anonymous, ClientSettings(**settings), address)
        self.reopened = 0
        self.places: list[str | None] = []
        """Where the connections led, after the first."""
        if greeted:
            welcomed = self.session.start(self.now_ms)
            (hello,) = self.sent()
            assert isinstance(hello, m.Hello)
            self.answer(m.Welcome(hello.request, 1, *LIMITS))
            welcomed.outcome()

    def frames(self) -> list[list[bytes]]:
        """What the session wants sent, as bytes."""
        if self.session.reopen:
            self.session.reopen = False
            self.reopened += 1
            self.places.append(self.session.route.at)
        outgoing, self.session.outgoing = self.session.outgoing, []
        return [[bytes(frame) for frame in frames] for frames in outgoing]

    def sent(self) -> list[Any]:
        """What the session wants sent, decoded."""
        return [codec.decode_request(frames[0]) for frames in self.frames()]

    def sent_values(self) -> list[tuple[Any, list[bytes]]]:
        """Puts with the values in their bodies."""
        return [
            (codec.decode_request(frames[0]), [v for body in frames[1:] for v in codec.decode_columns(body).values])
            for frames in self.frames()
        ]

    def answer(self, message: object, *bodies: bytes) -> None:
        self.session.receive(self.now_ms, [codec.encode(message), *bodies])

    def refuse(self, request: int, error: type[TidingsError], text: str = "No.") -> None:
        self.answer(m.Failed(request, error.number, text))

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.session.tick(self.now_ms)

    def time_out(self) -> None:
        self.wait(self.session.settings.timeout_ms)

    def run_out_of_tries(self) -> None:
        for _ in range(self.session.settings.retries):
            self.time_out()
        self.frames()

    def put(self, topics: str | tuple[str, ...], value: bytes, who: Identity | None = None, **more: Any) -> Record:
        self.session.now_ms = self.now_ms
        names = (topics,) if isinstance(topics, str) else topics
        entry = Record(names, value, **more)
        (who or self.session.main).outbox.give(entry)
        return entry

    def put_many(self, topic: str, values: Any, keys: Any = None) -> Bulk:
        self.session.now_ms = self.now_ms
        entry = Bulk(topic, Source(values, keys, lambda: 7))
        self.session.main.outbox.give(entry)
        return entry

    def store(self, put: m.Put, first_offset: int) -> None:
        self.answer(m.PutDone(put.request, tuple(m.Stored(first_offset) for _ in put.part.targets)))

    def sure(self, *topics: str) -> None:
        """Puts one message to each topic, so that its next sequence number is known to be 2."""
        for topic in topics:
            self.put(topic, b"first")
            (ask,) = self.sent()
            self.answer(m.Sequence(ask.request, 0))
            (put,) = self.sent()
            self.store(put, 0)


def batch(*values: bytes, publisher: str = "bob") -> bytes:
    """A stored batch as it travels."""
    return codec.encode(Columns(1, publisher, list(values)))


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now_ms = 5_000

    def __call__(self) -> int:
        return self.now_ms


class SmallBroker:
    """A link whose other end is a broker in a few lines: topics are lists, and nothing is ever lost unless told.

    `filter` sees each request first: True lets it through, False loses it on the way, and "unanswered" loses
    only the answer.
    """

    address = "tcp://small:7400"

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.topics: dict[str, list[bytes]] = {}
        self.cursors: dict[tuple[str, ...], dict[str, int]] = {}
        self.lasts: dict[tuple[str, str], int] = {}
        self.places: dict[tuple[str, str], list[int]] = {}
        """Where each number of a client lies in a topic."""
        self.epochs: dict[str, tuple[bytes, int]] = {}
        self.streams: dict[tuple[str, ...], tuple[int, dict[str, int]]] = {}
        self.granted = 0
        """The highest stream number that has been granted any credit."""
        self.requests: list[Any] = []
        self.filter: Callable[[Any], bool | str] = lambda request: True
        self.reopened = 0
        self.closed = False
        self._answers: deque[list[bytes]] = deque()

    # The link.

    def send(self, frames: Sequence[Any]) -> None:
        request: Any = codec.decode_request(frames[0])
        self.requests.append(request)
        passed = self.filter(request)
        if not passed:
            return
        before = len(self._answers)
        try:
            answer = self.handle(request, [codec.decode_columns(body) for body in frames[1:]])
        except TidingsError as error:
            answer = m.Failed(request.request, error.number, str(error))
        if passed == "unanswered":
            while len(self._answers) > before:
                self._answers.pop()
            return
        self._answers.append([codec.encode(answer)])
        self._ring()

    def receive(self, timeout_ms: int) -> list[bytes] | None:
        if self._answers:
            return self._answers.popleft()
        self.clock.now_ms += timeout_ms
        return None

    def _ring(self) -> None:
        """Something has come."""

    def reopen(self, address: str | None = None) -> None:
        self.reopened += 1
        self._answers.clear()
        self.streams.clear()

    def close(self) -> None:
        self.closed = True

    # The broker.

    def handle(self, request: Any, batches: list[Columns]) -> Any:
        number = request.request
        match request:
            case m.Hello(_, _, client, token):
                known, epoch = self.epochs.get(client, (b"", 0))
                self.epochs[client] = (token, epoch if known == token else epoch + 1)
                return m.Welcome(number, self.epochs[client][1], *LIMITS)
            case m.Put(_, client, _, part):
                return m.PutDone(number, self._store(client, part, batches[0]))
            case m.Commit(_, client, _, parts, acknowledgements):
                stored = tuple(self._store(client, part, each) for part, each in zip(parts, batches, strict=True))
                for each in acknowledgements:
                    self._acknowledge(each)
                return m.CommitDone(number, stored)
            case m.Ack(_, _, _, acknowledgement):
                self._acknowledge(acknowledgement)
                return m.AckDone(number)
            case m.AskSequence(_, client, _, topic):
                return m.Sequence(number, self.lasts.get((client, topic), 0))
            case m.Subscribe(_, _, _, topics, start):
                created = topics not in self.cursors
                if created:
                    ends = {t: len(self.topics.setdefault(t, [])) for t in topics}
                    self.cursors[topics] = ends if start == "now" else dict.fromkeys(topics, 0)
                return m.SubscribeDone(number, (), created)
            case m.Unsubscribe(_, _, _, topics):
                if self.cursors.pop(topics, None) is None:
                    raise NotSubscribed("There is no such subscription: make one.")
                return m.UnsubscribeDone(number)
            case m.AskSubscriptions():
                return m.Subscriptions(number, tuple(self.cursors))
            case m.Flow():
                return self._flow(request)
            case m.Beat(_, _, _, streams):
                served = [stream for stream, _ in self.streams.values()]
                return m.BeatDone(number, tuple(each for each in streams if each not in served))
            case m.AskTopics():
                return m.Topics(number, tuple(TopicInfo(t, 0, len(v), 0) for t, v in self.topics.items()))
            case m.AskStatus():
                return m.Status(number, {"topics": len(self.topics)})
            case m.Bye():
                return m.ByeDone(number)
            case m.Shutdown():
                return m.ShutdownDone(number)
        raise AssertionError(request)

    def _store(self, client: str, part: m.Part, batch: Columns) -> tuple[m.Stored, ...]:
        stored = []
        for target in part.targets:
            last = self.lasts.get((client, target.topic), 0)
            values = self.topics.setdefault(target.topic, [])
            places = self.places.setdefault((client, target.topic), [])
            if target.sequence <= last:
                start = target.sequence - 1
                repeated = tuple(enumerate(places[start : start + part.count]))
                stored.append(m.Stored(None, repeated))
                continue
            assert target.sequence == last + 1, "a gap"
            self.lasts[client, target.topic] = last + part.count
            places.extend(range(len(values), len(values) + part.count))
            stored.append(m.Stored(len(values)))
            self.add(target.topic, *batch.values)
        return tuple(stored)

    def add(self, topic: str, *values: bytes) -> None:
        """Messages from somebody else, delivered to anyone who streams the topic."""
        stored = self.topics.setdefault(topic, [])
        stored.extend(values)
        for topics, (number, positions) in self.streams.items():
            if topic in topics:
                self._deliver(number, positions, topic)

    def _acknowledge(self, acknowledgement: m.Acknowledgement) -> None:
        cursors = self.cursors[acknowledgement.topics]
        for position in acknowledgement.positions:
            cursors[position.topic] = max(cursors[position.topic], position.offset)

    def _flow(self, flow: m.Flow) -> Any:
        if flow.topics not in self.cursors:
            if flow.topics[0] not in self.topics:
                raise NoSuchTopic("There is no such topic: make one.")
            raise NotSubscribed("There is no such subscription: make one.")
        number, positions = self.streams.get(flow.topics, (0, {}))
        if flow.stream > number:
            number, positions = flow.stream, dict(self.cursors[flow.topics])
            positions.update({each.topic: each.offset for each in flow.positions})
            self.streams[flow.topics] = (number, positions)
        if flow.messages:
            self.granted = number
        for topic in flow.topics:
            self._deliver(number, positions, topic)
        return m.Flowing(flow.request, number, tuple(m.Position(t, o) for t, o in positions.items()))

    def _deliver(self, number: int, positions: dict[str, int], topic: str) -> None:
        since, values = positions[topic], self.topics[topic]
        if since < len(values) and number <= self.granted:
            positions[topic] = len(values)
            header = m.Delivery(number, topic, since, since, len(values), 1)
            self._answers.append([codec.encode(header), batch(*values[since:])])
            self._ring()

    def asked(self, kind: type) -> list[Any]:
        """The requests of one kind that have come."""
        return [request for request in self.requests if isinstance(request, kind)]


def outcome(future: Future[Any]) -> Any:
    """The result of a Future, which must be there."""
    assert future.done
    return future.outcome()

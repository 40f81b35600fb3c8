"""Subscriptions whose topics may have different owners, at a node's door.

Clients name such a subscription as any other, by all of its topics. The owners are asked for its parts
(`protocols.ring.parts`), and what they say is put together. Deliveries pass as they come, each part's under the number
of the client's one stream.

**One after the other.** Parts are made in their order and ended in the reverse one, so that those that are there are
always the first ones. Everything else that comes over the connection waits meanwhile. Either can be sent again: it goes
on where it had stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from tidings.node.ring.apart_streams import ApartStream
from tidings.node.ring.connections import ClientConnection, Question
from tidings.node.ring.interest import Reading
from tidings.node.ring.together import ABSENT
from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import point_of
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.parts import divided, parts_of, whole_of
from tidings.protocols.ring.subjects import topics_of
from tidings.wire import codec
from tidings.wire.codec import Frame

InParts = messages.Subscribe | messages.Unsubscribe | messages.Flow | messages.Ack
"""Requests about a subscription, which go to the owners of all of its parts."""


class Door(Protocol):
    """The proxy, as far as requests for parts need it."""

    reading: Reading

    def owner_of(self, now_ms: int, point: Key) -> GroupDescriptor | None:
        """Who leads the owner of a point; None if that is not known, and it is looked for then."""

    def ask(
        self,
        now_ms: int,
        connection: ClientConnection,
        question: Question,
        asked: Iterable[tuple[GroupDescriptor, AnyRequest]],
        user: str | None,
    ) -> None:
        """Asks groups under numbers of our own."""

    def relay(
        self,
        now_ms: int,
        connection: ClientConnection,
        descriptor: GroupDescriptor,
        request: AnyRequest,
        frames: Sequence[Frame],
        user: str | None,
    ) -> None:
        """Sends a request to a group."""

    def give_up(self, connection: ClientConnection, request: int = 0) -> None:
        """Ends a connection."""


class Apart:
    """Asks for parts, and goes on when one has answered."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def take(self, now_ms: int, connection: ClientConnection, request: InParts, user: str | None) -> bool:
        """Asks the owners of a subscription's parts; False if not all of them are known."""
        pieces = self._pieces(request)
        owners = [self._door.owner_of(now_ms, point_of(topics_of(piece)[0])) for piece in pieces]
        known = [owner for owner in owners if owner is not None]
        if len(known) < len(owners):
            return False
        if isinstance(request, messages.Flow):
            connection.streams[request.stream] = {owner.group: None for owner in known}
            connection.reads[request.stream] = request.topics
            self._door.reading.note(now_ms, request.topics)
            pieces = self._grant(connection, request, user)
        if not request.request:  # Nobody waits for an answer.
            for owner, piece in zip(known, pieces, strict=True):
                self._door.relay(now_ms, connection, owner, piece, [codec.encode(piece)], user)
            return True
        question = Question(request)
        if isinstance(request, messages.Subscribe | messages.Unsubscribe):
            question.steps, question.user = pieces, user
            connection.commit = request.request
            pieces = pieces[:1]
        self._door.ask(now_ms, connection, question, zip(known, pieces, strict=False), user)
        return True

    def _pieces(self, request: InParts) -> tuple[InParts, ...]:
        """A request for each part, in the order in which they are asked."""
        replace = msgspec.structs.replace
        if isinstance(request, messages.Ack):
            return tuple(replace(request, acknowledgement=each) for each in divided(request.acknowledgement))
        parts = parts_of(request.topics)
        pieces = tuple(replace(request, topics=part, whole=whole_of(parts)) for part in parts)
        return pieces[::-1] if isinstance(request, messages.Unsubscribe) else pieces

    def _grant(self, connection: ClientConnection, flow: messages.Flow, user: str | None) -> tuple[messages.Flow, ...]:
        stream = connection.apart.get(flow.stream)
        if stream is None:
            stream = ApartStream(flow, user)
            others = {number: each for number, each in connection.apart.items() if each.whole != stream.whole}
            connection.apart = {**others, flow.stream: stream}
        return tuple(stream.grant(flow))

    def on_delivery(self, now_ms: int, connection: ClientConnection, frames: Sequence[Frame]) -> None:
        """A delivery has passed; its part may be granted more."""
        delivery = codec.decode_answer(frames[0])
        if isinstance(delivery, messages.Delivery) and delivery.stream in connection.apart:
            stream = connection.apart[delivery.stream]
            flow = stream.count(delivery, sum(map(len, frames[1:])))
            owner = self._door.owner_of(now_ms, point_of(delivery.topic)) if flow is not None else None
            if flow is not None and owner is not None:
                self._door.relay(now_ms, connection, owner, flow, [codec.encode(flow)], stream.user)

    def is_over(self, now_ms: int, connection: ClientConnection, question: Question, answer: AnyAnswer) -> bool:
        """Whether a question can be answered now that one more part has; if not, the next step is taken."""
        failed = isinstance(answer, messages.Failed) and question.welcome is None
        if isinstance(question.request, messages.Unsubscribe) and isinstance(answer, messages.Failed):
            failed = answer.number not in ABSENT
        if failed:
            self._undo(now_ms, connection, question)
            return True
        if len(question.answers) < len(question.steps):
            piece = question.steps[len(question.answers)]
            owner = self._door.owner_of(now_ms, point_of(piece.topics[0]))
            if owner is None:
                self._door.give_up(connection, question.request.request)
            else:
                self._door.ask(now_ms, connection, question, [(owner, piece)], question.user)
            return False
        return not question.open

    def _undo(self, now_ms: int, connection: ClientConnection, question: Question) -> None:
        """Ends the parts that were made for a subscription that was refused by a later owner."""
        if not isinstance(question.request, messages.Subscribe):
            return
        for piece, answer in reversed(list(zip(question.steps, question.answers, strict=False))):
            if isinstance(answer, messages.SubscribeDone) and answer.created:
                owner = self._door.owner_of(now_ms, point_of(piece.topics[0]))
                end = messages.Unsubscribe(0, piece.client, piece.epoch, piece.topics, piece.whole)
                if owner is not None:
                    self._door.ask(now_ms, connection, Question(end), [(owner, end)], question.user)


def in_parts(commit: messages.Commit) -> messages.Commit:
    """A commit that acknowledges parts; the same if no subscription in it has any."""
    if all(len(each.topics) == 1 for each in commit.acknowledgements):
        return commit
    acknowledgements = tuple(part for each in commit.acknowledgements for part in divided(each))
    if acknowledgements == commit.acknowledgements:
        return commit
    return msgspec.structs.replace(commit, acknowledgements=acknowledgements)

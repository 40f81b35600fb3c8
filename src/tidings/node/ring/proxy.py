"""The door of a node: requests of any client go to the owner of what they are about, and answers come back.

Nothing is kept here but where to send. A request's frames are relayed as they came, to the leader of the group that
owns its topics, and what comes back goes to the client as it is; whatever gets lost the client sends again.

**One connection, one way.** All requests of a connection for one group go to the same leader. When that has to change
(another one leads, or the topics have moved) the connection is given up: the client is told `NotLeader`, what still
comes over it is dropped, and the client sends everything unanswered again over a new one. So what one connection
carries arrives in the order in which it was sent, and never twice by our doing.

Three kinds of request are more than a relay. A *beat* is answered by the client's home, which knows its epoch; the
groups that serve its streams hear beats of our own, and which streams they miss the client learns with its next beat. A
*bye* is also said to every group that has heard of the name, and answered when they have. A *question* about everything
(all topics, all subscriptions) is asked of every group, and the answers are put together. What is about a subscription
whose topics may have several owners goes to the owners of its parts (`apart`).

**A newer session fences the older everywhere.** The home's owner gives the new epoch; before the client hears of it,
every group that knows the name is told of it, so that from the welcome on nobody takes anything of the older session.
The welcome of the home says which groups these are; any other one asks the home before it takes anything (`admitting`).
A group that does not answer in time is not waited for: it takes nothing of anybody, and learns the epoch from the first
request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidings.errors import InvalidRequest, LimitReached, Moved, ProtocolError, TidingsError
from tidings.node.ring.answers import ANSWERS_TO_PUTS, JOINED, LOOKED_AT, OWN, tag_of
from tidings.node.ring.apart import Apart, InParts, in_parts
from tidings.node.ring.body_cache import BodyCache
from tidings.node.ring.connections import (
    HELD_BYTES_MAX,
    HELD_MAX,
    ClientConnection,
    ClientConnections,
    Question,
    Waiting,
)
from tidings.node.ring.interest import Reading, Tell
from tidings.node.ring.places import is_everywhere, points_of, publishes_any
from tidings.node.ring.together import together
from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import AnyRequest
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.key_ranges import LAST, KeyRanges, home_of
from tidings.protocols.ring.messages import Back, GroupDescriptor, NotOwner, Ref, Relay, Shown
from tidings.wire import codec
from tidings.wire.codec import Frame

HELD_MS_MAX = 3_000
SWEEP_EVERY_MS = 5_000
COVERED_MS_MAX = 1_000
"""How long a hello waits until this node knows of every group, so that all of them can be told."""
TOLD_MAX = 64
"""If more groups would have to be told of a new epoch nobody is: each learns it from the first request."""
TOLD_MS_MAX = 1_500
"""How long other groups are waited for when a client comes or goes."""

Send = Callable[[int, str, Relay, Sequence[Frame]], None]
"""Sends a relay to a node, at a time."""
Reply = Callable[[Any, list[Frame]], None]


class Proxy:
    """The clients of one node."""

    def __init__(
        self,
        directory: Directory,
        first_number: int,
        send: Send,
        reply: Reply,
        want: Callable[[int, Key], None],
        suspect: Callable[[bytes], None],
        fetch: Callable[[str, tuple[Ref, ...]], None],
        tell: Tell,
    ) -> None:
        self._directory = directory
        self.connections = ClientConnections(first_number)
        self._send = send
        self._reply = reply
        self._want = want
        """Asks for the owner of a point to be found."""
        self._suspect = suspect
        """Says that what is known of a group seems to be wrong."""
        self.body_cache = BodyCache(self._let_through, self._give_up_number, fetch)
        """Bodies that came by themselves, and the deliveries that wait for them."""
        self.reading = Reading(tell)
        self._apart = Apart(self)
        self._own_number = OWN
        self.nodes: tuple[str, ...] = ()
        """Where else clients may go."""
        self.group = b""
        """The group of this node."""
        self.strays: Collection[Key] | None = None
        """Points of what our group had before it joined its ring: they lead to it, no matter who owns them in the ring.
        None as long as it is not known here that the group is in a ring, and all its topics may be such.
        """
        self._swept_at_ms = 0
        self._now_ms = 0

    # What clients send.

    def receive(self, now_ms: int, peer: Any, frames: Sequence[Frame], user: str | None) -> None:
        """A client's request."""
        self._now_ms = now_ms
        if self.connections.is_broken(peer):
            return
        header = frames[0] if frames else b""
        try:
            request = codec.decode_request(header)
        except ProtocolError as error:
            self._refuse(peer, codec.guess_request(header), error)
            return
        connection = self.connections.at(now_ms, peer)
        if connection is None:
            self._refuse(peer, request.request, LimitReached("This node has too many clients: connect to another."))
            return
        waiting = Waiting(request, list(frames), user, now_ms)
        if connection.held or connection.commit or not self._pass_on(now_ms, connection, waiting):
            self._hold(connection, waiting)

    def _pass_on(self, now_ms: int, connection: ClientConnection, waiting: Waiting) -> bool:
        """Sends a request on its way; False if it is not known where that leads."""
        request, frames, user, _ = waiting
        if isinstance(request, messages.Commit) and (divided := in_parts(request)) is not request:
            request, frames = divided, [codec.encode(divided), *frames[1:]]
        try:
            points = points_of(request)
            if self._is_too_early(request, points):
                return False
            if is_everywhere(request):
                return self._ask_everywhere(now_ms, connection, request, user)
            if not points:
                raise InvalidRequest(f"A node of a ring does not serve {type(request).__name__}: ask a broker.")
        except TidingsError as error:
            self._refuse(connection.peer, request.request, error)
            return True
        if len(points) > 1 and isinstance(request, InParts):
            return self._apart.take(now_ms, connection, request, user)
        descriptor = self.owner_of(now_ms, points[0])
        if len(points) > 1:
            descriptor = self._owner_of_all(now_ms, connection, request, points)
        if descriptor is None:
            return False
        match request:
            case messages.Put(number) | messages.Commit(number) if number and not connection.commit:
                connection.puts[number] = None
            case messages.Beat():
                self._beat(now_ms, connection, descriptor, request, user)
                return True
            case messages.Bye():
                self._say_bye(now_ms, connection, descriptor, request, user)
                return True
            case messages.Hello() if not request.anonymous:
                gap = self._directory.gap(LAST)
                if gap is not None and now_ms - waiting.since_ms < COVERED_MS_MAX:
                    self._want(now_ms, gap.end)
                    return False
                connection.greeting[request.request] = (request, user)
            case messages.Flow():
                connection.streams[request.stream] = {descriptor.group: None}
                connection.reads[request.stream] = request.topics
                self.reading.note(now_ms, request.topics)
            case messages.Work():
                connection.streams[request.stream] = {descriptor.group: None}
        self.relay(now_ms, connection, descriptor, request, frames, user)
        return True

    def _is_too_early(self, request: AnyRequest, points: tuple[Key, ...]) -> bool:
        """Whether nobody knows yet where this leads; or a client that our group brings asks other groups for something
        that do not know it before its home is in the ring.
        """
        if self.strays is None:
            return True
        if publishes_any(request, self.strays) and points[0] not in self.strays:
            return True
        client = getattr(request, "client", None) if self.strays else None
        if client is None or home_of(client) not in self.strays:
            return False
        return is_everywhere(request) or any(point not in self.strays for point in points)

    def _known_owner(self, point: Key) -> GroupDescriptor | None:
        return self._directory.descriptor(self.group) if point in (self.strays or ()) else self._directory.find(point)

    def owner_of(self, now_ms: int, point: Key) -> GroupDescriptor | None:
        descriptor = self._known_owner(point)
        if descriptor is None or not descriptor.leader:
            self._want(now_ms, point)
            return None
        return descriptor

    def _owner_of_all(
        self, now_ms: int, connection: ClientConnection, request: Any, points: tuple[Key, ...]
    ) -> GroupDescriptor | None:
        """The one owner of several points; or the owner of the client's home, which coordinates those of the points."""
        owners = [self.owner_of(now_ms, point) for point in points]
        if None in owners or len({owner.group for owner in owners if owner is not None}) == 1:
            return None if None in owners else owners[0]
        if connection.puts or any(point in (self.strays or ()) for point in points):
            return None
        home = self.owner_of(now_ms, home_of(request.client))
        if home is not None:
            connection.commit = request.request
        return home

    def relay(
        self,
        now_ms: int,
        connection: ClientConnection,
        descriptor: GroupDescriptor,
        request: AnyRequest,
        frames: Sequence[Frame],
        user: str | None,
        ranges: KeyRanges = (),
    ) -> None:
        if self.connections.find(connection.number) is None:
            return  # It was given up just now.
        path = connection.paths.setdefault(descriptor.group, descriptor.leader)
        if path != descriptor.leader:
            self.give_up(connection, request.request)
            return
        client = getattr(request, "client", None)
        if client is not None and not isinstance(request, messages.Beat):
            connection.groups.setdefault(client, {})[descriptor.group] = None
        self._send(now_ms, path, Relay(connection.number, descriptor.group, user, ranges), frames)

    def _hold(self, connection: ClientConnection, waiting: Waiting) -> None:
        connection.held.append(waiting)
        connection.held_bytes += sum(map(len, waiting.frames))
        if len(connection.held) > HELD_MAX or connection.held_bytes > HELD_BYTES_MAX:
            self.give_up(connection, waiting.request.request)

    # Requests that are more than a relay.

    def _beat(
        self, now_ms: int, connection: ClientConnection, home: GroupDescriptor, beat: messages.Beat, user: str | None
    ) -> None:
        at: dict[bytes, list[int]] = {}
        for stream in beat.streams:
            groups = connection.streams.get(stream)
            if groups is None:
                connection.missing[stream] = None
            for group in groups or ():
                at.setdefault(group, []).append(stream)
        if beat.streams:  # A name that only publishes has none; those of the session's main name stay.
            open_now = dict.fromkeys(beat.streams)
            connection.streams = {each: groups for each, groups in connection.streams.items() if each in open_now}
            connection.apart = {each: stream for each, stream in connection.apart.items() if each in open_now}
            connection.reads = {
                stream: topics for stream, topics in connection.reads.items() if stream in connection.streams
            }
        for group, streams in at.items():
            own = messages.Beat(self._next_number(), beat.client, beat.epoch, tuple(streams))
            if not self._send_own(now_ms, connection, group, own, user):
                return
        if beat.client not in connection.groups:  # This connection only beats, for a session that is at some other one.
            for descriptor in self._directory.descriptors():
                if descriptor.leader and descriptor.group != home.group and self._directory.ranges_of(descriptor.group):
                    own = messages.Beat(self._next_number(), beat.client, beat.epoch, ())
                    self.relay(now_ms, connection, descriptor, own, [codec.encode(own)], user)
        plain = msgspec.structs.replace(beat, streams=())
        self.relay(now_ms, connection, home, plain, [codec.encode(plain)], user)

    def _say_bye(
        self, now_ms: int, connection: ClientConnection, home: GroupDescriptor, bye: messages.Bye, user: str | None
    ) -> None:
        descriptors = {home.group: home}
        for group in connection.groups.pop(bye.client, {}):
            descriptor = self._directory.descriptor(group)
            if descriptor is None or connection.paths.get(group) != descriptor.leader:
                self.give_up(connection, bye.request)
                return
            descriptors[group] = descriptor
        question = Question(bye, now_ms + TOLD_MS_MAX)
        self.ask(now_ms, connection, question, ((each, bye) for each in descriptors.values()), user)

    def _on_welcome(self, connection: ClientConnection, welcome: messages.Welcome, header: Frame) -> None:
        """Tells the groups that know the name of a new epoch, before its client hears of it: those that its home has
        noted, and all of an older release; every other group, if the home has no list.
        """
        hello, user = connection.greeting.pop(welcome.request)
        home = self._known_owner(points_of(hello)[0])
        leads = [each for each in self._directory.descriptors() if each.leader and not each.left]
        leads = [each for each in leads if home is None or each.group != home.group]
        others = [each for each in leads if self._directory.ranges_of(each.group)]
        if (noted := welcome.noted) is not None:
            others = [each for each in leads if each.group in noted or (each in others and not each.asks_homes)]
            header = codec.encode(msgspec.structs.replace(welcome, noted=None))  # Clients have no use for it.
        if not others or len(others) > TOLD_MAX:
            self._reply(connection.peer, [header])
            return
        question = Question(hello, self._now_ms + TOLD_MS_MAX, bytes(header))
        told = messages.Beat(0, hello.client, welcome.epoch, ())
        self.ask(self._now_ms, connection, question, ((each, told) for each in others), user)

    def ask(
        self,
        now_ms: int,
        connection: ClientConnection,
        question: Question,
        asked: Iterable[tuple[GroupDescriptor, AnyRequest]],
        user: str | None,
        pieces: Mapping[GroupDescriptor, KeyRanges] | None = None,
    ) -> None:
        """Asks several groups, under a number of our own for each, and perhaps for some ranges of each."""
        own = [(each, msgspec.structs.replace(request, request=self._next_number())) for each, request in asked]
        for _, request in own:  # All of them first: our own group may answer at once.
            question.open[request.request] = None
            connection.asking[request.request] = question
        for descriptor, request in own:
            ranges = pieces[descriptor] if pieces is not None else ()
            self.relay(now_ms, connection, descriptor, request, [codec.encode(request)], user, ranges)

    def _ask_everywhere(self, now_ms: int, connection: ClientConnection, request: AnyRequest, user: str | None) -> bool:
        gap = self._directory.gap(LAST)
        if gap is not None:
            self._want(now_ms, gap.end)
            return False
        pieces = {each: self._directory.pieces_of(each.group) for each in self._directory.descriptors()}
        owners = [each for each, ranges in pieces.items() if ranges or (self.strays and each.group == self.group)]
        unled = [each for each in owners if not each.leader]
        if unled:
            for each in unled:
                self._suspect(each.group)
            return False
        self.ask(now_ms, connection, Question(request), ((each, request) for each in owners), user, pieces)
        return True

    def _next_number(self) -> int:
        self._own_number += 1
        return self._own_number

    def _send_own(
        self, now_ms: int, connection: ClientConnection, group: bytes, request: AnyRequest, user: str | None
    ) -> bool:
        """Sends a request of our own where the connection's own go; False if that broke the connection."""
        descriptor = self._directory.descriptor(group)
        if descriptor is None or connection.paths.get(group) != descriptor.leader:
            self.give_up(connection)
            return False
        self.relay(now_ms, connection, descriptor, request, [codec.encode(request)], user)
        return True

    # What comes back.

    def on_back(self, back: Back, frames: Sequence[Frame]) -> None:
        """An answer or a delivery for a client here. It is dropped if that connection was given up."""
        if self.body_cache.has_line(back.connection):
            self.body_cache.stand_behind(back.connection, frames)
        elif frames:
            self._let_through(back.connection, list(frames))

    def on_shown(self, now_ms: int, sender: str, shown: Shown, frames: Sequence[Frame]) -> None:
        """A delivery for a client here, whose bodies come by themselves."""
        if frames and self.connections.find(shown.connection) is not None:
            self.body_cache.show(now_ms, shown.connection, sender, shown.refs, frames)

    def _let_through(self, number: int, frames: list[Frame]) -> None:
        connection = self.connections.find(number)
        if connection is not None:
            tag = tag_of(frames[0])
            looked_at = tag in LOOKED_AT or (tag in JOINED and bool(connection.asking))
            if not looked_at or not self._is_for_us(connection, frames[0]):
                self._reply(connection.peer, frames)
            if tag == b"delivery" and connection.apart:
                self._apart.on_delivery(self._now_ms, connection, frames)
            if tag in ANSWERS_TO_PUTS and connection.on_answered(codec.guess_request(frames[0])):
                self._go_on(self._now_ms, connection)

    def _give_up_number(self, number: int) -> None:
        connection = self.connections.find(number)
        if connection is not None:
            self.give_up(connection)

    def on_not_owner(self, not_owner: NotOwner) -> None:
        """A request was not taken, because somebody else leads or owns; what is said of that has been learned."""
        connection = self.connections.find(not_owner.connection)
        if connection is not None:
            self.give_up(connection, not_owner.request if not_owner.request < OWN else 0)

    def _is_for_us(self, connection: ClientConnection, header: Frame) -> bool:
        """Whether an answer ends here; what is left of it goes to the client in other words."""
        answer = codec.decode_answer(header)
        match answer:
            case messages.Welcome(request) if request in connection.greeting:
                self._on_welcome(connection, answer, header)
                return True
            case messages.NotLeader(request):
                self._suspect_paths(connection)
                self.give_up(connection, request if request < OWN else 0)
                return True
            case messages.Failed(request, Moved.number):
                self._suspect_paths(connection)
                self.give_up(connection, request if request < OWN else 0)
                return True
            case messages.BeatDone(request, missing) if request >= OWN and request not in connection.asking:
                connection.missing.update(dict.fromkeys(missing))
                return True
            case messages.BeatDone(request) if request < OWN and connection.missing:
                missing, connection.missing = tuple(connection.missing), {}
                for stream in missing:
                    connection.streams.pop(stream, None)
                self._reply(connection.peer, [codec.encode(messages.BeatDone(request, missing))])
                return True
        number = getattr(answer, "request", 0)
        question = connection.asking.pop(number, None)
        if question is not None:
            self._on_part(connection, question, number, answer)
        return bool(number >= OWN)

    def _on_part(self, connection: ClientConnection, question: Question, number: int, answer: Any) -> None:
        del question.open[number]
        question.answers.append(answer)
        if self._apart.is_over(self._now_ms, connection, question, answer):
            self._finish_question(connection, question)

    def _finish_question(self, connection: ClientConnection, question: Question) -> None:
        """Answers the client with what has been said by now."""
        for left in question.open:
            connection.asking.pop(left, None)
        question.open.clear()
        if question.welcome is not None:
            self._reply(connection.peer, [question.welcome])
        else:
            self._reply(connection.peer, [codec.encode(together(question.request, question.answers))])
            if question.steps and connection.on_answered(question.request.request):
                self._go_on(self._now_ms, connection)

    def _suspect_paths(self, connection: ClientConnection) -> None:
        for group in connection.paths:
            self._suspect(group)

    # Changes.

    def on_news(self, now_ms: int) -> None:
        """Something has been learned: connections whose ways are wrong now are given up, and what waited goes on."""
        self._now_ms = now_ms
        for connection in self.connections:
            for group, path in connection.paths.items():
                descriptor = self._directory.descriptor(group)
                if descriptor is not None and descriptor.leader and descriptor.leader != path:
                    self.give_up(connection)
                    break
            else:
                if connection.held:
                    self._go_on(now_ms, connection)

    def _go_on(self, now_ms: int, connection: ClientConnection) -> None:
        if connection.goes_on:
            return  # What was passed on just now has been answered by this very node: the loop below sees that.
        connection.goes_on = True
        while connection.held and not connection.commit and self._pass_on(now_ms, connection, connection.held[0]):
            if self.connections.find(connection.number) is None:
                break
            waiting = connection.held.pop(0)
            connection.held_bytes -= sum(map(len, waiting.frames))
        connection.goes_on = False

    def tick(self, now_ms: int) -> None:
        """What waits asks again, and gives up in the end; who is silent is forgotten."""
        self._now_ms = now_ms
        for connection in self.connections:
            for question in dict.fromkeys(connection.asking.values()):
                if question.until_ms is not None and now_ms > question.until_ms:
                    self._finish_question(connection, question)
            if connection.held:
                self._go_on(now_ms, connection)
                if connection.held and now_ms - connection.held[0].since_ms > HELD_MS_MAX:
                    self.give_up(connection, connection.held[0].request.request)
        if now_ms - self._swept_at_ms >= SWEEP_EVERY_MS:
            self._swept_at_ms = now_ms
            self.connections.forget_silent(now_ms)

    def groups_in_use(self) -> dict[bytes, None]:
        """The groups to which requests of present connections go."""
        return {group: None for connection in self.connections for group in connection.paths}

    def topics_read(self) -> dict[str, None]:
        """What clients here read."""
        return {
            topic: None for connection in self.connections for topics in connection.reads.values() for topic in topics
        }

    def give_up(self, connection: ClientConnection, request: int = 0) -> None:
        """Ends a connection: the client comes back over a new one, with everything that was not answered."""
        if self.connections.find(connection.number) is None:
            return
        self.connections.give_up(connection)
        self.body_cache.forget(connection.number)
        connection.held.clear()
        self._reply(connection.peer, [codec.encode(messages.NotLeader(request, "", self.nodes))])

    def _refuse(self, peer: Any, request: int, error: TidingsError) -> None:
        self._reply(peer, [codec.encode(messages.Failed(request, error.number, str(error)))])

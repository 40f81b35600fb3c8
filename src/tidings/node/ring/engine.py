"""What a member of a replica group does as a node of a ring: a door for every client, and a seat if it leads.

What clients ask goes through the `front`, which finds the owner of each request; a leader takes the requests that
fronts relay to it, its own among them, and answers through the front that they came by. What is agreed on, and how, is
the group's affair (`node.group`) and the same as without a ring.

**Who may do what.** The client's home gives it an epoch. Any other owner takes the epoch that a request names, once it
is in its own journal (`Adopt`); a request of an older epoch is fenced from then on. So a session that has been replaced
is shut out by each owner as soon as its successor has spoken there.

**When ownership moves** (an arc is given or taken) the leader begins anew, as after a restart: every client is told to
come again, and streams are opened again where the topics are then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from random import Random

import msgspec

from tidings.errors import InvalidRequest, ProtocolError, TidingsError, Unauthorized
from tidings.node.engine import Engine
from tidings.node.group import Group
from tidings.node.ring.contents import Contents, Show
from tidings.node.ring.describing import groups_of, owner_of
from tidings.node.ring.front import Front, is_word_of_door, tag_of
from tidings.node.ring.leading import Leading
from tidings.node.ring.places import is_everywhere, points_of
from tidings.node.ring.seeking import Seeking
from tidings.protocols.broker import messages, operators
from tidings.protocols.broker.broker import Adopting
from tidings.protocols.broker.commands import Adopt
from tidings.protocols.broker.rights import check_right
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Effect, Persist, Send
from tidings.protocols.effects import Peer as ClientPeer
from tidings.protocols.events import Received as ClientRequest
from tidings.protocols.ring.arcs import common, point_of, spots, without
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.giving import CLASHES_MAX
from tidings.protocols.ring.handover import ToGroup
from tidings.protocols.ring.handover_messages import Given, HandoverMessage, Nothing
from tidings.protocols.ring.messages import (
    AskWord,
    Back,
    Between,
    Bodies,
    Card,
    Farewell,
    FetchBodies,
    Find,
    Heard,
    Interest,
    NodeMessage,
    Relay,
    Shown,
    Turned,
    Word,
)
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.transfer import topics_in
from tidings.settings import RingSettings
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK as MATE_MARK
from tidings.wire.replication import MATE_NAME
from tidings.wire.ring import MARK, Guest, Node, decode_header, encode_message

RING_TICK_MS = 50
NEAREST_MAX = 3
LEFT_MAX = 64
"""Groups that left, of which another one is told."""

OPERATORS = frozenset({b"members", b"add-member", b"remove-member", b"ring", b"owner", b"held", b"leave-ring"})
"""Requests that are for this node and its group, by the tag that they begin with."""


class RingMember:
    """One node of a ring, beside its engine and its group."""

    def __init__(
        self, engine: Engine[Group, RingMember], ring_settings: RingSettings, address: str, random: Random
    ) -> None:
        self.engine = engine
        self.group = engine.log
        self.address = address
        """Where the other nodes reach this one."""
        self._random = random
        self.settings = ring_settings
        self.directory = Directory()
        self.contents = Contents(self)
        self.front = Front(
            self.directory,
            self._random.getrandbits(48) << 14,
            self._relay,
            engine.send,
            lambda now_ms, point: self._seeking.want(now_ms, point),
            lambda group: self._seeking.doubt(group),
            self.contents.fetch,
            self.contents.tell_interest,
        )
        self._seeking = Seeking(self.directory, self.send_node, self._find, self._nearest)
        self.leading: Leading | None = None
        """What a node does for its group and the ring while it leads."""
        self._adopting: dict[str, int] = {}
        """Names whose requests wait for an epoch to be written down, and how many do."""
        self._ring_tick_at_ms = 0
        self._seen: tuple[object, ...] = ()
        self._told: tuple[object, ...] = ()
        self._contacts_told: tuple[Card, ...] = ()

    @property
    def ownership(self) -> Ownership | None:
        """What this node's group owns, as far as is applied here."""
        return ring_of(self.group.state.machine)

    # What comes in.

    def hear(self, now_ms: int, peer: ClientPeer, frames: Sequence[Frame], user: str | None) -> bool:
        mark = frames[0] if frames else b""
        if mark == MARK:
            if user in (None, MATE_NAME):  # With keys, only who has the key of the nodes speaks as one.
                self._receive_node(now_ms, frames)
        elif mark == MATE_MARK or tag_of(mark) in OPERATORS:
            return False
        else:
            self.front.receive(now_ms, peer, frames, user)
        return True

    def _receive_node(self, now_ms: int, frames: Sequence[Frame]) -> None:
        try:
            sender, message = msgspec.structs.astuple(decode_header(frames))
        except ProtocolError:
            return  # Nobody who speaks so waits for an answer that could be understood.
        match message:
            case Relay():
                self._on_relay(now_ms, sender, message, frames[2:])
            case Back():
                self.front.on_back(message, frames[2:])
            case Turned():
                self._learn(now_ms, sender, message.word)
                self.front.on_turned(message)
            case Word():
                self._learn(now_ms, sender, message)
            case AskWord(group):
                if group == self.group.identity.group:
                    self.send_node(sender, self.word())
            case Find(point):
                self._seeking.on_find(now_ms, sender, point)
            case Farewell(word, left):
                self._learn_left(left)
                self._on_farewell(now_ms, sender, word)
            case Heard(group, left):
                self._learn_left(left)
                if self.leading is not None:
                    self.leading.on_heard(group)
            case Shown() | Bodies() | FetchBodies() | Interest():
                self.contents.receive(now_ms, sender, message, frames[2:])
            case _:
                self._receive_group(now_ms, sender, message, frames[2:])

    def _receive_group(
        self, now_ms: int, sender: str, message: Between | HandoverMessage, bodies: Sequence[Frame]
    ) -> None:
        """What is said to our group goes to whoever leads it; others say who that is."""
        leading = self.leading
        if leading is None:
            self.send_node(sender, self.word())
        elif not isinstance(message, Between):
            if isinstance(message, Nothing):  # Its giver has given it to others: without this it would be asked again.
                self._learn(now_ms, sender, message.word)
            elif isinstance(message, Given):  # It waits for us: that has to be known, should we leave.
                self.directory.learn_card(message.giver)
            self.engine.run(leading.handover.receive(now_ms, message, tuple(bodies)))
        elif message.receiver == self.group.identity.group:
            leading.receive(now_ms, message)
            self.after_ring(now_ms)

    def _on_farewell(self, now_ms: int, sender: str, word: Word) -> None:
        """It is answered once it is in our journal, since whoever leads next has to know it too."""
        self._learn(now_ms, sender, word)
        ring = self.ownership
        if self.leading is None:
            self.send_node(sender, self.word())
        elif ring is not None and ring.knows_left(word.card.group):
            self.send_node(sender, Heard(self.group.identity.group, self._left()))
        else:
            self.leading.remember_soon()

    def _left(self) -> tuple[Card, ...]:
        """The groups of which is known that they have left."""
        return tuple(card for card in self.directory.cards() if card.left)[-LEFT_MAX:]

    def _learn_left(self, cards: Iterable[Card]) -> None:
        for card in cards:
            if card.left and card.group != self.group.identity.group:
                self.directory.learn_card(card)

    def _learn(self, now_ms: int, sender: str, word: Word) -> None:
        if word.card.group == self.group.identity.group and self.leading is not None:
            return  # Nobody knows that better than we do.
        changed = self.directory.learn(word)
        self._seeking.on_word(now_ms, sender, word)
        if changed:
            self.front.on_news(now_ms)

    # Words and cards.

    def card(self) -> Card:
        """Where our group is reached, as far as is known here."""
        replica, ring = self.group.replica.replica, self.ownership
        ballot = replica.leader_ballot
        leader = self.group.members.get(ballot.node) if ballot == replica.acceptor.promised else None
        return Card(
            self.group.identity.group,
            self.group.addresses(),
            leader.address if leader is not None else "",
            ballot.number if leader is not None else 0,
            self.group.replica.applied,
            ring is not None and ring.has_left,
            leader.number if leader is not None else 0,
        )

    def word(self) -> Word:
        """What our group owns, as far as is known here."""
        ring = self.ownership
        return Word(self.card(), ()) if ring is None else Word(self.card(), ring.arcs, ring.gone, ring.settled)

    def _learn_ourselves(self, now_ms: int) -> None:
        """Keeps the directory right about our own group. Called very often, so what cannot have changed is not read."""
        replica, ring = self.group.replica.replica, self.ownership
        self.front.strays = ring.strays if ring is not None else None
        seen = (
            replica.leader_ballot,
            replica.acceptor.promised,
            self.group.replica.history.newest,
            None if ring is None else (ring.arcs, ring.giving, ring.taking, ring.contacts),
        )
        if seen == self._seen:
            return
        self._seen = seen
        card = self.card()
        arcs = ring.arcs if ring is not None else ()
        told = (card.leader, card.term, card.leader_number, card.members, card.left, arcs)
        if told != self._told:
            self._told = told
            self.front.nodes, self.front.group = card.members, card.group
            self.directory.learn(self.word())
            self.front.on_news(now_ms)
        if ring is not None and ring.contacts is not self._contacts_told:
            self._contacts_told = ring.contacts
            for contact in ring.contacts:
                self.directory.learn_card(contact)

    # The front's way to owners.

    def _relay(self, now_ms: int, address: str, relay: Relay, frames: Sequence[Frame]) -> None:
        if address == self.address:
            self._on_relay(now_ms, address, relay, frames)
        else:
            self.engine.outgoing.append((Node(address), encode_message(self.address, relay, frames)))

    def _answer_guest(self, guest: Guest, frames: list[Frame]) -> None:
        back = Back(guest.visitor)
        if guest.front == self.address:
            self.front.on_back(back, frames)
        else:
            self.engine.outgoing.append((Node(guest.front), encode_message(self.address, back, frames)))

    def send_node(self, address: str, message: NodeMessage | HandoverMessage, bodies: Sequence[Frame] = ()) -> None:
        if address and address != self.address:
            self.engine.outgoing.append((Node(address), encode_message(self.address, message, bodies)))

    def _send_group(self, card: Card, message: NodeMessage | HandoverMessage, bodies: Sequence[Frame] = ()) -> None:
        """To whoever leads a group by its card; to all its members if that names nobody."""
        for address in (card.leader,) if card.leader else card.members:
            self.send_node(address, message, bodies)

    def seek(self, now_ms: int, point: Key) -> None:
        """The owner of a point is wanted."""
        self._seeking.want(now_ms, point)

    def send_farewells(self, cards: Iterable[Card]) -> None:
        """Tells other groups that ours has left."""
        farewell = Farewell(self.word(), self._left())
        for card in cards:
            self._send_group(card, farewell)

    def doubt(self, group: bytes) -> None:
        """What is known of a group may be old: it is asked."""
        self._seeking.doubt(group)

    def _find(self, now_ms: int, point: Key) -> bool:
        return self.leading is not None and self.leading.find(now_ms, point)

    def _nearest(self) -> tuple[str, ...]:
        """Nodes that may know who owns what: our leader, and whom we know of other groups."""
        leader = self.card().leader
        if leader and leader != self.address:
            return (leader,)
        others = [
            card.leader or card.members[0]
            for card in reversed(self.directory.cards())
            if card.members and card.group != self.group.identity.group and not card.left
        ]
        doors = self.ownership.doors if self.ownership is not None else ()
        contacts = self.settings.contacts or doors  # Others each time: those named first may be gone for good.
        some = self._random.sample(contacts, min(NEAREST_MAX, len(contacts)))
        return tuple(dict.fromkeys((*others[:NEAREST_MAX], *some)))

    # The owner's half.

    def _on_relay(self, now_ms: int, sender: str, relay: Relay, frames: Sequence[Frame]) -> None:
        """A client's request, for our group as the owner of what it is about."""
        guest = Guest(sender, relay.visitor)
        header = frames[0] if frames else b""
        ring = self.ownership
        if relay.group != self.group.identity.group or not self.group.serving or ring is None:
            self._turn(guest, codec.guess_request(header))
            return
        try:
            request = codec.decode_request(header)
            if is_everywhere(request):
                here = not without(relay.arcs, ring.arcs)
            else:
                here = is_word_of_door(request) or all(map(ring.serves, points_of(request)))
            bodies = tuple(frames[1:])
            batches = self.engine.read_bodies(bodies) if bodies else ()
        except TidingsError as error:
            self.engine.refuse(guest, codec.guess_request(header), error)
            return
        if here:
            self._admit(ClientRequest(now_ms, guest, request, bodies, batches, relay.user))
        else:
            self._turn(guest, request.request)

    def _turn(self, guest: Guest, request: int) -> None:
        turned = Turned(guest.visitor, request, self.word())
        if guest.front == self.address:
            self.front.on_turned(turned)
        else:
            self.send_node(guest.front, turned)

    def _admit(self, received: ClientRequest) -> None:
        """Takes a request, once the epoch that it names is known here."""
        message = received.message
        client, epoch = getattr(message, "client", None), getattr(message, "epoch", None)
        ring, machine = self.ownership, self.group.state.machine
        assert ring is not None
        if client is None or epoch is None or ring.owns_home(client):
            self.group.take(received)
            return
        known = machine.clients.get(client)
        if known is not None and known.epoch >= epoch and client not in self._adopting:
            self.group.take(received)
            return
        if known is None and client not in self._adopting:
            match message:  # Nothing has to be written down to say that there is nothing.
                case messages.Beat(request, _, _, streams):
                    self.engine.reply(received.peer, messages.BeatDone(request, streams))
                    return
                case messages.Bye(request):
                    self.engine.reply(received.peer, messages.ByeDone(request))
                    return
                case messages.AskSubscriptions(request):
                    self.group.waiting.confirm(received, [Send(received.peer, messages.Subscriptions(request, ()))])
                    return
        if isinstance(message, messages.AskSubscriptions) and client not in self._adopting and known is not None:
            # What is owned now is asked for, and not what is owned once something has been written down.
            message = msgspec.structs.replace(message, epoch=known.epoch)
            self.group.take(msgspec.structs.replace(received, message=message))
            return
        self._adopting[client] = self._adopting.get(client, 0) + 1
        self.engine.run([Persist(Adopt(client, epoch), (), Adopting(received))])

    def _adopted(self, persist: Persist) -> None:
        """One request less waits for its epoch: it has been taken, or turned away."""
        if isinstance(persist.origin, Adopting):
            client = persist.origin.message.client
            left = self._adopting.get(client, 0) - 1
            if left > 0:
                self._adopting[client] = left
            else:
                self._adopting.pop(client, None)

    def on_applied(self, persist: Persist) -> None:
        self._adopted(persist)

    def on_turned_away(self, wanted: list[Persist]) -> None:
        for persist in wanted:
            self._adopted(persist)

    def on_stopped_serving(self) -> None:
        self._adopting.clear()

    # What goes out.

    def answer(self, peer: ClientPeer, frames: list[Frame]) -> bool:
        if isinstance(peer, Guest):
            self._answer_guest(peer, frames)
            return True
        return False

    def plan(self, effects: list[Effect]) -> list[Effect]:
        return self.contents.plan(self.engine.now_ms, effects)

    def perform(self, effect: Effect) -> None:
        match effect:
            case ToGroup(card, message, bodies):
                self._send_group(self.directory.card(card.group) or card, message, bodies)
            case Show(guest, message, refs, places):
                frames = [codec.encode(message), *map(self.engine.batches.body, places)]
                self.send_node(guest.front, Shown(guest.visitor, refs), frames)
            case _:
                raise AssertionError(f"Nobody knows what to do for {effect}.")

    # Operators.

    def take(self, received: ClientRequest) -> bool:
        message, peer = received.message, received.peer
        match message:
            case operators.AskRing(request):
                self.engine.reply(peer, self._describe_ring(request))
            case operators.AskOwner(request, topic):
                owner = owner_of(self.directory, request, topic)
                if not owner.group:
                    self._seeking.want(self.engine.now_ms, point_of(topic))
                self.engine.reply(peer, owner)
            case operators.AskHeld(request, points) if self.leading is not None and self.ownership is not None:
                held = topics_in(self.group.state.machine, common(self.ownership.arcs, spots(points)))
                self.engine.reply(peer, operators.Held(request, tuple(islice(held, CLASHES_MAX))))
            case operators.LeaveRing(request) if self.leading is not None:
                try:
                    check_right(self.engine.settings.admins, received.user, message)
                    self.leading.leave(peer, request)
                except (InvalidRequest, Unauthorized) as error:
                    self.engine.refuse(peer, request, error)
            case _:
                return False
        return True

    def _describe_ring(self, request: int) -> operators.Ring:
        ring, names = self.ownership, self.group.state.machine.topics
        topics = sum(map(ring.owns_topic, names)) if ring is not None else 0
        if ring is not None and ring.strays:
            topics -= sum(point_of(name) in ring.strays for name in names)
        return operators.Ring(request, self.address, self.group.identity.group.hex(), topics, groups_of(self.directory))

    # Time.

    def after(self, now_ms: int) -> None:
        if self.leading is not None and (
            not self.group.serving or self.leading.machine is not self.group.state.machine
        ):
            self.leading = None
        if self.group.serving and self.leading is None:
            self.leading = Leading(self, now_ms)
        if self.leading is not None and self.leading.ownership_moved():
            self.group.start_over()
        self._learn_ourselves(now_ms)

    def after_ring(self, now_ms: int) -> None:
        """Sends what the seat wants sent, and goes after what it has found."""
        leading = self.leading
        if leading is None:
            return
        seat = leading.seat
        outgoing, seat.outgoing = seat.outgoing, []
        for card, between in outgoing:
            self._send_group(card, between)
        arrived, seat.arrived = seat.arrived, []
        for topic, payload in arrived:
            self.contents.on_cast(now_ms, topic, payload)
        found, seat.found = seat.found, []
        for _, group in found:
            root = self.directory.card(group)
            if root is not None and group != self.group.identity.group:
                self._seeking.ask_group(root)

    def tick(self, now_ms: int) -> None:
        self.front.larder.tick(now_ms)
        if now_ms < self._ring_tick_at_ms:
            return
        self._ring_tick_at_ms = now_ms + RING_TICK_MS
        in_use = self.front.groups_in_use()
        if self.leading is not None:  # One that has left, and is switched off, never says so: it has to be asked.
            in_use.update(dict.fromkeys(self.leading.partners()))
        self._seeking.tick(now_ms, in_use, self.group.identity.group)
        self.front.tick(now_ms)
        self.front.reading.tick(now_ms, self.card().leader, self.front.topics_read)
        if self.leading is not None:
            self.engine.run(self.leading.tick(now_ms))
            self.after_ring(now_ms)

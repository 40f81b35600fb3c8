"""What a member of a replica group does as a node of a ring: a door for every client, and a virtual node if it leads.

What clients ask goes through the `proxy`, which finds the owner of each request; a leader takes the requests that
proxies relay to it, its own among them, and answers through the proxy that they came by. What is agreed on, and how, is
the group's affair (`node.group`) and the same as without a ring.

**Who may do what.** The client's home gives it an epoch. Any other owner asks the home before it takes anything in a
name that is new to it, and is told of newer sessions from then on (`admitting`).

**When ownership moves** (a range is given or taken) the leader begins again, as after a restart: every client is told
to come again, and streams are opened again where the topics are then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from tidings.errors import ProtocolError, TidingsError
from tidings.node.engine import Engine
from tidings.node.group import Group
from tidings.node.ring.admitting import Admitting
from tidings.node.ring.answers import is_word_of_door, tag_of
from tidings.node.ring.contents import Contents, Show
from tidings.node.ring.describing import answer_operator
from tidings.node.ring.leading import Leading
from tidings.node.ring.places import is_coordinated, is_everywhere, points_of
from tidings.node.ring.proxy import Proxy
from tidings.node.ring.seeking import Seeking
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Effect, Persist, Report
from tidings.protocols.effects import Peer as ClientPeer
from tidings.protocols.events import Received as ClientRequest
from tidings.protocols.ring.commit_messages import CommitMessage
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.handoff import ToGroup
from tidings.protocols.ring.handoff_messages import HandedOff, HandoffMessage, Nothing
from tidings.protocols.ring.key_ranges import without
from tidings.protocols.ring.messages import (
    AskEpoch,
    AskWord,
    Back,
    Between,
    Bodies,
    FetchBodies,
    Find,
    GroupDescriptor,
    HomeEpoch,
    Interest,
    LeaveConfirmed,
    LeaveNotice,
    NodeMessage,
    NotOwner,
    Relay,
    Shown,
    Word,
)
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.transfer import AtHome
from tidings.settings import RingSettings
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK as REPLICA_MARK
from tidings.wire.replication import REPLICA_PEER_NAME
from tidings.wire.ring import MARK, Node, RemoteClient, decode_header, encode_message

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
        self.proxy = Proxy(
            self.directory,
            self._random.getrandbits(48) << 14,
            self._relay,
            engine.send,
            lambda now_ms, point: self._seeking.want(now_ms, point),
            lambda group: self._seeking.suspect(group),
            self.contents.fetch,
            self.contents.tell_interest,
        )
        self._seeking: Seeking = Seeking(self.directory, self.send_node, self._find, self._nearest)
        self.leading: Leading | None = None
        """What a node does for its group and the ring while it leads."""
        self._admitting = Admitting(self, self._random.getrandbits(48) << 14)
        self._ring_tick_at_ms = 0
        self._seen: tuple[object, ...] = ()
        self._told: tuple[object, ...] = ()
        self._contacts_told: tuple[GroupDescriptor, ...] = ()

    @property
    def ownership(self) -> Ownership | None:
        """What this node's group owns, as far as is applied here."""
        return ring_of(self.group.state.machine)

    # What comes in.

    def hear(self, now_ms: int, peer: ClientPeer, frames: Sequence[Frame], user: str | None) -> bool:
        mark = frames[0] if frames else b""
        if mark == MARK:
            if user in (None, REPLICA_PEER_NAME):  # With keys, only who has the key of the nodes speaks as one.
                self._receive_node(now_ms, frames)
        elif mark == REPLICA_MARK or tag_of(mark) in OPERATORS:
            return False
        else:
            self.proxy.receive(now_ms, peer, frames, user)
        return True

    def _receive_node(self, now_ms: int, frames: Sequence[Frame]) -> None:
        try:
            sender, message = msgspec.structs.astuple(decode_header(frames))
        except ProtocolError:
            return  # Nobody who speaks so waits for an answer that could be understood.
        self._seeking.on_heard(now_ms, sender)
        match message:
            case Relay():
                self._on_relay(now_ms, sender, message, frames[2:])
            case Back():
                self.proxy.on_back(message, frames[2:])
            case NotOwner():
                self._learn(now_ms, sender, message.word)
                self.proxy.on_not_owner(message)
            case Word():
                self._learn(now_ms, sender, message)
                self._admitting.on_word(sender, message)
            case AskWord(group):
                if group == self.group.identity.group:
                    self.send_node(sender, self.word())
            case Find(point):
                self._seeking.on_find(now_ms, sender, point)
            case LeaveNotice(word, left):
                self._learn_left(left)
                self._on_leave_notice(now_ms, sender, word)
            case LeaveConfirmed(group, left):
                self._learn_left(left)
                if self.leading is not None:
                    self.leading.on_heard(group)
            case AskEpoch():
                if self.leading is None:
                    self.send_node(sender, self.word())
                else:
                    self._admitting.on_asked(sender, message)
            case HomeEpoch():
                self._admitting.on_answer(message)
            case Shown() | Bodies() | FetchBodies() | Interest():
                self.contents.receive(now_ms, sender, message, frames[2:])
            case _:
                self._receive_group(now_ms, sender, message, frames[2:])

    def _receive_group(
        self, now_ms: int, sender: str, message: Between | HandoffMessage | CommitMessage, bodies: Sequence[Frame]
    ) -> None:
        """What is said to our group goes to its leader; others say who that is."""
        leading = self.leading
        if leading is None:
            self.send_node(sender, self.word())
        elif isinstance(message, CommitMessage):
            leading.commits.receive(now_ms, message, bodies)
        elif not isinstance(message, Between):
            if isinstance(message, Nothing):  # Its source has given it to others: without this it would be asked again.
                self._learn(now_ms, sender, message.word)
            elif isinstance(message, HandedOff):  # It waits for us: that has to be known, should we leave.
                self.directory.learn_descriptor(message.source)
            self.engine.run(leading.handoff.receive(now_ms, message, tuple(bodies)))
        elif message.receiver == self.group.identity.group:
            leading.receive(now_ms, message)
            self.after_ring(now_ms)

    def _on_leave_notice(self, now_ms: int, sender: str, word: Word) -> None:
        """It is answered once it is in our journal, since the next leader has to know it too."""
        self._learn(now_ms, sender, word)
        ring = self.ownership
        if self.leading is None:
            self.send_node(sender, self.word())
        elif ring is not None and ring.knows_left(word.descriptor.group):
            self.send_node(sender, LeaveConfirmed(self.group.identity.group, self._left()))
        else:
            self.leading.remember_soon()

    def _left(self) -> tuple[GroupDescriptor, ...]:
        """The groups of which is known that they have left."""
        return tuple(descriptor for descriptor in self.directory.descriptors() if descriptor.left)[-LEFT_MAX:]

    def _learn_left(self, descriptors: Iterable[GroupDescriptor]) -> None:
        for descriptor in descriptors:
            if descriptor.left and descriptor.group != self.group.identity.group:
                self.directory.learn_descriptor(descriptor)

    def _learn(self, now_ms: int, sender: str, word: Word) -> None:
        if word.descriptor.group == self.group.identity.group and self.leading is not None:
            return  # Nobody knows that better than we do.
        changed = self.directory.learn(word)
        self._seeking.on_word()
        if changed:
            self.proxy.on_news(now_ms)

    # Words and descriptors.

    def descriptor(self) -> GroupDescriptor:
        """Where our group is reached, as far as is known here."""
        replica, ring = self.group.replica.replica, self.ownership
        ballot = replica.leader_ballot
        leader = self.group.members.get(ballot.node) if ballot == replica.acceptor.promised else None
        return GroupDescriptor(
            self.group.identity.group,
            self.group.addresses(),
            leader.address if leader is not None else "",
            ballot.number if leader is not None else 0,
            self.group.replica.applied,
            ring is not None and ring.has_left,
            leader.number if leader is not None else 0,
            leader is not None and leader.number == self.group.number,
        )

    def word(self) -> Word:
        """What our group owns, as far as is known here."""
        ring = self.ownership
        own = self.descriptor()
        return Word(own, ()) if ring is None else Word(own, ring.ranges, ring.gone, ring.confirmed)

    def _learn_ourselves(self, now_ms: int) -> None:
        """Keeps the directory right about our own group. Called very often, so what cannot have changed is not read."""
        replica, ring = self.group.replica.replica, self.ownership
        self.proxy.strays = ring.strays if ring is not None else None
        seen = (
            replica.leader_ballot,
            replica.acceptor.promised,
            self.group.replica.history.newest,
            None if ring is None else (ring.ranges, ring.handing_off, ring.taking_over, ring.contacts),
        )
        if seen == self._seen:
            return
        self._seen = seen
        own = self.descriptor()
        ranges = ring.ranges if ring is not None else ()
        told = (own.leader, own.term, own.leader_number, own.members, own.left, ranges)
        if told != self._told:
            self._told = told
            self.proxy.nodes, self.proxy.group = own.members, own.group
            self.directory.learn(self.word())
            self.proxy.on_news(now_ms)
        if ring is not None and ring.contacts is not self._contacts_told:
            self._contacts_told = ring.contacts
            for contact in ring.contacts:
                self.directory.learn_descriptor(contact)

    # The proxy's way to owners.

    def _relay(self, now_ms: int, address: str, relay: Relay, frames: Sequence[Frame]) -> None:
        if address == self.address:
            self._on_relay(now_ms, address, relay, frames)
        else:
            self._seeking.on_sent(now_ms, address)
            self.engine.outgoing.append((Node(address), encode_message(self.address, relay, frames)))

    def _answer_remote_client(self, remote_client: RemoteClient, frames: list[Frame]) -> None:
        back = Back(remote_client.connection)
        if remote_client.proxy == self.address:
            self.proxy.on_back(back, frames)
        else:
            self.engine.outgoing.append((Node(remote_client.proxy), encode_message(self.address, back, frames)))

    def send_node(
        self, address: str, message: NodeMessage | HandoffMessage | CommitMessage, bodies: Sequence[Frame] = ()
    ) -> None:
        if address and address != self.address:
            self.engine.outgoing.append((Node(address), encode_message(self.address, message, bodies)))

    def _send_group(
        self,
        descriptor: GroupDescriptor,
        message: NodeMessage | HandoffMessage | CommitMessage,
        bodies: Sequence[Frame] = (),
    ) -> None:
        """To the leader of a group by its descriptor; to all its members if that names nobody."""
        for address in (descriptor.leader,) if descriptor.leader else descriptor.members:
            self.send_node(address, message, bodies)

    def draw_bytes(self, count: int) -> bytes:
        """Bytes that nobody else draws."""
        return self._random.randbytes(count)

    def seek(self, now_ms: int, point: Key) -> None:
        """The owner of a point is wanted."""
        self._seeking.want(now_ms, point)

    def send_leave_notices(self, descriptors: Iterable[GroupDescriptor]) -> None:
        """Tells other groups that ours has left."""
        leave_notice = LeaveNotice(self.word(), self._left())
        for descriptor in descriptors:
            self._send_group(descriptor, leave_notice)

    def suspect(self, group: bytes) -> None:
        """What is known of a group may be old: it is asked."""
        self._seeking.suspect(group)

    def _find(self, now_ms: int, point: Key) -> bool:
        return self.leading is not None and self.leading.find(now_ms, point)

    def _nearest(self) -> tuple[str, ...]:
        """Nodes that may know who owns what: our leader, and whom we know of other groups."""
        leader = self.descriptor().leader
        if leader and leader != self.address:
            return (leader,)
        others = [
            descriptor.leader or descriptor.members[0]
            for descriptor in reversed(self.directory.descriptors())
            if descriptor.members and descriptor.group != self.group.identity.group and not descriptor.left
        ]
        doors = self.ownership.doors if self.ownership is not None else ()
        contacts = self.settings.contacts or doors  # Others each time: those named first may be gone for good.
        some = self._random.sample(contacts, min(NEAREST_MAX, len(contacts)))
        return tuple(dict.fromkeys((*others[:NEAREST_MAX], *some)))

    # The owner's half.

    def _on_relay(self, now_ms: int, sender: str, relay: Relay, frames: Sequence[Frame]) -> None:
        """A client's request, for our group as the owner of what it is about."""
        remote_client = RemoteClient(sender, relay.connection)
        header = frames[0] if frames else b""
        ring = self.ownership
        if relay.group != self.group.identity.group or not self.group.serving or ring is None:
            self._refuse_relay(remote_client, codec.guess_request(header))
            return
        try:
            request = codec.decode_request(header)
            if is_everywhere(request):
                here = not without(relay.ranges, ring.ranges)
            else:
                here = is_word_of_door(request) or all(map(ring.serves, points_of(request)))
            bodies = tuple(frames[1:])
            batches = self.engine.read_bodies(bodies) if bodies else ()
        except TidingsError as error:
            self.engine.refuse(remote_client, codec.guess_request(header), error)
            return
        received = ClientRequest(now_ms, remote_client, request, bodies, batches, relay.user)
        if here:
            self.admit(received)
        elif self.leading is not None and is_coordinated(ring, request):
            self.leading.commits.take(received)
        else:
            self._refuse_relay(remote_client, request.request)

    def _refuse_relay(self, remote_client: RemoteClient, request: int) -> None:
        not_owner = NotOwner(remote_client.connection, request, self.word())
        if remote_client.proxy == self.address:
            self.proxy.on_not_owner(not_owner)
        else:
            self.send_node(remote_client.proxy, not_owner)

    def admit(self, received: ClientRequest, home: AtHome | None = None) -> None:
        """Takes a request, once the epoch that it names is known here."""
        if self.leading is not None and self.leading.commits.holds_back(received):
            return
        self._admitting.admit(received, home)

    def publishes(self, received: ClientRequest) -> bool:
        return self.leading is not None and self.leading.commits.publishes(received)

    def on_applied(self, persist: Persist) -> None:
        self._admitting.on_written(persist)

    def on_rejected(self, wanted: list[Persist]) -> None:
        for persist in wanted:
            self._admitting.on_written(persist)

    def on_stopped_serving(self) -> None:
        self._admitting.reset()
        if self.leading is not None:
            self.leading.commits.reset()

    # What goes out.

    def answer(self, peer: ClientPeer, frames: list[Frame]) -> bool:
        if isinstance(peer, RemoteClient):
            self._answer_remote_client(peer, frames)
            return True
        return False

    def plan(self, effects: list[Effect]) -> list[Effect]:
        return self.contents.plan(self.engine.now_ms, effects)

    def perform(self, effect: Effect) -> None:
        match effect:
            case Report():
                if not self._admitting.on_report(effect) and self.leading is not None:
                    self.leading.commits.on_report(self.engine.now_ms, effect)
            case ToGroup(descriptor, message, bodies) if descriptor.group == self.group.identity.group:
                self._receive_group(self.engine.now_ms, self.address, message, bodies)
            case ToGroup(descriptor, message, bodies):
                self._send_group(self.directory.descriptor(descriptor.group) or descriptor, message, bodies)
            case Show(remote_client, message, refs, places):
                frames = [codec.encode(message), *map(self.engine.batches.body, places)]
                self.send_node(remote_client.proxy, Shown(remote_client.connection, refs), frames)
            case _:
                raise AssertionError(f"Nobody knows what to do for {effect}.")

    # Operators.

    def take(self, received: ClientRequest) -> bool:
        return answer_operator(self, self.leading, self.ownership, received)

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
        """Sends what the virtual node wants sent, and goes after what it has found."""
        leading = self.leading
        if leading is None:
            return
        virtual_node = leading.virtual_node
        outgoing, virtual_node.outgoing = virtual_node.outgoing, []
        for descriptor, between in outgoing:
            self._send_group(descriptor, between)
        arrived, virtual_node.arrived = virtual_node.arrived, []
        for topic, payload in arrived:
            self.contents.on_cast(now_ms, topic, payload)
        found, virtual_node.found = virtual_node.found, []
        for _, group in found:
            root = self.directory.descriptor(group)
            if root is not None and group != self.group.identity.group:
                self._seeking.ask_group(root)

    def tick(self, now_ms: int) -> None:
        self.proxy.body_cache.tick(now_ms)
        if now_ms < self._ring_tick_at_ms:
            return
        self._ring_tick_at_ms = now_ms + RING_TICK_MS
        partners = self.leading.partners() if self.leading is not None else ()
        self._seeking.tick(now_ms, self.proxy.groups_in_use(), partners, self.group.identity.group)
        self.proxy.tick(now_ms)
        self._admitting.tick(now_ms)
        self.proxy.reading.tick(now_ms, self.descriptor().leader, self.proxy.topics_read)
        if self.leading is not None:
            self.engine.run(self.leading.tick(now_ms))
            self.after_ring(now_ms)

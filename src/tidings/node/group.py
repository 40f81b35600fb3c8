"""The engine of a broker whose journal several nodes agree on.

    requests -> broker -> commands wanted -> gather: a value -> the replica has it agreed on
             -> decided and on this disk -> broker applies -> answers

It is an `Engine` to whoever drives it. The differences: what is to be durable is proposed, not just written; only the
node that leads serves clients, and the others tell them where to go (`Elsewhere`). Streams, lanes and leases live on
the leader alone: a new one begins as a broker does after a restart, which clients know how to live with. What it
answers without having anything agreed on (a question, a refusal) waits until a majority has confirmed that it still
leads, so that one that was cut off or slept never speaks for a state that others have left behind.

Copying old messages forward, so that segments can go, is each node's own affair and not agreed on: addresses differ.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, cast

import msgspec

from tidings.errors import InvalidRequest, ProtocolError, StorageError, Unauthorized
from tidings.journal.checked import DamagedPlace
from tidings.journal.disk import LocalDisk
from tidings.journal.journal import Commit, Journal
from tidings.node.damages import Mending
from tidings.node.engine import RETENTION_EVERY_MS, TICK_MS, Engine, places_of, staged_bytes_of, with_places
from tidings.node.founding import founding
from tidings.node.growth import unfit_for_ring, unfit_to_join
from tidings.node.identity import Identity
from tidings.node.membership import MembershipChanges
from tidings.node.replica import ReplicaEngine
from tidings.node.replicated import BrokerState, new_machine, pack, unpack
from tidings.node.state import State
from tidings.protocols.broker import bulk, messages, operators
from tidings.protocols.broker.broker import Broker
from tidings.protocols.broker.commands import Carry, encode_command
from tidings.protocols.broker.rights import check_right
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Forward, Persist, Send
from tidings.protocols.effects import Peer as ClientPeer
from tidings.protocols.events import Persisted
from tidings.protocols.events import Received as ClientRequest
from tidings.protocols.multipaxos.joining import Found, Known, Meet, Member
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    Fetch,
    MembershipSettled,
    Propose,
    Read,
    ReadReady,
    ReadRefused,
    Received,
    TurnedAway,
)
from tidings.protocols.multipaxos.values import Command
from tidings.protocols.ring.arcs import WHOLE
from tidings.protocols.ring.commands import Claim
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.stack import Requested, SetTimer, Timer, TimerFired
from tidings.settings import BrokerSettings, ReplicaSettings
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, MATE_NAME, Mate, decode_message, encode_message

WINDOW = 64
"""Slots that may be open at once, in every group."""
REPLICA_TICK_MS = 10
REPAIR_EVERY_MS = 1_000
"""How often others are asked again for what is damaged here."""
REPAIR_MS_MAX = 5_000
"""Whoever waits for what is damaged is told so after this long, if it has not come from another member."""
MEMBERSHIP_EVERY_MS = 200
"""How often a leader looks for nodes that wait to vote or to be taken in."""
PEERS_MAX = 100_000
QUESTIONS = (
    messages.Hello,
    messages.Get,
    messages.AskGroups,
    messages.AskSequence,
    messages.AskSubscriptions,
    messages.AskSubscribers,
    messages.AskTopics,
    messages.AskStatus,
    bulk.Read,
    bulk.AskOffset,
)
"""Requests that may be answered from the state alone; that has to be the state of the group."""


_log = logging.getLogger("tidings.node")


class _Held(NamedTuple):
    """Answers that wait for the word that we still lead."""

    request: ClientRequest
    effects: list[Effect]


class GroupEngine(Engine):
    """One broker of a group, leading or following."""

    tick_ms = REPLICA_TICK_MS

    def __init__(
        self,
        settings: BrokerSettings,
        replica_settings: ReplicaSettings,
        identity: Identity,
        journal: Journal,
        disk: LocalDisk,
        random: Random | None = None,
    ) -> None:
        super().__init__(settings, journal)
        self._identity = identity
        self._contacts = {member.number: member for member in identity.contacts}
        """Whom we were told of at first. Files of others may be older than that, and numbers are given only once."""
        self._random = random if random is not None else Random(os.urandom(16))
        self.replica = ReplicaEngine(identity.number, replica_settings, self._make_state, journal, disk, self._random)
        self.serving = False
        """Whether clients are served here: this node leads and has applied all that came before its time."""
        self._wanted: list[Persist] = []
        self._proposed: dict[int, tuple[Command, list[Persist]]] = {}
        self._sequence = self._random.getrandbits(48) << 14
        self._ended = 0
        """Up to this sequence the broker that wanted something is gone: another one serves in its place, or nobody."""
        self._reads: dict[int, _Held] = {}
        self._last_token = 0
        self._due: dict[Timer, int] = {}
        self._peers: dict[ClientPeer, None] = {}
        """Who has asked something of us as the leader, and would wait for it in vain when another one leads."""
        self._broker_tick_at_ms = self._membership_at_ms = self._repair_at_ms = 0
        self._mending: list[Mending] = []
        self.changes = MembershipChanges(self, self._reply)
        self.begins_ring = False
        """Whether the group is to become the first of a ring, or to join one, as soon as this node leads it."""
        self.doors: tuple[str, ...] = ()
        """Nodes of the ring that it is to join, with all that it has."""
        self._unfit = ""

    def _make_state(self) -> State:
        """A new and empty state; whoever had the old one starts anew."""
        self.broker = Broker(self.broker.settings, new_machine(self.broker.settings))
        return BrokerState(self.broker.machine, self._identity.founders, self._answer)

    @property
    def state(self) -> BrokerState:
        """The state as it is applied here."""
        return cast(BrokerState, self.replica.state)

    @property
    def members(self) -> dict[int, Member]:
        """Who belongs to the group, as far as is applied here; before anything is, whom we were told of."""
        known = self.state.members or self._contacts
        nodes = self.replica.history.newest.membership.nodes
        return {number: member for number, member in known.items() if number in nodes or not nodes}

    @property
    def identity(self) -> Identity:
        """Who this node is."""
        return self._identity

    @property
    def number(self) -> int:
        """Which member this is."""
        return self._identity.number

    @property
    def voters(self) -> tuple[int, ...]:
        """Who decides, as far as is applied here."""
        return self.replica.history.newest.membership.voters

    @property
    def outgrown(self) -> bool:
        """Whether the group is in a ring now, which takes another engine."""
        return ring_of(self.state.machine) is not None

    def retire(self) -> None:
        if self.serving:
            self._stop_serving()

    def recover(self, now_ms: int = 0) -> int:
        founders = self._identity.founders
        founded = founding(tuple(each.number for each in founders), WINDOW) if founders else None
        count = self.replica.recover(now_ms, founded, self._identity.alone_until)
        self._after(now_ms)
        return count

    # Requests of clients.

    def receive(self, now_ms: int, peer: ClientPeer, frames: Sequence[Frame], user: str | None = None) -> None:
        self._now_ms = now_ms
        if frames and frames[0] == MARK:
            if user in (None, MATE_NAME):  # With keys, only who has the key of the members speaks as one.
                self._receive_mate(now_ms, frames)
            return
        super().receive(now_ms, peer, frames, user)

    def _take(self, received: ClientRequest) -> None:
        message, peer = received.message, received.peer
        try:
            check_right(self.broker.settings.admins, received.user, message)
        except Unauthorized as error:
            self._refuse(peer, message.request, error)
            return
        match message:
            case operators.AskMembers(request):
                self._reply(peer, self.changes.describe(request))
                return
            case messages.Shutdown():
                self._run(self.broker.handle(received))
                return
        if not self.serving:
            self._reply(peer, self._elsewhere(message.request))
            return
        match message:
            case operators.AddMember() | operators.RemoveMember():
                self._on_change_wanted(peer, message)
            case _:
                if len(self._peers) < PEERS_MAX:
                    self._peers[peer] = None
                effects = self.broker.handle(received)
                if isinstance(message, QUESTIONS) or any(map(_is_refusal, effects)):
                    self._confirm(received, effects)
                else:
                    self._run(effects)

    def _on_change_wanted(self, peer: ClientPeer, message: operators.AddMember | operators.RemoveMember) -> None:
        try:
            if isinstance(message, operators.AddMember):
                self.changes.want_added(peer, message)
            else:
                self.changes.want_removed(peer, message)
        except InvalidRequest as error:
            self._refuse(peer, message.request, error)

    def _confirm(self, received: ClientRequest, effects: list[Effect]) -> None:
        """Lets answers out once it is certain that we led when they were made."""
        commanded = [effect for effect in effects if not isinstance(effect, Persist)]
        self._run([effect for effect in effects if isinstance(effect, Persist)])
        if commanded:
            self._last_token += 1
            self._reads[self._last_token] = _Held(received, commanded)
            self.replica.handle(Requested(received.now_ms, Read(self._last_token)))

    def _reply(self, peer: ClientPeer, answer: Any) -> None:
        self.outgoing.append((peer, [codec.encode(answer)]))

    def _elsewhere(self, request: int) -> messages.Elsewhere:
        leader = self.members.get(self.replica.replica.leader or 0)
        known = leader is not None and leader.number != self._identity.number
        return messages.Elsewhere(request, leader.address if leader is not None and known else "", self._addresses())

    def _addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self.members.values())

    # What is to be agreed on.

    def _stage(self, effect: Persist) -> None:
        if not self._refuses(effect):
            self._wanted.append(effect)
            self.staged_bytes += staged_bytes_of(effect)

    def _roll(self) -> None:
        self.replica.roll()

    def _stage_carry(self, command: Carry, bodies: tuple[Frame, ...]) -> None:
        self.replica.stage_local(encode_command(command), bodies)

    def gather(self, now_ms: int) -> bool:
        """Proposes what is wanted, as much as may be under way at once."""
        replica = self.replica.replica
        bytes_max = self.journal.commit_bytes_max
        while self._wanted and self.serving and replica.has_room:
            count = size = 0
            while count < len(self._wanted) and size < bytes_max:
                size += staged_bytes_of(self._wanted[count])
                count += 1
            taken, self._wanted = self._wanted[:count], self._wanted[count:]
            self._sequence += 1
            command = Command("", self._sequence, pack(now_ms, taken))
            self._proposed[self._sequence] = (command, taken)
            self.replica.handle(Requested(now_ms, Propose(command)))
        self._after(now_ms)
        return bool(self.outgoing)

    def _answer(self, command: Command, address: int) -> bool:
        """Applies what this node has proposed, and answers for it."""
        proposed = self._proposed.pop(command.sequence, None)
        if proposed is None:
            return False
        if proposed[0] is not command or not self.serving or command.sequence <= self._ended:
            self._turn_away_all(proposed[1])  # It was decided here, and on this disk only after we had lost our place.
            return False
        time_ms, parts = unpack(command.body)
        for persist, part in zip(proposed[1], parts, strict=True):
            self.staged_bytes -= staged_bytes_of(persist)
            self._apply_own(persist, time_ms, address + part.bodies_at)
        return True

    def _apply_own(self, persist: Persist, time_ms: int, address: int) -> None:
        """Applies one command that this node has proposed."""
        self._run(self.broker.handle(Persisted(self._now_ms, persist.command, time_ms, address, persist.origin)))

    # The group commit.

    @property
    def has_staged(self) -> bool:
        return self.replica.has_staged

    @property
    def committing(self) -> bool:
        return self.replica.committing

    def begin_commit(self, now_ms: int) -> Commit:
        return self.replica.begin_commit(now_ms)

    def finish_commit(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.replica.finish_commit(now_ms)
        if self.journal.short_of_room != self._short_of_room:
            self._look_for_room()
        self._after(now_ms)

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        """A replica that cannot write cannot answer, and the others go on without it."""
        raise StorageError(f"This member of the group has to end ({error}): free some space, then start it again.")

    def conclude(self, now_ms: int) -> None:
        self.replica.write_memories(now_ms)

    # Time.

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        for timer, due_ms in list(self._due.items()):
            if now_ms >= due_ms and self._due.get(timer) == due_ms:
                del self._due[timer]
                self.replica.handle(TimerFired(now_ms, timer))
        self._after(now_ms)
        if now_ms >= self._broker_tick_at_ms:
            self._broker_tick_at_ms = now_ms + TICK_MS
            if self.serving:
                super().tick(now_ms)
            else:
                self.scrub(now_ms)
                if now_ms - self._retention_at_ms >= RETENTION_EVERY_MS:
                    self._retention_at_ms = now_ms
                    self._carry(self._segments())
                self._look_for_room()
        if now_ms >= self._repair_at_ms:
            self._repair_at_ms = now_ms + REPAIR_EVERY_MS
            self.replica.ask_again()
            self._give_up(now_ms)
        if self.serving and now_ms >= self._membership_at_ms:
            self._membership_at_ms = now_ms + MEMBERSHIP_EVERY_MS
            self.changes.tend(now_ms)
            if self.begins_ring:
                self._begin_ring()
        self._after(now_ms)

    # What is damaged.

    def _note_damage(self, damage: DamagedPlace) -> None:
        super()._note_damage(damage)
        self.replica.mend(damage.span)

    def _on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        """What is damaged here comes from another member, if one has it: whoever wants it has to wait that long."""
        if not self.replica.mend(damage.span):
            super()._on_damage(effect, damage)
        elif not places_of(effect):
            pass  # A message between nodes that gets lost: whoever waits for it asks again.
        elif isinstance(effect, Forward) and isinstance(effect.message, messages.Delivery):
            self._withhold(effect, damage, None)  # The stream stops there, so that nothing overtakes it.
            self._mending.append(Mending(self._now_ms + REPAIR_MS_MAX, effect, damage, True))
        else:
            self._mending.append(Mending(self._now_ms + REPAIR_MS_MAX, effect, damage, False))

    def _on_mended(self) -> None:
        """Something has come: all that waits is tried again."""
        moves, self.replica.repairs.moves = self.replica.repairs.moves, []
        mending, self._mending = self._mending, []
        self.broker.mended()

        def follow(place: Place) -> Place:
            address = place.address
            for move in moves:
                address = move.follow(address)
            return msgspec.structs.replace(place, address=address)

        self._run([with_places(each.effect, follow) for each in mending if not each.is_stream])

    def _give_up(self, now_ms: int) -> None:
        """Tells those who have waited long enough."""
        late = [each for each in self._mending if now_ms >= each.until_ms]
        self._mending = [each for each in self._mending if now_ms < each.until_ms]
        for each in late:
            super()._on_damage(each.effect, each.damage)

    # Between members.

    def _receive_mate(self, now_ms: int, frames: Sequence[Frame]) -> None:
        try:
            header = decode_message(frames)
        except ProtocolError:
            return  # Nobody who speaks so waits for an answer that could be understood.
        identity = self._identity
        if isinstance(header.message, Meet):
            answer = self.changes.on_meet(now_ms, header.message)
            self.outgoing.append((Mate(header.message.address), encode_message(answer)))
            return
        meant = header.group == identity.group and header.receiver == identity.number
        if meant and header.sender not in (0, identity.number) and not isinstance(header.message, Found | Known):
            self.changes.on_heard(now_ms, header.sender)
            self.replica.handle(Received(now_ms, header.sender, header.message, header.claim))
            self._after(now_ms)

    def _after(self, now_ms: int) -> None:
        """Does what the replica wants done, and what has become possible by it."""
        replica = self.replica
        timers, replica.timers = replica.timers, []
        for effect in timers:
            self._due.pop(effect.timer, None)
            if isinstance(effect, SetTimer):
                self._due[effect.timer] = now_ms + effect.delay_ms
        notifications, replica.notifications = replica.notifications, []
        for notification in notifications:
            match notification:
                case TurnedAway(Command() as command, _):
                    self._turn_away(command)
                case ReadReady(token, _):
                    held = self._reads.pop(token, None)
                    if held is not None:
                        self._run(held.effects)
                case ReadRefused(token, _):
                    held = self._reads.pop(token, None)
                    if held is not None:
                        self._reply(held.request.peer, self._elsewhere(held.request.message.request))
                case MembershipSettled(first_slot, _):
                    self.broker.members = self._addresses()
                    self.changes.on_settled(first_slot)
        self._check_serving()
        if self.serving and self.replica.repairs.moves:
            self._on_mended()
        if self.serving:
            self._run(self.broker.serve_streams(now_ms))
        outgoing, replica.outgoing = replica.outgoing, []
        for nodes, message in outgoing:
            for node in nodes:
                self._send_mate(node, message)

    def _send_mate(self, node: int, message: AnyMessage) -> None:
        member = self.state.members.get(node) or self._contacts.get(node)
        if member is None and isinstance(message, Fetch):
            member = self._anybody()
        if member is not None:
            group, number = self._identity.group, self._identity.number
            frames = encode_message(message, group, number, member.number, self.replica.witness.claim(member.number))
            self.outgoing.append((Mate(member.address), frames))

    def _anybody(self) -> Member | None:
        """Somebody who may have what only a leader has told us of that came to the group later than we know it."""
        others = {**self._contacts, **self.state.members}
        others.pop(self._identity.number, None)
        return self._random.choice(list(others.values())) if others else None

    def _check_serving(self) -> None:
        replica = self.replica
        ready = replica.replica.is_up_to_date and (self.serving or replica.applied == replica.replica.log.decided)
        if ready and not self.serving:
            self.serving = True
            self.broker = Broker(self.broker.settings, self.state.machine)
            self.broker.members = self._addresses()
            self.broker.damaged = self.damages.places
            self.broker.recovered()
        elif self.serving and not replica.replica.leads:
            self._stop_serving()

    def _stop_serving(self) -> None:
        """Somebody else leads, or nobody: whoever waits for us is told."""
        self.serving = False
        self._ended = self._sequence
        wanted, self._wanted = self._wanted, []
        self._turn_away_all(wanted)
        for held in self._reads.values():
            self._reply(held.request.peer, self._elsewhere(held.request.message.request))
        self._reads.clear()
        self.changes.give_up(self._elsewhere)
        for peer in self._peers:
            self._reply(peer, self._elsewhere(0))
        self._peers.clear()
        self._postponed.clear()
        self._mending.clear()
        self.broker = Broker(self.broker.settings, self.state.machine)

    def _turn_away(self, command: Command) -> None:
        proposed = self._proposed.pop(command.sequence, None)
        if proposed is not None:
            self._turn_away_all(proposed[1])

    def _turn_away_all(self, wanted: list[Persist]) -> None:
        """It may yet be agreed on. Whoever asked for it asks the next leader, under the same numbers."""
        for persist in wanted:
            self.staged_bytes -= staged_bytes_of(persist)
            message = getattr(persist.origin, "message", None)
            if message is not None and message.request:
                self._reply(persist.origin.peer, self._elsewhere(message.request))

    # Members.

    def _begin_ring(self) -> None:
        """Claims everything for the group, or brings it. From then on it is in a ring, which takes other engines on all
        members.
        """
        machine, doors = self.state.machine, self.doors
        unfit = unfit_to_join(machine) if doors else unfit_for_ring(machine)
        if unfit and unfit != self._unfit:
            _log.warning("tidings: %s", unfit)
        self._unfit = unfit
        if not unfit:
            self.begins_ring = False
            self._stage(Persist(Claim((), True, doors) if doors else Claim((WHOLE,))))


def _is_refusal(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, messages.Failed)

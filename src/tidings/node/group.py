"""The log of a broker that several nodes agree on.

    requests -> broker -> commands wanted -> gather: a value -> the replica has it agreed on
             -> decided and on this disk -> broker applies -> answers

What is to be durable is proposed, not just written; only the
node that leads serves clients, and the others tell them where to go (`NotLeader`). Streams, lanes and leases live on
the leader alone: a new one begins as a broker does after a restart, which clients know how to live with. What it
answers without having anything agreed on (a question, a refusal) waits until a majority has confirmed that it still
leads, so that one that was cut off or slept never speaks for a state that others have left behind.

Copying old messages forward, so that segments can go, is each node's own affair and not agreed on: addresses differ.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random
from typing import Protocol, cast

from tidings.errors import InvalidRequest, ProtocolError, StorageError, Unauthorized
from tidings.journal.checked import DamagedPlace
from tidings.journal.disk import LocalDisk
from tidings.journal.journal import Commit
from tidings.node.engine import TICK_MS, AnyEngine, staged_bytes_of
from tidings.node.founding import founding
from tidings.node.growth import unfit_for_ring, unfit_to_join
from tidings.node.identity import Identity, renumbered
from tidings.node.membership import MembershipChanges
from tidings.node.replica import ReplicaEngine
from tidings.node.replicated import BrokerState, new_machine, pack, unpack
from tidings.node.state import State
from tidings.node.waiting import WaitingAnswers
from tidings.protocols.broker import messages, operators
from tidings.protocols.broker.broker import Broker
from tidings.protocols.broker.commands import Carry, encode_command
from tidings.protocols.broker.rights import check_right
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.effects import Peer as ClientPeer
from tidings.protocols.events import Persisted
from tidings.protocols.events import Received as ClientRequest
from tidings.protocols.multipaxos.joining import Found, Known, Meet, Member
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    Fetch,
    MembershipConfirmed,
    ProposalRejected,
    Propose,
    ReadReady,
    ReadRefused,
    Received,
)
from tidings.protocols.multipaxos.values import Command
from tidings.protocols.ring.commands import Claim
from tidings.protocols.ring.key_ranges import WHOLE
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.stack import Requested, SetTimer, Timer, TimerFired
from tidings.settings import ReplicaSettings
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, REPLICA_PEER_NAME, ReplicaPeer, decode_message, encode_message

WINDOW = 64
"""Slots that may be open at once, in every group."""
REPLICA_TICK_MS = 10
REPAIR_EVERY_MS = 1_000
"""How often others are asked again for what is damaged here, or told that this node is back."""
MEMBERSHIP_EVERY_MS = 200
"""How often a leader looks for nodes that wait to vote or to be taken in."""
PEERS_MAX = 100_000
_log = logging.getLogger("tidings.node")


class RingHooks(Protocol):
    """What a node of a ring does for what its group is asked, and wants to be told of it."""

    def on_applied(self, persist: Persist) -> None:
        """A command that this node proposed is about to be applied."""

    def on_rejected(self, wanted: list[Persist]) -> None:
        """Commands that this node wanted are for the next leader."""

    def on_stopped_serving(self) -> None:
        """This node serves no longer, or starts over."""

    def take(self, received: ClientRequest) -> bool:
        """Answers what operators ask of a ring; False if it is something else."""

    def after(self, now_ms: int) -> None:
        """Something has happened in the group."""


class Group:
    """One member of a group, leading or following."""

    tick_ms = REPLICA_TICK_MS

    def __init__(
        self,
        engine: AnyEngine,
        replica_settings: ReplicaSettings,
        identity: Identity,
        disk: LocalDisk,
        random: Random,
    ) -> None:
        self._engine = engine
        self.identity = identity
        """Who this node is."""
        self._contacts = {member.number: member for member in identity.contacts}
        """Whom we were told of at first. Files of others may be older than that, and numbers are given only once."""
        self._random = random
        self.replica = ReplicaEngine(identity.number, replica_settings, self._make_state, engine.journal, disk, random)
        self.serving = False
        """Whether clients are served here: this node leads and has applied all that came before its time."""
        self.staged_bytes = 0
        self._wanted: list[Persist] = []
        self._proposed: dict[int, tuple[Command, list[Persist]]] = {}
        self._sequence = self._random.getrandbits(48) << 14
        self._ended = 0
        """Up to this sequence the broker that wanted something is gone: another one serves in its place, or nobody."""
        self.waiting = WaitingAnswers(engine, self.replica)
        self._due: dict[Timer, int] = {}
        self._peers: dict[ClientPeer, None] = {}
        """Who has asked something of us as the leader, and would wait for it in vain when another one leads."""
        self._house_at_ms = self._membership_at_ms = self._repair_at_ms = 0
        self.changes = MembershipChanges(self, replica_settings, engine.reply)
        self.begins_ring = False
        """Whether the group is to become the first of a ring, or to join one, as soon as this node leads it."""
        self.doors: tuple[str, ...] = ()
        """Nodes of the ring that it is to join, with all that it has."""
        self._unfit = ""
        self.becomes: Identity | None = None
        """Who this node is from now on: it was removed because it was silent, and has been taken back."""

    @property
    def _ring(self) -> RingHooks | None:
        ring: RingHooks | None = self._engine.ring
        return ring

    def _make_state(self) -> State:
        """A new and empty state; the one who had the old one starts again."""
        engine = self._engine
        engine.broker = Broker(engine.settings, new_machine(engine.settings))
        return BrokerState(engine.broker.machine, self.identity.founders, self._answer)

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
    def number(self) -> int:
        """Which member this is."""
        return self.identity.number

    @property
    def voters(self) -> tuple[int, ...]:
        """Who decides, as far as is applied here."""
        return self.replica.history.newest.membership.voters

    @property
    def outgrown(self) -> bool:
        """Whether the group is in a ring now, or this node has another number, which takes another engine."""
        return self.becomes is not None or (self._ring is None and ring_of(self.state.machine) is not None)

    def retire(self) -> None:
        if self.serving:
            self._stop_serving()

    def recover(self, now_ms: int) -> int:
        founders = self.identity.founders
        founded = founding(tuple(each.number for each in founders), WINDOW) if founders else None
        count = self.replica.recover(now_ms, founded, self.identity.alone_until, *self.identity.formerly)
        self._after(now_ms)
        return count

    # Requests of clients.

    def hear(self, now_ms: int, peer: ClientPeer, frames: Sequence[Frame], user: str | None) -> bool:
        if not frames or frames[0] != MARK:
            return False
        if user in (None, REPLICA_PEER_NAME):  # With keys, only who has the key of the members speaks as one.
            self._receive_peer(now_ms, frames)
        return True

    def take(self, received: ClientRequest) -> None:
        if self._ring is None or not self._ring.take(received):
            self._take(received)

    def _take(self, received: ClientRequest) -> None:
        engine, message, peer = self._engine, received.message, received.peer
        try:
            check_right(engine.settings.admins, received.user, message)
        except Unauthorized as error:
            engine.refuse(peer, message.request, error)
            return
        match message:
            case operators.AskMembers(request):
                engine.reply(peer, self.changes.describe(request))
                return
            case messages.Shutdown():
                engine.run(engine.broker.handle(received))
                return
        if not self.serving:
            engine.reply(peer, self._not_leader(message.request))
            return
        match message:
            case operators.AddMember() | operators.RemoveMember():
                self._on_change_wanted(peer, message)
            case _:
                if len(self._peers) < PEERS_MAX:
                    self._peers[peer] = None
                self.waiting.let_out(received, engine.broker.handle(received))

    def _on_change_wanted(self, peer: ClientPeer, message: operators.AddMember | operators.RemoveMember) -> None:
        try:
            if isinstance(message, operators.AddMember):
                self.changes.want_added(peer, message)
            else:
                self.changes.want_removed(peer, message)
        except InvalidRequest as error:
            self._engine.refuse(peer, message.request, error)

    def _not_leader(self, request: int) -> messages.NotLeader:
        leader = self.members.get(self.replica.replica.leader or 0)
        known = leader is not None and leader.number != self.number
        return messages.NotLeader(request, leader.address if leader is not None and known else "", self.addresses())

    def addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self.members.values())

    # What is to be agreed on.

    def stage(self, effect: Persist) -> None:
        if not self._engine.refuses(effect):
            self._wanted.append(effect)
            self.staged_bytes += staged_bytes_of(effect)

    def roll(self) -> None:
        self.replica.roll()

    def stage_carry(self, command: Carry, bodies: tuple[Frame, ...]) -> None:
        self.replica.stage_local(encode_command(command), bodies)

    def gather(self, now_ms: int) -> bool:
        """Proposes what is wanted, as much as may be under way at once."""
        replica = self.replica.replica
        bytes_max = self._engine.journal.commit_bytes_max
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
        return bool(self._engine.outgoing)

    def _answer(self, command: Command, address: int) -> bool:
        """Applies what this node has proposed, and answers for it."""
        proposed = self._proposed.pop(command.sequence, None)
        if proposed is None:
            return False
        if proposed[0] is not command or not self.serving or command.sequence <= self._ended:
            self._turn_away_all(proposed[1])  # It was decided here, and on this disk only after we had lost our place.
            return False
        engine = self._engine
        time_ms, parts = unpack(command.body)
        for persist, part in zip(proposed[1], parts, strict=True):
            self.staged_bytes -= staged_bytes_of(persist)
            if self._ring is not None:
                self._ring.on_applied(persist)
            body_address = address + part.bodies_at
            persisted = Persisted(engine.now_ms, persist.command, time_ms, body_address, persist.origin)
            engine.run(engine.broker.handle(persisted))
        return True

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
        self.replica.finish_commit(now_ms)
        self._engine.notice_room()
        self._after(now_ms)

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        """A replica that cannot write cannot answer, and the others go on without it."""
        raise StorageError(f"This member of the group must stop ({error}): free some space, then restart it.")

    def conclude(self, now_ms: int) -> None:
        self.replica.write_memories(now_ms)

    # Time.

    def tick(self, now_ms: int) -> None:
        for timer, due_ms in list(self._due.items()):
            if now_ms >= due_ms and self._due.get(timer) == due_ms:
                del self._due[timer]
                self.replica.handle(TimerFired(now_ms, timer))
        self._after(now_ms)
        if now_ms >= self._house_at_ms:
            self._house_at_ms = now_ms + TICK_MS
            self._engine.keep_house(now_ms, self.serving)
        if now_ms >= self._repair_at_ms:
            self._repair_at_ms = now_ms + REPAIR_EVERY_MS
            self.replica.ask_again()
            self.waiting.give_up(now_ms)
            self._greet()
        if self.serving and now_ms >= self._membership_at_ms:
            self._membership_at_ms = now_ms + MEMBERSHIP_EVERY_MS
            self.changes.tend(now_ms)
            if self.begins_ring:
                self._begin_ring()
        self._after(now_ms)

    def _greet(self) -> None:
        greeting = self.changes.greeting()
        if greeting is not None:
            for member in self.members.values():
                self._engine.send(ReplicaPeer(member.address), encode_message(greeting))

    # What is damaged.

    def on_damage_noted(self, damage: DamagedPlace) -> None:
        self.replica.mend(damage.span)

    def on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        self.waiting.on_damage(effect, damage)

    # Between members.

    def _receive_peer(self, now_ms: int, frames: Sequence[Frame]) -> None:
        try:
            header = decode_message(frames)
        except ProtocolError:
            return  # Nobody who speaks so waits for an answer that could be understood.
        identity = self.identity
        if isinstance(header.message, Found):
            self.becomes = self.becomes or renumbered(identity, header.message)
        if isinstance(header.message, Meet):
            answer = self.changes.on_meet(now_ms, header.message)
            self._engine.send(ReplicaPeer(header.message.address), encode_message(answer))
            return
        meant = header.group == identity.group and header.receiver == identity.number
        if meant and header.sender not in (0, identity.number) and not isinstance(header.message, Found | Known):
            self.changes.on_heard(now_ms, header.sender)
            self.replica.handle(Received(now_ms, header.sender, header.message, header.claim))
            self._after(now_ms)

    def _after(self, now_ms: int) -> None:
        """Does what the replica wants done, and what has become possible by it."""
        self._do_wanted(now_ms)
        if self._ring is not None:
            self._ring.after(now_ms)

    def _do_wanted(self, now_ms: int) -> None:
        engine, replica = self._engine, self.replica
        timers, replica.timers = replica.timers, []
        for effect in timers:
            self._due.pop(effect.timer, None)
            if isinstance(effect, SetTimer):
                self._due[effect.timer] = now_ms + effect.delay_ms
        if self.serving and replica.repairs.moves:  # Before an answer is let out that would look where it lay.
            self.waiting.on_mended()
        notifications, replica.notifications = replica.notifications, []
        for notification in notifications:
            match notification:
                case ProposalRejected(Command() as command, _):
                    self._turn_away(command)
                case ReadReady(token, _):
                    self.waiting.on_confirmed(token)
                case ReadRefused(token, _):
                    self.waiting.on_refused(token, self._not_leader)
                case MembershipConfirmed(first_slot, _):
                    engine.broker.members = self.addresses()
                    self.changes.on_confirmed(first_slot)
        self._check_serving()
        if self.serving:
            engine.run(engine.broker.serve_streams(now_ms))
        outgoing, replica.outgoing = replica.outgoing, []
        for nodes, message in outgoing:
            for node in nodes:
                self._send_peer(node, message)

    def _send_peer(self, node: int, message: AnyMessage) -> None:
        member = self.state.members.get(node) or self._contacts.get(node)
        if member is None and isinstance(message, Fetch):
            member = self._anybody()
        if member is not None:
            group, number = self.identity.group, self.number
            frames = encode_message(message, group, number, member.number, self.replica.witness.claim(member.number))
            self._engine.send(ReplicaPeer(member.address), frames)

    def _anybody(self) -> Member | None:
        """Somebody who may have what only a leader has told us of that came to the group later than we know it."""
        others = {**self._contacts, **self.state.members}
        others.pop(self.number, None)
        return self._random.choice(list(others.values())) if others else None

    def _check_serving(self) -> None:
        replica = self.replica
        ready = replica.replica.is_up_to_date and (self.serving or replica.applied == replica.replica.log.decided)
        if ready and not self.serving:
            self.serving = True
            engine = self._engine
            engine.broker = Broker(engine.settings, self.state.machine)
            engine.broker.members = self.addresses()
            engine.broker.damaged = engine.damages.places
            engine.broker.recovered()
        elif self.serving and not replica.replica.leads:
            self._stop_serving()

    def _stop_serving(self) -> None:
        """Somebody else leads, or nobody: anyone who waits for us is told."""
        self.serving = False
        self._ended = self._sequence
        wanted, self._wanted = self._wanted, []
        self._turn_away_all(wanted)
        self.waiting.turn_away(self._not_leader)
        self.changes.give_up(self._not_leader)
        for peer in self._peers:
            self._engine.reply(peer, self._not_leader(0))
        self._peers.clear()
        self._engine.forget_postponed()
        self._engine.broker = Broker(self._engine.settings, self.state.machine)
        if self._ring is not None:
            self._ring.on_stopped_serving()

    def start_over(self) -> None:
        """Every client is told to come again, as after a restart: what is owned here has changed."""
        self._stop_serving()
        self._check_serving()

    def _turn_away(self, command: Command) -> None:
        proposed = self._proposed.pop(command.sequence, None)
        if proposed is not None:
            self._turn_away_all(proposed[1])

    def _turn_away_all(self, wanted: list[Persist]) -> None:
        """It may yet be agreed on. The one who asked for it asks the next leader, under the same numbers."""
        if self._ring is not None:
            self._ring.on_rejected(wanted)
        for persist in wanted:
            self.staged_bytes -= staged_bytes_of(persist)
            message = getattr(persist.origin, "message", None)
            if message is not None and message.request:
                self._engine.reply(persist.origin.peer, self._not_leader(message.request))

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
            self.stage(Persist(Claim((), True, doors) if doors else Claim((WHOLE,))))

"""Who comes to a replica group and who leaves it, as the node that leads it sees to it.

Nodes ask to join by saying who they are, again and again (`Meet`); operators say whom to take in or out, and are
answered when that is done. The group changes by one node at a time: one that comes listens first, and votes when it has
caught up. A node with a new disk at the address of a member that is silent takes that member's place by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tidings.errors import InvalidRequest
from tidings.node.growth import nobody_joins
from tidings.node.identity import Identity
from tidings.node.replica import ReplicaEngine
from tidings.node.replicated import BrokerState
from tidings.protocols.broker import messages, operators
from tidings.protocols.effects import Peer
from tidings.protocols.multipaxos.joining import Found, Known, Meet, Member
from tidings.protocols.multipaxos.messages import ChangeMembership
from tidings.protocols.multipaxos.values import Add, Change, Promote, Remove
from tidings.protocols.stack import Requested

CANDIDATES_MAX = 16
CANDIDATE_SILENCE_MS_MAX = 3_000
MEMBER_SILENCE_MS_MIN = 1_000


class _Candidate(NamedTuple):
    disk: bytes
    heard_at_ms: int


class Host(Protocol):
    """What this needs of the member that it belongs to."""

    replica: ReplicaEngine

    @property
    def identity(self) -> Identity:
        """Who this node is."""

    @property
    def members(self) -> dict[int, Member]:
        """Who belongs to the group, as far as is applied here."""

    @property
    def state(self) -> BrokerState:
        """The state as it is applied here."""


class MembershipChanges:
    """Those who ask to join, and what operators want; only a leader acts on it."""

    def __init__(self, host: Host, reply: Callable[[Peer, Any], None]) -> None:
        self._host = host
        self._reply = reply
        self._candidates: dict[str, _Candidate] = {}
        """Who asks to be taken in, by address."""
        self._heard_at_ms: dict[int, int] = {}
        """When each member last said something."""
        self._to_add: dict[str, list[tuple[Peer, int]]] = {}
        self._to_remove: dict[int, list[tuple[Peer, int]]] = {}
        self._confirmed_slot = 0

    @property
    def is_confirmed(self) -> bool:
        """Whether a leader knows that the present voters are enough, and no earlier ones are needed."""
        return self._confirmed_slot >= self._host.replica.history.newest.first_slot

    @property
    def _voters(self) -> tuple[int, ...]:
        return self._host.replica.history.newest.membership.voters

    def _addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self._host.members.values())

    # Nodes.

    def on_heard(self, now_ms: int, number: int) -> None:
        """A member has said something."""
        if number in self._host.state.members:
            self._heard_at_ms[number] = now_ms

    def on_meet(self, now_ms: int, meet: Meet) -> Found | Known:
        """A node says who it is; what it is told."""
        identity, members = self._host.identity, self._host.members
        known = next((member for member in members.values() if member.disk == meet.disk), None)
        if known is not None:
            founders = identity.founders if known in identity.founders else ()
            return Found(identity.group, known.number, founders, tuple(members.values()))
        if meet.address in self._candidates or len(self._candidates) < CANDIDATES_MAX:
            self._candidates[meet.address] = _Candidate(meet.disk, now_ms)
        return Known(self._addresses())

    def tend(self, now_ms: int) -> None:
        """Takes in who is wanted, replaces who has lost a disk, and lets those vote who have caught up."""
        replica = self._host.replica
        disks = {member.disk for member in self._host.members.values()}
        self._candidates = {
            address: candidate
            for address, candidate in self._candidates.items()
            if now_ms - candidate.heard_at_ms < CANDIDATE_SILENCE_MS_MAX and candidate.disk not in disks
        }
        if replica.history.is_open(replica.applied) or replica.replica.log.history.is_open(replica.applied):
            return
        change = self._next_change(now_ms)
        if change is not None:
            replica.handle(Requested(now_ms, ChangeMembership(change)))
        self.answer_operators()

    def _next_change(self, now_ms: int) -> Change | None:
        state, membership = self._host.state, self._host.replica.history.newest.membership
        change: Change | None = None
        for address, candidate in self._candidates.items():
            holder = next((member for member in self._host.members.values() if member.address == address), None)
            if holder is not None:
                # A member that is still heard has not lost its disk: what speaks in its place is a late message.
                if now_ms - self._heard_at_ms.get(holder.number, 0) > MEMBER_SILENCE_MS_MIN:
                    change = Remove(holder.number, candidate.disk)
            elif address in self._to_add or state.heirs.get(address) == candidate.disk:
                change = Add(membership.newest + 1, address, candidate.disk)
        unwanted = [number for number in self._to_remove if number in membership.nodes]
        if change is None and unwanted:
            change = Remove(unwanted[0])
        if change is None:
            is_caught_up = self._host.replica.replica.is_caught_up
            change = next((Promote(number) for number in membership.listeners if is_caught_up(number)), None)
        return change

    def on_confirmed(self, first_slot: int) -> None:
        """The group that was decided on in this slot is enough by itself."""
        self._confirmed_slot = first_slot
        self.answer_operators()

    # Operators.

    def want_added(self, peer: Peer, message: operators.AddMember) -> None:
        address = message.address
        if address not in self._addresses() and address not in self._candidates:
            raise InvalidRequest(nobody_joins(address, ",".join(self._addresses())))
        self._to_add.setdefault(address, []).append((peer, message.request))
        self.answer_operators()

    def want_removed(self, peer: Peer, message: operators.RemoveMember) -> None:
        # Also one who has left: an operator who asks again, another leader, wants to hear that it is done.
        known = (*self._host.members.values(), *self._host.state.members.values())
        member = next((each for each in known if message.member in (str(each.number), each.address)), None)
        if member is None:
            raise InvalidRequest(f"The group has no member {message.member}: see `tidings cluster status`.")
        if self._voters == (member.number,):
            raise InvalidRequest("The last voter cannot be removed: stop it instead.")
        self._to_remove.setdefault(member.number, []).append((peer, message.request))

    def answer_operators(self) -> None:
        """Tells those who wanted a change that it has come to its end."""
        if not self.is_confirmed:
            return
        by_address = {member.address: member.number for member in self._host.members.values()}
        for address in [each for each in self._to_add if by_address.get(each) in self._voters]:
            self._tell(self._to_add.pop(address))
        nodes = self._host.replica.history.newest.membership.nodes
        for number in [each for each in self._to_remove if each not in nodes]:
            self._tell(self._to_remove.pop(number))

    def _tell(self, waiting: list[tuple[Peer, int]]) -> None:
        for peer, request in waiting:
            self._reply(peer, self.describe(request))

    def give_up(self, not_leader: Callable[[int], messages.NotLeader]) -> None:
        """Another node leads now, or nobody: operators are told to ask that one."""
        for waiting in (*self._to_add.values(), *self._to_remove.values()):
            for peer, request in waiting:
                self._reply(peer, not_leader(request))
        self._to_add, self._to_remove = {}, {}

    def describe(self, request: int) -> operators.Members:
        """The group, as far as is known here."""
        identity, replica = self._host.identity, self._host.replica
        rows = tuple(
            operators.MemberInfo(
                member.number,
                member.address,
                "voter" if member.number in self._voters else "listener",
                member.number == replica.replica.leader,
            )
            for member in self._host.members.values()
        )
        return operators.Members(request, identity.group.hex(), identity.number, replica.applied, rows)

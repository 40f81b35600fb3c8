"""Who comes to a replica group and who leaves it, as the node that leads it sees to it.

Nodes ask to join by saying who they are, again and again (`Meet`); operators say whom to take in or out, and are
answered when that is done. The group changes by one node at a time: one that comes listens first, and votes when it has
caught up. A node with a new disk at the address of a member that is silent takes that member's place by itself.

With `replica_gone_ms` set, a voter that has been silent for that long is removed, if the rest is a safe majority: at
least `replicas_min` voters, more than half of which follow this leader now. To be heard is not enough: a member that
starts speaks before it votes. And what is proposed cannot be withdrawn: if the rest cannot decide it, the member that
was silent does when it is back, by its last vote, and leaves the others to themselves. When one that was removed speaks
again it is taken back, with its folder, under a new number: a number that was removed never votes again.
"""

from __future__ import annotations

import logging
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
from tidings.protocols.multipaxos.values import Add, Ballot, Change, Promote, Remove
from tidings.protocols.stack import Requested
from tidings.settings import ReplicaSettings

CANDIDATES_MAX = 16
CANDIDATE_SILENCE_MS_MAX = 3_000
MEMBER_SILENCE_MS_MIN = 1_000
_log = logging.getLogger("tidings.node")


class _Candidate(NamedTuple):
    disk: bytes
    heard_at_ms: int


class _Question(NamedTuple):
    """Whether a group can go on without a silent member: the others say so by following the leader in a round."""

    silent: int
    ballot: Ballot
    round: int
    """The first round of the ballot that began after the member was found to be silent."""


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

    def __init__(self, host: Host, settings: ReplicaSettings, reply: Callable[[Peer, Any], None]) -> None:
        self._host = host
        self.settings = settings
        self._reply = reply
        self._candidates: dict[str, _Candidate] = {}
        """Who asks to be taken in, by address."""
        self._heard_at_ms: dict[int, int] = {}
        """When each member last said something."""
        self._tended_at_ms = self._listens_since_ms = 0
        """When this node last looked, as the leader; and since when it has done so without a break."""
        self._asked: _Question | None = None
        """What was asked when this node last looked, and is not answered yet."""
        self._to_add: dict[str, list[tuple[Peer, int]]] = {}
        self._to_remove: dict[int, list[tuple[Peer, int]]] = {}
        self._confirmed_slot = 0

    @property
    def is_confirmed(self) -> bool:
        """Whether a leader knows that the present voters are enough, and no earlier ones are needed."""
        return self._confirmed_slot >= self._host.replica.history.newest.first_slot

    @property
    def is_asking(self) -> bool:
        """Whether a member is about to be removed because it is silent, once the others say that they are enough."""
        return self._asked is not None

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

    def greeting(self) -> Meet | None:
        """What this node says if it was removed because it was silent, until it is told its new number."""
        host, own = self._host, self._host.identity
        member = host.state.members.get(own.number)
        if member is None or own.number in host.members:
            return None
        is_awaited = host.state.heirs.get(member.address) == own.disk
        if is_awaited or any(each.disk == own.disk for each in host.members.values()):
            return Meet(member.address, own.disk, ())
        return None

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
        if not 0 <= now_ms - self._tended_at_ms <= (self.settings.replica_gone_ms or 0) // 2:
            self._listens_since_ms = now_ms  # It did not lead, or stood still: it cannot tell who was silent meanwhile.
        self._tended_at_ms = now_ms
        asked, self._asked = self._asked, None
        disks = {member.disk for member in self._host.members.values()}
        self._candidates = {
            address: candidate
            for address, candidate in self._candidates.items()
            if now_ms - candidate.heard_at_ms < CANDIDATE_SILENCE_MS_MAX and candidate.disk not in disks
        }
        if replica.history.is_open(replica.applied) or replica.replica.log.history.is_open(replica.applied):
            return
        if replica.replica.is_changing:
            return  # What is wanted next was to be judged by another membership.
        change = self._next_change(now_ms) or self._without_silent(now_ms, asked)
        if change is not None:
            replica.handle(Requested(now_ms, ChangeMembership(change)))
        self.answer_operators()

    def _next_change(self, now_ms: int) -> Change | None:
        membership = self._host.replica.history.newest.membership
        change: Change | None = None
        for address, candidate in self._candidates.items():
            holder = next((member for member in self._host.members.values() if member.address == address), None)
            if holder is not None:
                # A member that is still heard has not lost its disk: what speaks in its place is a late message.
                if now_ms - self._heard_at_ms.get(holder.number, 0) > MEMBER_SILENCE_MS_MIN:
                    change = Remove(holder.number, candidate.disk)
            elif address in self._to_add or self._is_welcome(address, candidate.disk):
                change = Add(membership.newest + 1, address, candidate.disk)
        unwanted = [number for number in self._to_remove if number in membership.nodes]
        if change is None and unwanted:
            change = Remove(unwanted[0])
        if change is None:
            is_caught_up = self._host.replica.replica.is_caught_up
            change = next((Promote(number) for number in membership.listeners if is_caught_up(number)), None)
        return change

    def _is_welcome(self, address: str, disk: bytes) -> bool:
        """Whether a disk comes in the place of a member that was removed: of one that was silent, any disk."""
        state = self._host.state
        heir = state.heirs.get(address)
        return heir is not None and (heir == disk or any(each.disk == heir for each in state.members.values()))

    def _without_silent(self, now_ms: int, asked: _Question | None) -> Remove | None:
        """Removes the voter that has been silent longest, if it is gone, and if that is safe."""
        gone_ms = self.settings.replica_gone_ms
        if gone_ms is None or not self.is_confirmed:
            return None
        since_ms, own = self._listens_since_ms, self._host.identity.number
        silences_ms = {each: now_ms - max(self._heard_at_ms.get(each, 0), since_ms) for each in self._voters}
        silences_ms[own] = 0
        silent = max(silences_ms, key=lambda each: silences_ms[each])
        if silences_ms[silent] <= gone_ms or not self._is_safe_without(silent, asked):
            return None
        member = self._host.members[silent]
        _log.warning(
            "tidings: member %s at %s has been silent for %s s and is removed; it is taken back when it speaks again.",
            *(silent, member.address, silences_ms[silent] // 1_000),
        )
        return Remove(silent, member.disk)

    def _is_safe_without(self, silent: int, asked: _Question | None) -> bool:
        """Whether enough voters are left, and more than half of them have followed since this was first asked."""
        rest = [each for each in self._voters if each != silent]
        if len(rest) < self.settings.replicas_min:
            return False
        replica = self._host.replica.replica
        if asked is None or (asked.silent, asked.ballot) != (silent, replica.leader_ballot):
            asked = _Question(silent, replica.leader_ballot, replica.next_round)
        follow = replica.answered(asked.round)
        if 2 * sum(each in follow for each in rest) > len(rest):
            return True
        self._asked = asked
        return False

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
            raise InvalidRequest(f"The group has no member {message.member}: `tidings cluster` lists them.")
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

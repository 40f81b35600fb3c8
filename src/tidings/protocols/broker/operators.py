"""What the operators of a replica group, and of a ring of such groups, say to its nodes."""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.envelope import Answer, Request
from tidings.protocols.fields import Name, Several


class AskMembers(Request, frozen=True, tag="members"):
    """Who belongs to the replica group of this node? Every member answers, as far as it knows."""


class AddMember(Request, frozen=True, tag="add-member"):
    """Takes the node at an address into the group, which has asked to join; answered when it votes."""

    address: Name


class RemoveMember(Request, frozen=True, tag="remove-member"):
    """Takes a member out of the group, named by its number or its address; answered when it may be switched off."""

    member: Name


class MemberInfo(msgspec.Struct, frozen=True, array_like=True):
    """A member of a replica group. `role` is voter or listener."""

    number: int
    address: str
    role: str
    leads: bool


class Members(Answer, frozen=True, tag="members"):
    """The members of a replica group, as the node with this number knows them after so many slots of its log."""

    group: str
    number: int
    applied: int
    members: tuple[MemberInfo, ...]


class AskRing(Request, frozen=True, tag="ring"):
    """Which groups does the ring have? Every node answers, as far as it knows."""


class AskOwner(Request, frozen=True, tag="owner"):
    """Where does a topic lie, and which group owns it? Every node answers, as far as it knows."""

    topic: Name


class LeaveRing(Request, frozen=True, tag="leave-ring"):
    """The group of this node is to give all its topics to others; answered by its leader, when that is done."""


class AskHeld(Request, frozen=True, tag="held"):
    """Which topics does the group of this node have, or remember, at these points? Answered by its leader."""

    points: Several[bytes]


class RingGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group of a ring, as a node knows it."""

    group: str
    members: tuple[str, ...]
    leader: str
    """"" if nobody is known to lead."""
    ranges: Several[tuple[bytes, bytes]]
    """What it owns: after one point, up to and with another."""
    left: bool


class Ring(Answer, frozen=True, tag="ring"):
    """The groups that a node knows, and how many topics its own group owns."""

    node: str
    group: str
    topics: int
    groups: tuple[RingGroup, ...]
    dissemination: str = ""
    """How this node hands bodies on; "" if it is older than that question."""


class Owner(Answer, frozen=True, tag="owner"):
    """Where a topic lies on the circle, and who owns it there; "" if that has to be looked for first: ask again."""

    topic: str
    point: str
    group: str
    leader: str
    members: tuple[str, ...]


class Held(Answer, frozen=True, tag="held"):
    """Some topics, if there are any."""

    topics: tuple[str, ...]


class RingLeft(Answer, frozen=True, tag="ring-left"):
    """The group owns nothing any more, and may be switched off."""


OperatorRequest = AskMembers | AddMember | RemoveMember | AskRing | AskOwner | AskHeld | LeaveRing
OperatorAnswer = Members | Ring | Owner | Held | RingLeft

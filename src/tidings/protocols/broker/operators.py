"""What the operators of a replica group say to its members."""

from __future__ import annotations

import msgspec

from tidings.protocols.broker.envelope import Answer, Request


class AskMembers(Request, frozen=True, tag="members"):
    """Who belongs to the replica group of this node? Every member answers, as far as it knows."""


class AddMember(Request, frozen=True, tag="add-member"):
    """Takes the node at an address into the group, which has asked to join; answered when it votes."""

    address: str


class RemoveMember(Request, frozen=True, tag="remove-member"):
    """Takes a member out of the group, named by its number or its address; answered when it may be switched off."""

    member: str


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


OperatorRequest = AskMembers | AddMember | RemoveMember

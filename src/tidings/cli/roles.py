"""What a server is on its folder: alone, a member of a group, a node of a ring.

A folder that has a role keeps it, unless the options have it grow: `--group` with its own address makes a group of a
broker, `--ring` a ring of either, `--join` a group of a ring. Other options that contradict a role are refused. A new
folder gets the role that the options name. `--into` and `--join` name only an address: what is there decides.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tidings.admin.asking import ANSWER_SECONDS, is_in_ring
from tidings.errors import InvalidRequest
from tidings.journal.folder import BROKER, MEMBER, RING, role_of, wrong_role
from tidings.settings import GroupSettings, NodeSettings, RingSettings


def decide(
    data: Path | None, begins: bool, group: GroupSettings, ring: RingSettings, node: NodeSettings
) -> tuple[str, GroupSettings]:
    """The role of a server, and where its group is; InvalidRequest if its folder has another role.

    `begins` says that a ring is to begin here.
    """
    contacts, names_group, keys = ring.contacts, bool(group.group or group.join), node.keys
    if data is None:  # The journal is at a storage server.
        return RING if begins or contacts else MEMBER if names_group else BROKER, group
    found = role_of(data)
    if found is None:
        own = group.advertise or node.bind
        if {own} in (set(contacts), set(group.join)):
            raise InvalidRequest(f"{own} is the address of this node itself: name another node that it can ask.")
        if begins or (contacts and names_group):
            return RING, group
        if not contacts and not group.join:
            return MEMBER if group.group else BROKER, group
        if is_in_ring(contacts or group.join, keys, takes_alone=not contacts):
            return RING, group
        return MEMBER, taken_in(group, contacts) if contacts else group
    if not (begins or contacts or names_group):
        return found, group
    if begins and not group.join:
        return RING, group
    if found == BROKER and contacts and not group.join:
        if group.group:
            check_founders(data, group)
        if is_in_ring(contacts, keys):
            return RING, group
        raise InvalidRequest(f"{', '.join(contacts)} is not in a ring: start its nodes with --ring first.")
    if found == BROKER and group.group and not contacts:
        check_founders(data, group)
        return MEMBER, group
    if found == RING and (begins or contacts or group.join):
        return RING, group
    if found == MEMBER and not begins:
        if not contacts:
            return MEMBER, group
        if not group.join and is_in_ring(contacts, keys, ANSWER_SECONDS):
            return RING, group
        if not names_group:
            return MEMBER, taken_in(group, contacts)
    raise wrong_role(data, found)


def check_founders(data: Path, group: GroupSettings) -> None:
    """InvalidRequest if a broker alone is to found a group with others, which would not have what it has."""
    if len(group.group) > 1:
        raise InvalidRequest(
            f"{data} belongs to a broker alone, and the other founders would not have its messages: start it as "
            "before, start the others with --into and its address, then `tidings cluster add` each of them."
        )


def taken_in(group: GroupSettings, contacts: tuple[str, ...]) -> GroupSettings:
    """What `serve --join` meant before it ran rings: a group that is to take this node in. Goes in the next release."""
    instead = f"write `--into {','.join(contacts)}` for a group"
    print(f"tidings: {instead}; from the next release on, `--join` is only for rings.", file=sys.stderr, flush=True)
    return msgspec.structs.replace(group, join=contacts)

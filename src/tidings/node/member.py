"""How a node that is to be a member of a group finds out who it is."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tidings.errors import InvalidRequest, ProtocolError
from tidings.node.identity import MEET_EVERY_MS, Identity, Newcomer
from tidings.protocols.broker import messages
from tidings.settings import GroupSettings
from tidings.transport.replica_peers import ReplicaRouter
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, REPLICA_PEER_NAME, ReplicaPeer, decode_message, encode_message


def check_told(identity: Identity, group: GroupSettings, address: str) -> None:
    """Refuses settings that contradict what a folder says of its member: the others know it by that alone."""
    known = {member.number: member.address for member in (*identity.contacts, *identity.founders)}
    own = known.get(identity.number, address)
    if own != address:
        raise InvalidRequest(
            f"This folder belongs to the member at {own}, and this node is {address}: bind that address, or pass "
            "--advertise if it is reached there."
        )
    founders = {member.address for member in identity.founders}
    if group.group and set(group.group) != founders:
        founded = f"was founded by {','.join(sorted(founders))}" if founders else "was joined later"
        raise InvalidRequest(
            f"This folder belongs to a group that {founded}, and not to --group {','.join(group.group)}: omit --group, "
            "since a member knows its group, or name another folder."
        )


def founders_of(group: GroupSettings, address: str, founds_alone: bool, is_new: bool) -> tuple[str, ...]:
    """Who founds the group of a node; nobody, if it has one or is to be taken into one. One that names no founders is a
    group of one if it `founds_alone`."""
    if not is_new:
        return ()
    if not (group.group or group.join or founds_alone):
        raise InvalidRequest(
            "This folder belongs to a node that has not met its group yet: start it with the flags of the first time."
        )
    if group.group and address not in group.group:
        raise InvalidRequest(
            f"This node is {address}, which is not in --group {','.join(group.group)}: bind one of these addresses, or "
            "pass the right one to --advertise."
        )
    return group.group or (() if group.join else (address,))


def meet(newcomer: Newcomer, router: ReplicaRouter, clock: Callable[[], int]) -> Identity:
    """Talks to the others until it is clear who this node is."""
    newcomer.found_alone()
    greet_at_ms, trouble = clock(), ""
    while newcomer.identity is None:
        outgoing: list[tuple[ReplicaPeer | bytes | tuple[bytes], list[Frame]]] = []
        if clock() >= greet_at_ms:
            greet_at_ms = clock() + MEET_EVERY_MS
            outgoing += [(ReplicaPeer(address), encode_message(message)) for address, message in newcomer.greet()]
        if router.wait(max(0, greet_at_ms - clock()), True):
            for peer, frames, user in router.receive(100):
                if not frames or frames[0] != MARK:
                    number = codec.guess_request(frames[0]) if frames else 0
                    outgoing.append((peer, [codec.encode(messages.NotLeader(number, "", newcomer.contacts))]))
                elif user in (None, REPLICA_PEER_NAME):
                    outgoing += _hear(newcomer, frames)
        router.send_all(outgoing)
        if newcomer.trouble != trouble:
            trouble = newcomer.trouble
            print(f"tidings: {trouble}", file=sys.stderr, flush=True)
    return newcomer.identity


def _hear(newcomer: Newcomer, frames: list[Frame]) -> list[tuple[ReplicaPeer, list[Frame]]]:
    try:
        header = decode_message(frames)
    except ProtocolError:
        return []
    return [(ReplicaPeer(address), encode_message(message)) for address, message in newcomer.hear(header.message)]

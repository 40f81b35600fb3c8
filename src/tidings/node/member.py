"""A member of a group as a process: it finds out who it is, then runs like any broker."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

from tidings.descriptors import reserve
from tidings.errors import InvalidRequest, ProtocolError
from tidings.journal.disk import RealDisk
from tidings.journal.folder import MEMBER
from tidings.journal.journal import Journal
from tidings.journal.remedies import REJOIN, advising
from tidings.node.clock import Clock
from tidings.node.group import GroupEngine
from tidings.node.identity import MEET_EVERY_MS, Identity, Newcomer, read_identity
from tidings.node.loop import GARBAGE_MIN, Loop, stop_on_signals
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, GroupSettings, JournalSettings, NodeSettings, ReplicaSettings
from tidings.transport.mates import MateRouter
from tidings.wire import codec
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, MATE_NAME, Mate, decode_message, encode_message

MakeEngine = Callable[[str, Identity, Journal, RealDisk], GroupEngine]
"""The engine of a member, given its address, who it is, and its journal."""


def serve_member(
    data: Path,
    broker: BrokerSettings,
    journal: JournalSettings,
    node: NodeSettings,
    group: GroupSettings,
    replica: ReplicaSettings,
    on_ready: Callable[[str], None],
    make: MakeEngine | None = None,
    role: str = MEMBER,
    trusts_copy: bool = False,
) -> None:
    """Runs a member of a group on a folder until SIGTERM, SIGINT or an authorised shutdown.

    `on_ready` gets the address once the node knows who it is. A new group is founded when all founders have met.
    `make` makes the engine, for a member that is more than that. A copy of a member's folder is refused, unless
    somebody says that it may be trusted.
    """
    reserve()
    with advising(REJOIN):
        disk = RealDisk(data, role)
    try:
        router = MateRouter(node, broker.batch_bytes_max)
        clock = Clock()
        opened = Journal.open(disk, journal)
        with advising(REJOIN):
            identity = read_identity(disk)
        address = group.advertise or router.address
        if identity is not None:
            check_told(identity, group, address)
        else:
            identity = _become(Newcomer(disk, address, _founders(group, address), group.join), router, clock)
        if make is not None:
            engine = make(address, identity, opened, disk)
        else:
            engine = GroupEngine(broker, replica, identity, opened, disk)
        engine.recover(clock())
        _check_original(disk, engine, data, trusts_copy)
        loop = Loop(engine, router, node, clock)
        stop_on_signals(loop, router.wake_descriptor)
        gc.freeze()
        gc.set_threshold(GARBAGE_MIN)
        on_ready(router.address)
        loop.run()
    finally:
        disk.close()


def _check_original(disk: RealDisk, engine: GroupEngine, data: Path, trusts_copy: bool) -> None:
    """A copy may be older than what the member has promised, so it has no vote; unless there are no other members."""
    if not disk.home.is_copy:
        return
    if not trusts_copy and engine.voters != (engine.number,):
        raise InvalidRequest(
            f"{data} is a copy of the folder of member {engine.number}, and may know less than that member promised. "
            f"{REJOIN} If it is certain that the member has not run since it was copied, say --trust-copy."
        )
    disk.home.adopt()


def check_told(identity: Identity, group: GroupSettings, address: str) -> None:
    """Refuses settings that contradict what a folder says of its member: the others know it by that alone."""
    known = {member.number: member.address for member in (*identity.contacts, *identity.founders)}
    own = known.get(identity.number, address)
    if own != address:
        raise InvalidRequest(
            f"This folder belongs to the member at {own}, and this node is {address}: bind that address, or say with "
            "--advertise that it is reached there."
        )
    founders = {member.address for member in identity.founders}
    if group.group and set(group.group) != founders:
        founded = f"was founded by {','.join(sorted(founders))}" if founders else "was joined later"
        raise InvalidRequest(
            f"This folder belongs to a group that {founded}, and not to --group {','.join(group.group)}: leave --group "
            "out, since a member knows its group, or give another folder."
        )


def _founders(group: GroupSettings, address: str) -> tuple[str, ...]:
    if group.group and address not in group.group:
        raise InvalidRequest(
            f"This node is {address}, which is not in --group {','.join(group.group)}: bind one of these addresses, or "
            "say with --advertise which one it is."
        )
    return group.group or (() if group.join else (address,))


def _become(newcomer: Newcomer, router: MateRouter, clock: Callable[[], int]) -> Identity:
    """Talks to the others until it is clear who this node is."""
    newcomer.found_alone()
    greet_at_ms, trouble = clock(), ""
    while newcomer.identity is None:
        outgoing: list[tuple[Mate | bytes | tuple[bytes], list[Frame]]] = []
        if clock() >= greet_at_ms:
            greet_at_ms = clock() + MEET_EVERY_MS
            outgoing += [(Mate(address), encode_message(message)) for address, message in newcomer.greet()]
        if router.wait(max(0, greet_at_ms - clock()), True):
            for peer, frames, user in router.receive(100):
                if not frames or frames[0] != MARK:
                    number = codec.guess_request(frames[0]) if frames else 0
                    outgoing.append((peer, [codec.encode(messages.Elsewhere(number, "", newcomer.contacts))]))
                elif user in (None, MATE_NAME):
                    outgoing += _hear(newcomer, frames)
        router.send_all(outgoing)
        if newcomer.trouble != trouble:
            trouble = newcomer.trouble
            print(f"tidings: {trouble}", file=sys.stderr, flush=True)
    return newcomer.identity


def _hear(newcomer: Newcomer, frames: list[Frame]) -> list[tuple[Mate, list[Frame]]]:
    try:
        header = decode_message(frames)
    except ProtocolError:
        return []
    return [(Mate(address), encode_message(message)) for address, message in newcomer.hear(header.message)]

"""The broker's state as a replica has it: commands packed into values, applied at this node's own addresses.

All commands that are ready when a value is proposed go into it together, so that agreeing costs the same for one as
for many. A value is

    time_ms  8   from the clock of the leader that proposed it
    then for each command: its size (4), the size of its bodies (4), the command, the bodies

and is written to the journal as it is: a body's address follows from the value's.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from tidings.errors import TidingsError
from tidings.journal.disk import Buffer
from tidings.protocols.broker.commands import Carry, encode_command
from tidings.protocols.broker.commands import Command as BrokerCommand
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.retention import carried_place, carries_within, lowest_address
from tidings.protocols.effects import Persist
from tidings.protocols.multipaxos.joining import Member
from tidings.protocols.multipaxos.membership import MEMBERS_MAX
from tidings.protocols.multipaxos.values import Add, Change, Command, Remove
from tidings.protocols.ring.commands import decode_command
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings

MEMBERS_KEPT = 2 * MEMBERS_MAX

_TIME = struct.Struct("<Q")
_SIZES = struct.Struct("<II")


class Part(NamedTuple):
    """One command in a value, and where its bodies begin in it."""

    command: memoryview
    bodies_at: int
    bodies_size: int


def pack(time_ms: int, wanted: list[Persist]) -> bytes:
    """The value of some commands."""
    pieces: list[Buffer] = [_TIME.pack(time_ms)]
    for each in wanted:
        command = encode_command(each.command)
        pieces.append(_SIZES.pack(len(command), sum(map(len, each.bodies))) + command)
        pieces += each.bodies
    return b"".join(pieces)


def unpack(body: Buffer) -> tuple[int, Iterator[Part]]:
    """When a value was proposed, and its commands.

    >>> from tidings.protocols.broker.commands import Trim
    >>> time_ms, parts = unpack(pack(7, [Persist(Trim(()), (b"body",))]))
    >>> time_ms, [decode_command(part.command) for part in parts]
    (7, [Trim(positions=())])
    """
    view = memoryview(body)
    return _TIME.unpack_from(view)[0], _parts(view)


def _parts(view: memoryview) -> Iterator[Part]:
    position = _TIME.size
    while position < len(view):
        command_size, bodies_size = _SIZES.unpack_from(view, position)
        command_at = position + _SIZES.size
        bodies_at = command_at + command_size
        yield Part(view[command_at:bodies_at], bodies_at, bodies_size)
        position = bodies_at + bodies_size


class ReplicatedState(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot holds: who belongs to the group, and all of the broker's own."""

    members: tuple[Member, ...]
    left: list[int]
    heirs: dict[str, bytes]
    machine: bytes


Answer = Callable[[Command, int], bool]
"""Applies a command that this node has proposed and answers for it; False if it is somebody else's."""


def new_machine(settings: BrokerSettings) -> Machine:
    """The empty state of a member. Any group may be a ring's, and what its log says of that is applied by everybody."""
    return Machine(settings, RingPolicy())


class BrokerState:
    """The `State` of a replica that is a broker."""

    def __init__(self, machine: Machine, founders: tuple[Member, ...], answer: Answer) -> None:
        self.machine = machine
        self.members = {member.number: member for member in founders}
        """Also some of those who have left: until others know that, they have to be reached."""
        self.left: list[int] = []
        """Their numbers, in the order in which they left."""
        self.heirs: dict[str, bytes] = {}
        """At the address of a member that has lost its disk: the disk that comes in its place."""
        self._answer = answer

    def apply(self, command: Command, address: int) -> None:
        if self._answer(command, address):
            return
        time_ms, parts = unpack(command.body)
        for part in parts:
            self._apply(decode_command(part.command), time_ms, address + part.bodies_at)

    def _apply(self, command: BrokerCommand, time_ms: int, body_address: int) -> None:
        with contextlib.suppress(TidingsError):  # What is refused is refused on every replica alike.
            self.machine.apply(command, time_ms, body_address)

    def apply_change(self, change: Change) -> None:
        match change:
            case Add(node, address, disk):
                self.members[node] = Member(node, address, disk)
                self.heirs.pop(address, None)
                while len(self.members) > MEMBERS_KEPT:
                    del self.members[self.left.pop(0)]
            case Remove(node, heir):
                self.left.append(node)
                if heir:
                    self.heirs[self.members[node].address] = heir

    def apply_local(self, command: bytes, time_ms: int, address: int) -> None:
        self._apply(decode_command(command), time_ms, address)

    def move(self, address: int, size_bytes: int, new_address: int) -> None:
        self.machine.move(address, size_bytes, new_address)

    def copies_within(self, start: int, end: int) -> list[bytes]:
        return [encode_command(carry) for carry in carries_within(self.machine, start, end)]

    def place_of(self, copy: bytes) -> tuple[int, int] | None:
        try:
            carry = decode_command(copy)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # Another member of the group made it.
            return None
        place = carried_place(self.machine, carry) if isinstance(carry, Carry) else None
        return None if place is None else (place.address, place.size_bytes)

    def buffers(self, body: Buffer) -> tuple[Buffer, ...]:
        """Each command's bodies are a piece, because deliveries read just those."""
        view, pieces, position = memoryview(body), [], 0
        for part in _parts(view):
            pieces.append(view[position : part.bodies_at])
            position = part.bodies_at + part.bodies_size
            if part.bodies_size:
                pieces.append(view[part.bodies_at : position])
        return tuple(pieces)

    def seal(self) -> tuple[bytes, bytes]:
        index, machine = self.machine.seal()
        return index, msgspec.msgpack.encode(
            ReplicatedState(tuple(self.members.values()), self.left, self.heirs, machine)
        )

    def mark_sealed(self) -> None:
        self.machine.mark_sealed()

    def restore(self, snapshot: bytes, indexes: list[bytes]) -> None:
        try:
            state = msgspec.msgpack.decode(snapshot, type=ReplicatedState)
        except msgspec.ValidationError:  # A broker alone has no members, and its snapshot begins with a version.
            self.machine.restore(snapshot, indexes)
            return
        self.members = {member.number: member for member in state.members}
        self.left, self.heirs = state.left, state.heirs
        self.machine.restore(state.machine, indexes)

    def lowest_address(self, end_address: int) -> int:
        return lowest_address(self.machine, end_address)

"""Who a member of a group is, and how a node that is new becomes one.

A note beside the journal (`member`) says it for good: the group, the number, the mark of this disk. A folder without
one belongs to a node that is new; see `protocols.multipaxos.joining` for what it says and hears. The journal is begun
before the note is written, so a member without a journal has lost it, and must not vote under its old number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal.disk import LocalDisk
from tidings.journal.folder import INVENTORY_NAME, Folder
from tidings.journal.notes import decode_note, encode_note, parse_note, read_note, write_note
from tidings.journal.recovery import holds_records, survey
from tidings.journal.remedies import REJOIN
from tidings.protocols.multipaxos.joining import Found, JoiningMessage, Known, Meet, Member
from tidings.protocols.multipaxos.membership import MEMBERS_MAX

MEMBER_NAME = "member"
DISK_NAME = "disk"
MEET_EVERY_MS = 300
CONTACTS_MAX = 4 * MEMBERS_MAX


class Identity(msgspec.Struct, frozen=True):
    """A member of a group."""

    group: bytes
    number: int
    disk: bytes
    founders: tuple[Member, ...]
    """Empty for a node that has joined later."""
    contacts: tuple[Member, ...]
    """Whom a node that has joined knew at first."""
    ring: tuple[str, ...] = ()
    """Where the ring is that it was to join at first: until its journal knows, it must not begin another."""
    alone_until: int = 0
    """Below this address of its journal the node was a broker alone."""
    formerly: tuple[int, ...] = ()
    """Numbers that this folder had before: each was removed because the node was silent, and it was taken back."""


def read_identity(disk: LocalDisk) -> Identity | None:
    """Who this folder belongs to; None if to nobody yet."""
    identity = read_note(disk, MEMBER_NAME, Identity)
    if identity is None:
        if holds_records(disk):
            raise StorageDamaged(f"The file {MEMBER_NAME} is missing beside the journal.")
        return None
    names = disk.names()
    if INVENTORY_NAME not in names:
        if not any(name.endswith(".journal") for name in names):
            raise StorageDamaged(f"The journal is missing beside the file {MEMBER_NAME}.")
        write_note(disk, MEMBER_NAME, identity)  # The first release gave it no checksum.
    return identity


def renumbered(identity: Identity, found: Found) -> Identity | None:
    """Who a member is after it was removed and taken back; None if that is not what it is told.

    It goes on under a number that has never voted, so nothing that it said under the old one is missed.
    """
    is_meant = any(each.number == found.number and each.disk == identity.disk for each in found.members)
    if found.group != identity.group or found.number <= identity.number or not is_meant:
        return None
    formerly = (*identity.formerly, identity.number)
    return msgspec.structs.replace(identity, number=found.number, contacts=found.members, formerly=formerly)


def look_up_identity(home: Folder) -> Identity | None:
    """The same before the folder is used: nothing is changed, and of what is missing there is no word yet."""
    try:
        data = (home.path / MEMBER_NAME).read_bytes()
    except FileNotFoundError:
        return None
    return parse_note(MEMBER_NAME, home.salt, data, Identity)


class Home(Protocol):
    """What knows whether a folder is the original."""

    @property
    def is_copy(self) -> bool:
        """Whether this folder was copied from the one that its note was written for."""

    def adopt(self) -> None:
        """A copy counts as the original from now on."""


def check_original(
    home: Home, number: int, voters: tuple[int, ...], folder: str | Path, trusts_copy: bool = False
) -> None:
    """A copy may be older than what the member has promised, so it has no vote; unless there are no other members."""
    if not home.is_copy:
        return
    if not trusts_copy and voters != (number,):
        raise InvalidRequest(
            f"{folder} is a copy of the folder of member {number}, and may know less than that member promised. "
            f"{REJOIN} If the member has certainly not run since then, pass --trust-copy."
        )
    home.adopt()


def write_mark(disk: LocalDisk, mark: bytes) -> None:
    """Gives a disk the mark by which the others tell it from one that was at the same address before."""
    disk.replace(DISK_NAME, [encode_note(DISK_NAME, disk.salt, mark)])


def asking_sentence(address: str, contacts: tuple[str, ...]) -> str:
    """What a node says that asks to be taken in. One with a new disk in a member's place is taken in by itself."""
    members = ",".join(contacts)
    return f"asking {members} to let this node join: add it with `tidings cluster add {address} --bus {members}`"


DrawGroup = Callable[[], bytes]
"""Draws the id of a new group, which says where on a ring it stands."""


def any_group() -> bytes:
    return os.urandom(16)


class Newcomer:
    """A node that does not know yet who it is. Pure but for its folder."""

    def __init__(
        self,
        disk: LocalDisk,
        address: str,
        founders: tuple[str, ...],
        contacts: tuple[str, ...],
        ring: tuple[str, ...] = (),
        draw_group: DrawGroup = any_group,
    ) -> None:
        self._disk = disk
        self._draw_group = draw_group
        self._ring = ring
        self._address = address
        self._founders = founders
        self._contacts = dict.fromkeys(each for each in (*founders, *contacts) if each != address)
        self._met: dict[str, bytes] = {}
        """Other founders that are new, and their disks."""
        self._there_is_a_group = False
        self.identity: Identity | None = None
        self.trouble = "" if founders else asking_sentence(address, contacts)
        """What keeps the node from having a group, as far as is known."""
        survey(disk)
        self._mark = self._read_mark()

    def _read_mark(self) -> bytes:
        if DISK_NAME not in self._disk.names():
            write_mark(self._disk, os.urandom(16))
        return decode_note(DISK_NAME, self._disk.salt, bytes(self._disk.map(DISK_NAME)))

    @property
    def contacts(self) -> tuple[str, ...]:
        return tuple(self._contacts)

    def greet(self) -> Iterator[tuple[str, JoiningMessage]]:
        """What to say every `MEET_EVERY_MS`, and to whom."""
        for address in self._contacts:
            yield address, Meet(self._address, self._mark, self._founders)

    def hear(self, message: object) -> Iterator[tuple[str, JoiningMessage]]:
        """Takes in what somebody says; what to answer."""
        match message:
            case Meet(address, disk, founders) if self._founders and founders:
                if founders != self._founders:
                    self.trouble = (
                        f"{address} was started with --group {','.join(founders)}, and this node with "
                        f"--group {','.join(self._founders)}: start all founders with the same list."
                    )
                elif address in self._founders and address != self._address:
                    self._met[address] = disk
                yield from self._found()
            case Known(addresses):
                self._there_is_a_group = True
                for address in addresses[:MEMBERS_MAX]:
                    if address != self._address and len(self._contacts) < CONTACTS_MAX:
                        self._contacts[address] = None
            case Found(group, number, founders, members) if self.identity is None:
                # A word for an earlier disk at this address may come late; its number stands for that disk.
                if any(member.number == number and member.disk == self._mark for member in members):
                    self._become(Identity(group, number, self._mark, founders, members))

    def _found(self) -> Iterator[tuple[str, JoiningMessage]]:
        """The first founder founds, once it has met all others and none of them knows of a group."""
        first = self._founders[0]
        if self._address != first or self._there_is_a_group or self.identity is not None:
            return
        if len(self._met) < len(self._founders) - 1:
            return
        disks = {**self._met, self._address: self._mark}
        founders = tuple(Member(number, address, disks[address]) for number, address in enumerate(self._founders, 1))
        group = self._draw_group()
        self._become(Identity(group, 1, self._mark, founders, founders))
        for member in founders[1:]:
            yield member.address, Found(group, member.number, founders, founders)

    def found_alone(self) -> None:
        """A group of one needs nobody else."""
        if self._founders == (self._address,):
            list(self._found())

    def _become(self, identity: Identity) -> None:
        self.identity = msgspec.structs.replace(identity, ring=self._ring)
        write_note(self._disk, MEMBER_NAME, self.identity)

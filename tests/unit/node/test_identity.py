"""How a node that is new becomes a member of a group (P7): founding, joining, and never twice."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest

from tests.unit.node.replicas import make_disk
from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal import REPLICA, Append, Journal
from tidings.node.identity import CONTACTS_MAX, DISK_NAME, MEMBER_NAME, Identity, Newcomer, read_identity
from tidings.node.member import check_told
from tidings.protocols.multipaxos.joining import Found, JoiningMessage, Known, Meet, Member
from tidings.settings import GroupSettings, JournalSettings
from tidings.simulator.disk import SimulatedDisk

ADDRESSES = ("tcp://a:1", "tcp://b:1", "tcp://c:1")
FIRST, SECOND, THIRD = ADDRESSES


def newcomer(address: str, disk: SimulatedDisk | None = None, founders: tuple[str, ...] = ADDRESSES) -> Newcomer:
    return Newcomer(disk or make_disk(), address, founders, ())


def mark(each: Newcomer) -> bytes:
    for _, message in each.greet():
        assert isinstance(message, Meet)
        return message.disk
    raise AssertionError("It greets nobody.")


def let_talk(newcomers: dict[str, Newcomer]) -> None:
    """Everybody greets once, and all that follows is carried; who is not there hears nothing."""
    queue: deque[tuple[str, JoiningMessage]] = deque()
    for each in newcomers.values():
        queue.extend(each.greet())
    while queue:
        address, message = queue.popleft()
        if address in newcomers:
            queue.extend(newcomers[address].hear(message))


# Founding.


def test_founders_found_when_all_of_them_have_met() -> None:
    disks = {address: make_disk() for address in ADDRESSES}
    newcomers = {address: newcomer(address, disks[address]) for address in ADDRESSES}
    let_talk(newcomers)
    let_talk(newcomers)
    identities = [each.identity for each in newcomers.values()]
    assert [each.number for each in identities if each is not None] == [1, 2, 3]
    assert len({(each.group, each.founders) for each in identities if each is not None}) == 1
    for address, each in newcomers.items():
        assert each.identity is not None
        assert read_identity(disks[address]) == each.identity
        assert each.identity.founders[each.identity.number - 1] == Member(
            each.identity.number, address, each.identity.disk
        )


def test_nothing_is_founded_while_one_is_missing() -> None:
    newcomers = {address: newcomer(address) for address in (FIRST, SECOND)}
    for _ in range(3):
        let_talk(newcomers)
    assert [each.identity for each in newcomers.values()] == [None, None]


def test_only_the_first_founds() -> None:
    second = newcomer(SECOND)
    for address in (FIRST, THIRD):
        assert list(second.hear(Meet(address, b"disk", ADDRESSES))) == []
    assert second.identity is None


def test_a_group_of_one_needs_nobody() -> None:
    alone = newcomer(FIRST, founders=(FIRST,))
    alone.found_alone()
    assert alone.identity is not None
    assert [member.address for member in alone.identity.founders] == [FIRST]


@pytest.mark.parametrize("founders", [ADDRESSES, ()])
def test_others_do_not_found_alone(founders: tuple[str, ...]) -> None:
    each = newcomer(FIRST, founders=founders)
    each.found_alone()
    assert each.identity is None


def test_another_list_of_founders_is_trouble_and_does_not_count() -> None:
    first = newcomer(FIRST)
    list(first.hear(Meet(SECOND, b"disk 2", ADDRESSES)))
    assert list(first.hear(Meet(THIRD, b"disk 3", (FIRST, THIRD, SECOND)))) == []
    assert first.identity is None
    assert first.trouble == (
        "tcp://c:1 was started with --group tcp://a:1,tcp://c:1,tcp://b:1, and this node with "
        "--group tcp://a:1,tcp://b:1,tcp://c:1: start all founders with the same list."
    )


def test_one_that_wants_to_join_is_no_trouble_and_no_founder() -> None:
    first = newcomer(FIRST)
    list(first.hear(Meet(SECOND, b"disk 2", ADDRESSES)))
    assert list(first.hear(Meet(THIRD, b"disk 3", ()))) == []
    assert (first.identity, first.trouble) == (None, "")


@pytest.mark.parametrize("address", [FIRST, "tcp://d:1"])
def test_who_is_no_other_founder_does_not_count(address: str) -> None:
    first = newcomer(FIRST)
    list(first.hear(Meet(SECOND, b"disk 2", ADDRESSES)))
    list(first.hear(Meet(address, b"disk 3", ADDRESSES)))
    assert first.identity is None


def test_the_disk_that_was_heard_of_last_is_the_founders() -> None:
    first = newcomer(FIRST)
    for disk in (b"lost", b"disk 2"):
        list(first.hear(Meet(SECOND, disk, ADDRESSES)))
    told = list(first.hear(Meet(THIRD, b"disk 3", ADDRESSES)))
    assert first.identity is not None
    assert [member.disk for member in first.identity.founders[1:]] == [b"disk 2", b"disk 3"]
    founders = first.identity.founders
    assert told == [
        (each.address, Found(first.identity.group, each.number, founders, founders)) for each in founders[1:]
    ]


def test_a_founder_that_has_lost_its_disk_never_founds_when_somebody_knows_of_a_group() -> None:
    first = newcomer(FIRST)
    list(first.hear(Known((SECOND, THIRD))))
    for address in (SECOND, THIRD):
        assert list(first.hear(Meet(address, b"new too", ADDRESSES))) == []
    assert first.identity is None
    assert MEMBER_NAME not in first._disk.names()


# Who one is.


def found_for(each: Newcomer, number: int = 2, group: bytes = b"group") -> Found:
    member = Member(number, SECOND, mark(each))
    return Found(group, number, (), (Member(1, FIRST, b"disk 1"), member))


def test_who_is_told_who_it_is_writes_it_down() -> None:
    disk = make_disk()
    second = newcomer(SECOND, disk)
    found = found_for(second)
    assert list(second.hear(found)) == []
    expected = Identity(b"group", 2, mark(second), (), found.members)
    assert second.identity == expected
    disk.crash()
    assert read_identity(disk) == expected


def test_the_first_word_counts() -> None:
    second = newcomer(SECOND)
    list(second.hear(found_for(second)))
    before = second.identity
    for again in (found_for(second), found_for(second, number=4), found_for(second, group=b"another")):
        list(second.hear(again))
        assert second.identity == before
        assert read_identity(second._disk) == before


def test_a_word_for_an_earlier_disk_at_this_address_is_not_taken() -> None:
    """That disk has promised what this one knows nothing of."""
    lost = newcomer(SECOND)
    second = newcomer(SECOND)
    assert mark(lost) != mark(second)
    list(second.hear(found_for(lost)))
    list(second.hear(Found(b"group", 2, ())))
    assert second.identity is None


def test_a_restart_keeps_the_mark_of_the_disk() -> None:
    disk = make_disk()
    before = mark(newcomer(SECOND, disk))
    disk.crash()
    assert mark(newcomer(SECOND, disk)) == before
    assert DISK_NAME in disk.names()


def test_who_joins_greets_whom_it_was_told_of_and_whom_those_know() -> None:
    each = Newcomer(make_disk(), "tcp://d:1", (), (FIRST,))
    assert [address for address, _ in each.greet()] == [FIRST]
    list(each.hear(Known((FIRST, SECOND, "tcp://d:1"))))
    assert [address for address, _ in each.greet()] == [FIRST, SECOND]
    assert each.contacts == (FIRST, SECOND)


def test_whom_others_know_is_bounded() -> None:
    each = Newcomer(make_disk(), "tcp://d:1", (), ())
    for first in range(1, 1_000, 10):
        list(each.hear(Known(tuple(f"tcp://x:{number}" for number in range(first, first + 10)))))
    assert len(each.contacts) == CONTACTS_MAX


def test_a_journal_with_records_and_no_member_has_lost_it() -> None:
    """P7: it must not become a member again, for it has promised under its old number."""
    disk = make_disk()
    assert read_identity(disk) is None
    newcomer(SECOND, disk)
    assert read_identity(disk) is None, "a journal that was only begun is nobody's yet"
    journal = Journal.open(disk, JournalSettings())
    assert not list(journal.recover().records)
    commit = journal.begin([Append(REPLICA, b"promised")])
    journal.write(commit)
    with pytest.raises(StorageDamaged, match="member is missing"):
        read_identity(disk)


def test_a_member_without_its_journal_has_lost_it() -> None:
    """P7: it must not vote under its old number with an empty journal."""
    disk = make_disk()
    second = newcomer(SECOND, disk)
    list(second.hear(found_for(second)))
    for name in disk.names():
        if name != MEMBER_NAME:
            disk.remove(name)
    with pytest.raises(StorageDamaged, match="journal is missing"):
        read_identity(disk)


def test_every_flipped_bit_of_a_member_is_noticed() -> None:
    disk = make_disk()
    second = newcomer(SECOND, disk)
    list(second.hear(found_for(second)))
    for position in range(disk.size(MEMBER_NAME)):
        for bit in range(8):
            disk.flip_bit(MEMBER_NAME, position, bit)
            with pytest.raises(StorageDamaged, match=MEMBER_NAME):
                read_identity(disk)
            disk.flip_bit(MEMBER_NAME, position, bit)
    assert read_identity(disk) == second.identity


def test_a_member_of_the_first_release_is_read_and_gets_its_checksum() -> None:
    disk = make_disk()
    second = newcomer(SECOND, disk)
    list(second.hear(found_for(second)))
    disk.replace(MEMBER_NAME, [msgspec.msgpack.encode(second.identity)])
    disk.remove("inventory")
    assert read_identity(disk) == second.identity
    disk.flip_bit(MEMBER_NAME, disk.size(MEMBER_NAME) - 1)
    with pytest.raises(StorageDamaged):
        read_identity(disk)


def test_what_makes_no_sense_to_a_newcomer_is_not_heard() -> None:
    each = Newcomer(make_disk(), "tcp://d:1", (), (FIRST,))
    assert list(each.hear(Meet(FIRST, b"disk", ADDRESSES))) == []
    assert list(each.hear(object())) == []


# What a folder is told that belongs to a member already.


def member_of(address: str, founders: tuple[str, ...] = ADDRESSES) -> Identity:
    known = tuple(Member(number, each, b"disk") for number, each in enumerate(ADDRESSES, 1))
    number = ADDRESSES.index(address) + 1
    return Identity(b"group", number, b"disk", known if founders else (), known)


@pytest.mark.parametrize("group", [(), ADDRESSES, ADDRESSES[::-1]])
def test_a_member_that_is_told_what_its_folder_says_goes_on(group: tuple[str, ...]) -> None:
    check_told(member_of(SECOND), GroupSettings(group=group), SECOND)


@pytest.mark.parametrize(
    ("identity", "group", "address", "complaint"),
    [
        (member_of(SECOND), (), "tcp://d:1", "the member at tcp://b:1, and this node is tcp://d:1"),
        (member_of(SECOND), (SECOND, "tcp://d:1", "tcp://e:1"), SECOND, "founded by tcp://a:1,tcp://b:1,tcp://c:1"),
        (member_of(SECOND, founders=()), ADDRESSES, SECOND, "was joined later"),
    ],
)
def test_a_member_that_is_told_otherwise_is_refused(
    identity: Identity, group: tuple[str, ...], address: str, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        check_told(identity, GroupSettings(group=group), address)

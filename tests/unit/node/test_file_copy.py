"""How a replica that is far behind takes over the files of another one (P6: a lagging replica catches up)."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.unit.node.replicas import (
    accept,
    bodies,
    command,
    commit,
    follow,
    make_disk,
    messages,
    open_engine,
    receive,
    row,
    told,
)
from tidings.journal import segment as files
from tidings.journal.folder import INVENTORY_NAME
from tidings.journal.journal import Journal
from tidings.journal.notes import read_note
from tidings.journal.recovery import Inventory
from tidings.node.file_copy import INCOMING_SUFFIX, LIST_NAME, FileCopy
from tidings.node.replica import ReplicaEngine
from tidings.node.snapshot_header import decode_snapshot_header
from tidings.node.state import StateExchanged
from tidings.protocols.multipaxos.messages import Chosen, Fetch, FetchFile, File, Offer, Piece
from tidings.protocols.multipaxos.values import CHOSEN, Ballot, Entry
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.disk import PowerCut, SimulatedDisk

SMALL = ReplicaSettings(piece_bytes_max=100)
OWN = Ballot(7, 3)
"""What the one who is behind has promised, and nobody else."""


def make_source(last: int = 30, settings: ReplicaSettings = SMALL) -> tuple[SimulatedDisk, ReplicaEngine]:
    disk = make_disk()
    source = open_engine(disk, 2, records_max=12, settings=settings)
    follow(source, last)
    return disk, source


def offered(source: ReplicaEngine, node: int = 4) -> Offer:
    messages(source)
    receive(source, node, Fetch(0))
    (offer,) = messages(source)
    assert isinstance(offer, Offer)
    return offer


def talk(source: ReplicaEngine, target: ReplicaEngine, rounds_max: int = 10_000) -> list[object]:
    """Carries what the two say to each other until they are silent; what the source was asked."""
    asked: list[object] = []
    for _ in range(rounds_max):
        questions = [each for nodes, each in target.outgoing if source.replica.node in nodes]
        target.outgoing = []
        asked += questions
        for question in questions:
            receive(source, target.replica.node, question)
        answers = [each for nodes, each in source.outgoing if target.replica.node in nodes]
        source.outgoing = []
        for answer in answers:
            receive(target, source.replica.node, answer)
        commit(source)
        commit(target)
        if not questions and not answers:
            break
    return asked


def is_incoming(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.names() if name.endswith(INCOMING_SUFFIX) or name == LIST_NAME]


def make_behind(disk: SimulatedDisk, settings: ReplicaSettings = SMALL) -> ReplicaEngine:
    """A voter that knows three slots, and has accepted under a ballot that the source does not know."""
    target = open_engine(disk, 3, records_max=12, settings=settings)
    follow(target, 3)
    accept(target, 13, command(99), ballot=OWN, decided=1)
    commit(target)
    assert target.replica.log.undecided(0) == (Entry(13, OWN, command(99)),)
    messages(target)
    return target


# From end to end.


def test_a_new_node_takes_over_the_files_of_another_piece_by_piece() -> None:
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, offered(source))
    asked = talk(source, target)
    pieces = [each for each in asked if isinstance(each, FetchFile)]
    assert len(pieces) > len({each.name for each in pieces}) > 3
    assert (target.applied, row(target)) == (31, bodies(1, 30))
    assert [each.next_slot for each in told(target, StateExchanged)] == [offered(source).next_slot]
    assert is_incoming(disk) == []
    disk.crash()
    again = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    assert row(again) == bodies(1, again.applied - 1)
    assert again.replica.node == 4


def test_files_that_come_from_another_folder_are_written_down_under_the_own_number() -> None:
    """Checksums begin with a number of the folder, so that no other folder's files can be put in its files' place."""
    source_disk = make_disk()
    source_disk.salt = 0x1234
    source = open_engine(source_disk, 2, records_max=12, settings=SMALL)
    follow(source, 30)
    disk = make_disk(4)
    disk.salt = 0x9876
    target = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, offered(source))
    talk(source, target)
    assert (target.applied, row(target)) == (31, bodies(1, 30))
    again = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    assert row(again) == bodies(1, again.applied - 1)
    assert again.journal.scrub(0, again.journal.size_bytes)[1] == [], "the sums fit the headers written again"


def test_what_follows_is_fetched_as_values_and_can_be_served_to_others() -> None:
    _, source = make_source()
    target = open_engine(make_disk(4), 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, offered(source))
    asked = talk(source, target)
    assert next(each for each in asked if isinstance(each, Fetch)) == Fetch(offered(source).next_slot)
    first = target.places.first_slot
    messages(target)
    receive(target, 5, Fetch(first))
    (chosen,) = messages(target)
    assert isinstance(chosen, Chosen)
    assert chosen.values[0] == command(first), "the places of the other's records came with its files"


def test_the_disk_and_the_promise_stay_its_own() -> None:
    _, source = make_source()
    disk = make_disk(3)
    target = make_behind(disk)
    receive(target, 2, offered(source))
    talk(source, target)
    assert target.applied == 31
    assert target.replica.acceptor.promised == OWN
    snapshot_header = newest_header(disk)
    assert (snapshot_header.node, snapshot_header.promised, snapshot_header.held) == (3, OWN, ())
    disk.crash()
    again = open_engine(disk, 3, records_max=12, settings=SMALL)
    assert again.replica.acceptor.promised == OWN


def newest_header(disk: SimulatedDisk) -> object:
    name = max(name for name in disk.names() if name.endswith(files.SNAPSHOT_SUFFIX))
    return decode_snapshot_header(files.decode_snapshot(disk.map(name), name).payload)


def test_what_it_has_accepted_beyond_the_others_state_goes_with_it() -> None:
    _, source = make_source(last=8)
    disk = make_disk(3)
    target = make_behind(disk)
    receive(source, 4, Fetch(0))  # Has it seal what it has.
    commit(source)
    receive(target, 2, offered(source))
    talk(source, target)
    expected = (Entry(13, OWN, command(99)),)
    assert (target.applied, target.replica.log.undecided(0)) == (9, expected)
    disk.crash()
    again = open_engine(disk, 3, records_max=12, settings=SMALL)
    assert (again.applied, again.replica.log.undecided(0)) == (9, expected)
    receive(again, 1, Chosen(9, (*map(command, range(9, 13)), command(99)), 14))
    commit(again)
    assert again.applied == 14


# What is interrupted.


def interrupted(steps: int, how: str) -> tuple[bool, SimulatedDisk]:
    """Ends the process of the one who is behind before a step of its disk; False if there was none such."""
    _, source = make_source(last=8, settings=ReplicaSettings())
    receive(source, 4, Fetch(0))
    commit(source)
    disk = SimulatedDisk(Random(steps))
    target = make_behind(disk, ReplicaSettings())
    left = steps

    def cut(step: str, name: str) -> None:
        nonlocal left
        if left == 0:
            raise PowerCut
        left -= 1

    receive(target, 2, offered(source))
    disk.on_step = cut
    try:
        talk(source, target)
    except PowerCut:
        disk.on_step = None
        disk.crash() if how == "power" else disk.kill()
        return True, disk
    disk.on_step = None
    return False, disk


@pytest.mark.parametrize("how", ["power", "kill"])
def test_whatever_interrupts_it_leaves_the_old_state_or_the_new(how: str) -> None:
    seen: set[int] = set()
    """How much was applied afterwards."""
    steps = 0
    while True:
        cut, disk = interrupted(steps, how)
        again = open_engine(disk, 3, records_max=12)
        assert again.replica.acceptor.promised == OWN, steps
        # What it was sent as chosen may be on disk before the word that it is decided.
        own = [entry for entry in again.replica.log.undecided(0) if entry.ballot != CHOSEN]
        assert own == [Entry(13, OWN, command(99))], steps
        assert again.applied >= 3, steps
        assert row(again) == bodies(1, again.applied - 1), steps
        assert again.state.misplaced() == [], steps  # type: ignore[attr-defined]
        assert is_incoming(disk) == [], steps
        seen.add(again.applied)
        if not cut:
            break
        commit(again)  # It goes on as a replica.
        _, source = make_source(last=8)
        accept(again, 9, decided=9, ballot=Ballot(8, 2))  # It hears of what it lacks.
        talk(source, again)
        assert (again.applied, row(again)) == (9, bodies(1, 8)), steps
        steps += 1
    assert steps > 20
    assert len(seen) > 1
    assert max(seen) == 9


def test_to_finish_twice_is_to_finish_once() -> None:
    """A process that ends in the middle of it leaves the rest to the next one, which may end there too."""
    cuts = 0
    while True:
        disk = listed_disk()
        left = cuts

        def cut(step: str, name: str) -> None:
            nonlocal left
            if left == 0:
                raise PowerCut
            left -= 1

        disk.on_step = cut
        try:
            finish(disk)
        except PowerCut:
            disk.on_step = None
            disk.kill()
            finish(disk)
            left_over = contents(disk)
            assert read_note(disk, INVENTORY_NAME, Inventory) == Inventory(5, 5)
            del left_over[INVENTORY_NAME]
            assert left_over == {files.journal_name(5): b"new", files.index_name(5): b"index", "member": b"ours"}
            cuts += 1
            continue
        break
    assert cuts > 5
    before = contents(disk)
    disk.on_step = None
    finish(disk)
    assert contents(disk) == before


def listed_disk() -> SimulatedDisk:
    disk = make_disk()
    new = {files.journal_name(5): b"new", files.index_name(5): b"index"}
    for name, data in new.items():
        disk.replace(name + INCOMING_SUFFIX, [data])
    for name in (files.journal_name(0), files.journal_name(5), files.snapshot_name(3), "member"):
        disk.replace(name, [b"ours"])
    disk.replace(files.journal_name(9) + INCOMING_SUFFIX, [b"of no exchange"])
    disk.replace(LIST_NAME, [msgspec.msgpack.encode(list(new))])
    return disk


def finish(disk: SimulatedDisk) -> None:
    FileCopy(disk, Journal.open(disk, JournalSettings()), SMALL, 1).finish()


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: bytes(disk.map(name)) for name in disk.names()}


def test_without_a_list_what_has_come_in_is_removed() -> None:
    disk = listed_disk()
    disk.remove(LIST_NAME)
    finish(disk)
    assert set(contents(disk).values()) == {b"ours"}


# Offers.


def begin(target: ReplicaEngine, source: ReplicaEngine, pieces: int) -> None:
    """Takes an offer and some of the pieces."""
    receive(target, source.replica.node, offered(source))
    talk(source, target, rounds_max=pieces)


def test_a_newer_offer_while_copying_fetches_only_what_is_new() -> None:
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    first = offered(source)
    begin(target, source, pieces=len(first.files) * 5)
    here = {name.removesuffix(INCOMING_SUFFIX): disk.size(name) for name in is_incoming(disk)}
    follow(source, 36, first=31)
    newer = offered(source)
    assert newer.next_slot > first.next_slot
    kept = {file.name for file in newer.files if here.get(file.name) == file.size_bytes}
    assert kept, "otherwise this shows nothing"
    target.outgoing = []
    receive(target, 2, newer)
    asked = {each.name for each in talk(source, target) if isinstance(each, FetchFile)}
    assert asked == {file.name for file in newer.files} - kept
    assert (target.applied, row(target)) == (37, bodies(1, 36))


def test_offers_that_come_meanwhile_neither_start_over_nor_ask_twice() -> None:
    """A node that has damage asks everybody every second, and who has it only in its files offers those."""
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    offer = offered(source)
    begin(target, source, pieces=12)
    here = is_incoming(disk)
    assert here
    messages(target)
    for now_ms in range(SMALL.fetch_retry_ms):
        receive(target, 3, offer, now_ms=now_ms)
        receive(target, 2, offer, now_ms=now_ms)
    assert (is_incoming(disk), messages(target)) == (here, [])


@pytest.mark.parametrize("who", ["another node", "another life"])
def test_the_offer_of_another_life_starts_over_and_that_of_another_node_once_nothing_comes(who: str) -> None:
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    offer = offered(source)
    begin(target, source, pieces=12)
    messages(target)
    if who == "another node":
        receive(target, 3, offer, now_ms=SMALL.fetch_retry_ms)
    else:
        receive(target, 2, Offer(offer.next_slot, offer.life + 1, offer.files))
    assert is_incoming(disk) == []
    (question,) = messages(target)
    life = offer.life + (who == "another life")
    assert question == FetchFile(offer.files[0].name, 0, life)


def test_a_file_of_another_life_is_not_served_but_offered_again() -> None:
    _, source = make_source()
    offer = offered(source)
    receive(source, 4, FetchFile(offer.files[0].name, 0, offer.life + 1))
    assert messages(source) == [offer]


@pytest.mark.parametrize("name", ["member", "disk", "../member", "", "exchange"])
def test_other_files_than_the_journals_are_not_served(name: str) -> None:
    disk, source = make_source()
    disk.replace("member", [b"secret"])
    offer = offered(source)
    receive(source, 4, FetchFile(name, 0, offer.life))
    assert messages(source) == [offer]


def test_an_offer_that_holds_nothing_new_is_not_taken() -> None:
    _, source = make_source()
    disk = make_disk(3)
    target = open_engine(disk, 3, settings=SMALL)
    follow(target, 40)
    messages(target)
    receive(target, 2, offered(source))
    assert messages(target) == []


NAMES = [files.journal_name(0), files.index_name(0), files.snapshot_name(12)]


@pytest.mark.parametrize(
    "listed",
    [
        (),
        (File(NAMES[0], 10), File(NAMES[1], 10)),
        (File(NAMES[2], 10), File(NAMES[0], 10)),
        (File(NAMES[0], 10), File(NAMES[0], 10), File(NAMES[2], 10)),
        (File(NAMES[0], 0), File(NAMES[2], 10)),
        (File(NAMES[0], -1), File(NAMES[2], 10)),
        (File("member", 10), File(NAMES[2], 10)),
        (File("../" + NAMES[0], 10), File(NAMES[2], 10)),
        (File(NAMES[0] + "/x", 10), File(NAMES[2], 10)),
        (File("\N{ARABIC-INDIC DIGIT ZERO}" * 20 + ".journal", 10), File(NAMES[2], 10)),
        (File("0.journal", 10), File(NAMES[2], 10)),
        (File(NAMES[0] + INCOMING_SUFFIX, 10), File(NAMES[2], 10)),
    ],
    ids=repr,
)
def test_an_offer_of_what_cannot_be_a_journal_is_refused(listed: tuple[File, ...]) -> None:
    target = open_engine(make_disk(), 4, blank=True)
    commit(target)
    receive(target, 2, Offer(9, 1, listed))
    assert messages(target) == []


def test_a_piece_that_was_not_asked_for_is_not_written() -> None:
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, settings=SMALL, blank=True)
    commit(target)
    offer = offered(source)
    receive(target, 2, offer)
    (question,) = messages(target)
    assert isinstance(question, FetchFile)
    for node, piece in (
        (3, Piece(question.name, 0, b"x")),
        (2, Piece(question.name, 7, b"x")),
        (2, Piece(NAMES[2], 0, b"x")),
        (2, Piece(question.name, 0, b"")),
    ):
        receive(target, node, piece)
        assert is_incoming(disk) == []
        assert messages(target) == []


def test_more_than_was_offered_is_thrown_away() -> None:
    disk = make_disk(4)
    target = open_engine(disk, 4, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, Offer(9, 1, (File(NAMES[0], 3), File(NAMES[2], 3))))
    receive(target, 2, Piece(NAMES[0], 0, b"four"))
    assert is_incoming(disk) == []


def test_files_that_hold_no_snapshot_are_thrown_away() -> None:
    disk = make_disk(4)
    target = open_engine(disk, 4, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, Offer(9, 1, (File(NAMES[0], 3), File(NAMES[2], 3))))
    for name in (NAMES[0], NAMES[2]):
        receive(target, 2, Piece(name, 0, b"xyz"))
    assert is_incoming(disk) == []
    assert target.applied == 0


def test_nothing_is_taken_in_while_the_journal_is_written() -> None:
    _, source = make_source()
    disk = make_disk(4)
    target = open_engine(disk, 4, settings=SMALL, blank=True)
    written = target.begin_commit(0)
    receive(target, 2, offered(source))
    assert messages(target) == []
    target.journal.write(written)
    target.finish_commit(0)
    assert [type(each) for each in messages(target)] == [FetchFile]


def test_a_state_that_came_too_late_is_not_taken() -> None:
    """Meanwhile the values have come from another."""
    _, source = make_source(last=8)
    receive(source, 4, Fetch(0))
    commit(source)
    disk = make_disk(3)
    target = open_engine(disk, 3, records_max=1_000, settings=SMALL)
    follow(target, 3)
    messages(target)
    begin(target, source, pieces=3)
    receive(target, 1, Chosen(4, tuple(map(command, range(4, 20))), 20))
    commit(target)
    talk(source, target)
    assert told(target, StateExchanged) == []
    assert row(target) == bodies(1, 19)
    assert is_incoming(disk) == []


def test_damage_does_not_spread() -> None:
    disk, source = make_source()
    offer = offered(source)
    name = offer.files[-3].name
    assert name.endswith(files.JOURNAL_SUFFIX)
    disk.flip_bit(name, 100)
    target_disk = make_disk(4)
    target = open_engine(target_disk, 4, records_max=12, settings=SMALL, blank=True)
    commit(target)
    receive(target, 2, offer)
    talk(source, target)
    assert (target.applied, told(target, StateExchanged)) == (0, [])
    assert is_incoming(target_disk) == []

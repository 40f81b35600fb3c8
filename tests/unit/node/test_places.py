"""Where the records of applied slots lie, when some have been replaced and older segments are gone (P6)."""

from __future__ import annotations

from tidings.journal.record import HEADER_SIZE, Record
from tidings.node.places import Places
from tidings.node.snapshot_header import Piece


def record(address: int) -> Record:
    return Record(0, 0, 0, 0, 0, b"12345", address + HEADER_SIZE + 5, 0)


def sealed(places: Places) -> Piece:
    piece = places.seal(b"")
    places.mark_sealed()
    return piece


def grown(places: Places, *addresses: int) -> Piece:
    for address in addresses:
        places.append(address, 5)
    return sealed(places)


def test_a_replaced_record_is_known_when_the_index_of_its_slot_is_gone() -> None:
    """Its first place took the index along; damaged again, it must still be known whose record it is."""
    places = Places()
    places.begin_at(1)
    grown(places, 100, 200)
    places.move(2, record(1_050))
    assert places.has_moved
    second = grown(places, 1_000)
    assert not places.has_moved
    later = Places()
    later.load([second], 4)
    later.forget_below(1_000)
    assert (2 in later, later.within(1_050, 1_100), later.record_address(2)) == (True, [2], 1_050)
    assert later.body_address(2) == 1_050 + HEADER_SIZE + 5
    later.move(2, record(2_050))
    assert later.within(0, 9_999) == [2, 3]
    again = Places()
    again.load([second, grown(later, 2_000)], 5)
    assert (again.record_address(2), again.first_slot) == (2_050, 3)


def test_a_slot_that_stands_apart_is_sent_alone_and_the_rest_without_a_gap() -> None:
    places = Places()
    places.begin_at(1)
    grown(places, 100, 200, 1_000, 1_100)
    places.move(1, record(1_200))
    places.forget_below(1_000)
    assert [places.from_slot(slot, 5) for slot in (1, 2, 3)] == [range(1, 2), range(0), range(3, 5)]


def test_what_was_replaced_is_forgotten_with_its_segment() -> None:
    places = Places()
    places.begin_at(1)
    grown(places, 100, 200)
    places.move(1, record(300))
    grown(places, 1_000)
    places.forget_below(900)
    assert (1 in places, places.within(0, 999)) == (False, [])
    assert sealed(places).moved == ()

"""Members remember what each other has said of itself, so that a disk that has lost something is found out (P6)."""

from __future__ import annotations

import pytest

from tests.unit.protocols.multipaxos.parts import WINDOW, command, make_log
from tidings.errors import StorageDamaged
from tidings.node.founding import founding
from tidings.protocols.multipaxos.claims import NOTHING, Claim, Extent, Memory
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    AnyMessage,
    Fetch,
    Persist,
    Prepare,
    PreVote,
    PreVoteGranted,
    Promise,
    Recall,
    Received,
    Remembered,
    Send,
)
from tidings.protocols.multipaxos.records import Installed, Known, Promised, Record, Stored, Witnessed, decode, encode
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Ballot, Entry
from tidings.protocols.multipaxos.witness import Witness
from tidings.protocols.stack import Effect
from tidings.settings import ReplicaSettings

LOW, HIGH = Ballot(1, 1), Ballot(2, 2)
LIFE = 77
EMPTY = Extent(ZERO, 1)
"""What a founder begins with."""
LITTLE, MUCH = Extent(LOW, 5), Extent(HIGH, 9)
SETTINGS = ReplicaSettings(witness_ms=100)
SPEECH = [
    PreVote(1, 1),
    PreVoteGranted(1),
    Prepare(HIGH, 1),
    Promise(HIGH, (), 1),
    Accept(HIGH, 1, (), 1, 0),
    Accepted(HIGH, 1, 0, 1, 0),
    Fetch(1),
]


def make_witness(began: Extent = EMPTY, voters: tuple[int, ...] = (1, 2, 3), *memories: Memory) -> Witness:
    """Member 1, with nothing to wait for."""
    witness = Witness(1, LIFE, make_log(voters), SETTINGS)
    witness.begin(began.promised, began.reach, memories, ())
    witness.wait_no_longer()
    return witness


def hear(
    witness: Witness,
    life: int,
    began: Extent,
    now: Extent | None = None,
    message: AnyMessage | None = None,
    node: int = 2,
    to: int = 0,
) -> tuple[bool, list[Effect]]:
    claim = Claim(life, began, now or began, to)
    return witness.admit(Received(0, node, message or Fetch(1), claim))


COUNTS: tuple[bool, list[Effect]] = (True, [])


def refused(life: int, extent: Extent, node: int = 2) -> tuple[bool, list[Effect]]:
    return False, [Send((node,), Remembered(life, extent))]


# What is remembered.


@pytest.mark.parametrize("message", SPEECH)
@pytest.mark.parametrize("began", [LITTLE, Extent(HIGH, 5), Extent(LOW, 9), EMPTY])
def test_a_life_that_began_with_less_than_was_said_before_does_not_count(began: Extent, message: AnyMessage) -> None:
    witness = make_witness()
    assert hear(witness, 1, LITTLE, MUCH) == COUNTS
    assert hear(witness, 2, began, message=message) == refused(2, MUCH)


def test_how_far_it_has_come_since_does_not_help() -> None:
    witness = make_witness()
    hear(witness, 1, LITTLE, MUCH)
    assert hear(witness, 2, LITTLE, Extent(Ballot(9, 9), 99)) == refused(2, MUCH)
    assert hear(witness, 2, LITTLE, Extent(Ballot(9, 9), 99)) == refused(2, MUCH), "nor the second time"


def test_a_life_that_began_with_all_that_was_said_counts() -> None:
    witness = make_witness()
    hear(witness, 1, LITTLE, MUCH)
    assert hear(witness, 2, MUCH, MUCH) == COUNTS
    assert hear(witness, 2, MUCH, Extent(HIGH, 12)) == COUNTS
    assert hear(witness, 3, MUCH) == refused(3, Extent(HIGH, 12))


def test_messages_of_one_life_may_overtake_each_other() -> None:
    witness = make_witness()
    assert hear(witness, 1, LITTLE, MUCH) == COUNTS
    assert hear(witness, 1, LITTLE, LITTLE) == COUNTS
    assert hear(witness, 2, LITTLE) == refused(2, MUCH), "the largest is kept"


def test_each_member_is_remembered_by_itself() -> None:
    witness = make_witness()
    hear(witness, 1, MUCH)
    assert hear(witness, 1, LITTLE, node=3) == COUNTS


def test_who_is_no_member_is_not_remembered() -> None:
    witness = make_witness()
    for began in (MUCH, LITTLE):
        assert hear(witness, began.reach, began, node=9) == COUNTS
    assert witness.memories() == ()


def test_a_sender_of_an_older_version_claims_nothing_and_counts() -> None:
    witness = make_witness()
    hear(witness, 1, MUCH)
    assert witness.admit(Received(0, 2, Fetch(1))) == COUNTS
    assert witness.admit(Received(0, 2, Recall())) == (False, [])


def test_anyone_who_asks_is_told_what_it_said_before_this_life() -> None:
    witness = make_witness()
    assert hear(witness, 1, LITTLE, message=Recall()) == refused(1, NOTHING)
    assert hear(witness, 1, LITTLE, MUCH, Recall()) == refused(1, NOTHING), "what it says now is no news to it"
    assert hear(witness, 2, LITTLE, message=Recall()) == refused(2, MUCH)


# What is claimed.


@pytest.mark.parametrize(
    ("record", "extent"),
    [
        (Promised(HIGH), Extent(HIGH, 1)),
        (Stored(Entry(6, HIGH, command(1))), Extent(HIGH, 7)),
        (Stored(Entry(6, CHOSEN, command(1))), Extent(ZERO, 7)),
        (Known(4), Extent(ZERO, 4)),
        (Installed(founding((1, 2, 3), WINDOW)), EMPTY),
    ],
)
def test_what_is_on_disk_is_claimed(record: Record, extent: Extent) -> None:
    witness = make_witness()
    witness.keep(record)
    assert witness.claim(2) == Claim(LIFE, EMPTY, extent)
    witness.keep(Promised(LOW))
    witness.keep(Known(1))
    assert witness.claim(2).now.covers(extent), "neither part of it ever falls"


def test_a_life_begins_with_all_that_the_disk_holds() -> None:
    log = make_log()
    log.store(Entry(6, HIGH, command(1)))
    witness = Witness(1, LIFE, log, SETTINGS)
    witness.begin(HIGH, 3, (), ())
    assert witness.claim(2).began == Extent(HIGH, 7)
    witness.begin(HIGH, 30, (), ())
    assert witness.claim(2).began == Extent(HIGH, 30), "what was lost to damage is decided, and counts"


# What others remember of us.


@pytest.mark.parametrize("extent", [Extent(HIGH, 5), Extent(LOW, 6), MUCH])
def test_anyone_who_once_said_more_ends(extent: Extent) -> None:
    witness = make_witness(LITTLE)
    with pytest.raises(StorageDamaged, match=r"^This folder knows less than member 1 of .*: give it an empty folder"):
        witness.admit(Received(0, 2, Remembered(LIFE, extent)))


def test_coming_further_does_not_make_up_for_what_was_lost() -> None:
    witness = make_witness(LITTLE)
    witness.keep(Stored(Entry(20, Ballot(9, 9), command(1))))
    with pytest.raises(StorageDamaged):
        witness.admit(Received(0, 2, Remembered(LIFE, MUCH)))


def test_what_is_remembered_of_an_earlier_life_is_no_news() -> None:
    witness = make_witness(LITTLE)
    assert witness.admit(Received(0, 2, Remembered(LIFE - 1, MUCH))) == (False, [])
    assert witness.admit(Received(0, 2, Remembered(LIFE, LITTLE))) == (False, [])


def test_even_who_has_lost_something_itself_can_say_so_of_others() -> None:
    witness = make_witness(LITTLE)
    hear(witness, 1, MUCH)
    with pytest.raises(StorageDamaged):
        hear(witness, 2, LITTLE, message=Remembered(LIFE, MUCH))


# A life begins.


def begun(voters: tuple[int, ...] = (1, 2, 3)) -> tuple[Witness, list[Effect]]:
    witness = Witness(1, LIFE, make_log(voters), SETTINGS)
    return witness, witness.begin(ZERO, 1, (), ())


@pytest.mark.parametrize("message", SPEECH)
def test_it_does_not_vote_before_all_have_said_what_they_remember(message: AnyMessage) -> None:
    witness, effects = begun()
    assert effects == [Send((2, 3), Recall())]
    waits = isinstance(message, PreVote | Prepare | Accept)
    assert hear(witness, 1, EMPTY, message=message) == (not waits, [])
    witness.admit(Received(0, 2, Remembered(LIFE, NOTHING)))
    assert hear(witness, 1, EMPTY, message=message) == (not waits, [])
    witness.admit(Received(0, 3, Remembered(LIFE, NOTHING)))
    assert hear(witness, 1, EMPTY, message=message) == COUNTS


def test_it_does_not_wait_for_ever() -> None:
    witness, _ = begun()
    witness.wait_no_longer()
    assert hear(witness, 1, EMPTY, message=PreVote(1, 1)) == COUNTS


def test_who_is_alone_waits_for_nobody() -> None:
    _, effects = begun((1,))
    assert effects == []


def test_what_is_said_to_an_earlier_life_is_not_heard() -> None:
    """An answer may wait for long where it was to be sent; the ballot that it is for may be another's by then."""
    witness = make_witness()
    assert hear(witness, 1, EMPTY, to=LIFE) == COUNTS
    assert hear(witness, 1, EMPTY, to=LIFE - 1) == (False, [Send((2,), Recall())])
    assert hear(witness, 1, EMPTY, to=LIFE - 1, message=Recall()) == refused(1, NOTHING)
    assert witness.claim(2).to == 1
    assert witness.claim(3).to == 0


# What is written down.


def test_what_was_heard_is_written_down_now_and_then() -> None:
    witness = make_witness()
    assert witness.tend(0) == []
    hear(witness, 1, LITTLE)
    assert witness.tend(99) == []
    memories = (Memory(2, 1, LITTLE),)
    assert witness.tend(100) == [Persist((Witnessed(memories), Known(1)))]
    hear(witness, 1, LITTLE)
    assert witness.tend(200) == [], "nothing is new"
    hear(witness, 1, LITTLE, MUCH)
    written = Persist((Witnessed((Memory(2, 1, MUCH),)), Known(1)))
    assert witness.tend(50) == [written], "a clock that was set back keeps nothing waiting"


def test_at_a_clean_end_it_is_written_down_at_once() -> None:
    witness = make_witness()
    assert witness.write() == []
    hear(witness, 1, LITTLE)
    assert witness.write() == [Persist((Witnessed((Memory(2, 1, LITTLE),)), Known(1)))]
    assert witness.write() == []


def test_the_others_hear_now_and_then_how_far_we_have_come() -> None:
    witness = make_witness()
    witness.tend(0)
    witness.keep(Promised(LOW))
    assert witness.tend(50) == []
    assert witness.tend(100) == [Send((2, 3), Recall())]
    assert witness.tend(200) == []


@pytest.mark.parametrize("place", ["snapshot", "record"])
def test_a_restart_forgets_nothing_that_was_written_down(place: str) -> None:
    memories = (Memory(2, 1, MUCH),)
    older = (Memory(2, 1, LITTLE),)
    witness = Witness(1, LIFE, make_log(), SETTINGS)
    if place == "snapshot":
        witness.begin(ZERO, 1, memories, ())
    else:
        witness.begin(ZERO, 1, (), [Witnessed(older), decode(encode(Witnessed(memories)))])
    assert hear(witness, 2, LITTLE) == refused(2, MUCH)
    assert hear(witness, 1, LITTLE, MUCH) == COUNTS


def test_of_those_who_have_left_nothing_is_kept() -> None:
    witness = make_witness(EMPTY, (1, 3), Memory(2, 1, MUCH), Memory(3, 1, LITTLE))
    assert witness.memories() == (Memory(3, 1, LITTLE),)

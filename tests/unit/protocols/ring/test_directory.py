"""The directory: what comes in any order ends in the same knowledge, and that leads to the owner (P9)."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.chord.identifiers import Key, key_of
from tidings.protocols.ring.directory import TELLINGS, Directory, merged
from tidings.protocols.ring.key_ranges import LAST, WHOLE, KeyRange, KeyRanges, common, joined, owns, without
from tidings.protocols.ring.messages import Gone, GroupDescriptor, Word


def test_whether_a_leader_asks_homes_is_what_that_leader_says() -> None:
    """The others of its group do not know it, and the next leader may be of an older release."""
    says = GroupDescriptor(b"one", (), "tcp://a", 2, 1, False, 1, True)
    follower = GroupDescriptor(b"one", (), "tcp://a", 2, 5, False, 1)
    older = GroupDescriptor(b"one", (), "tcp://b", 3, 6, False, 2)
    for first, second in ((says, follower), (follower, says)):
        assert merged(first, second).asks_homes
    for first, second in ((says, older), (older, says)):
        assert not merged(first, second).asks_homes


def descriptor(group: bytes, slot: int = 0, term: int = 0, leader: str = "", left: bool = False) -> GroupDescriptor:
    return GroupDescriptor(group, (f"tcp://{group.hex()}",), leader, term, slot, left)


class History:
    """Groups that give ranges to each other, and every word that any of them could have said."""

    def __init__(self, rng: random.Random, groups: int, moves: int) -> None:
        self.rng = rng
        self.ranges: dict[bytes, KeyRanges] = {bytes([number]): () for number in range(groups)}
        self.gone: dict[bytes, tuple[Gone, ...]] = dict.fromkeys(self.ranges, ())
        self.slots = dict.fromkeys(self.ranges, 0)
        self.terms = dict.fromkeys(self.ranges, 0)
        self.left: dict[bytes, bool] = dict.fromkeys(self.ranges, False)
        self.words: list[Word] = []
        self.ranges[bytes([0])] = (WHOLE,)
        for group in self.ranges:
            self.say(group)
        for _ in range(moves):
            self.move()

    def say(self, group: bytes) -> None:
        self.slots[group] += 1
        self.terms[group] += self.rng.randrange(2)
        leader = self.rng.choice(["", f"tcp://leader-{self.terms[group]}"])
        told = descriptor(group, self.slots[group], self.terms[group], leader, self.left[group])
        self.words.append(Word(told, self.ranges[group], self.gone[group]))

    def move(self) -> None:
        source, target = self.rng.sample(list(self.ranges), 2)
        if self.left[target] or self.left[source]:
            return
        start, end = (key_of(str(self.rng.random())) for _ in range(2))
        ranges = common(self.ranges[source], (KeyRange(start, end),))
        if self.rng.random() < 0.1 and source != bytes([0]):
            ranges, self.left[source] = self.ranges[source], True
        self.ranges[source] = without(self.ranges[source], ranges)
        self.gone[source] += tuple(Gone(key_range, descriptor(target)) for key_range in ranges)
        self.say(source)
        self.ranges[target] = joined((*self.ranges[target], *ranges))
        self.say(target)

    def owner(self, point: Key) -> bytes:
        [owner] = [group for group, ranges in self.ranges.items() if owns(ranges, point)]
        return owner


POINTS = [key_of(f"point {number}") for number in range(64)]


def state(directory: Directory) -> object:
    descriptors = sorted(directory.descriptors(), key=lambda descriptor: descriptor.group)
    found = [directory.find(point) for point in POINTS]
    return descriptors, [directory.ranges_of(descriptor.group) for descriptor in descriptors], found, directory.covers()


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_words_does_not_matter_and_all_of_them_lead_to_the_owners(seed: int) -> None:
    rng = random.Random(seed)
    history = History(rng, groups=rng.randrange(2, 7), moves=rng.randrange(30))
    states = []
    for _ in range(4):
        directory = Directory()
        words = history.words + rng.sample(history.words, len(history.words) // 2)
        rng.shuffle(words)
        for word in words:
            directory.learn(word)
            if rng.random() < 0.2:
                directory.find(POINTS[0])
        states.append(state(directory))
        for point in POINTS:
            owner = directory.find(point)
            assert owner is not None
            assert owner.group == history.owner(point)
        assert directory.covers()
        assert not any(map(directory.learn, words)), "What is known already is no news."
    assert all(other == states[0] for other in states)


@given(
    st.lists(
        st.builds(
            descriptor,
            group=st.sampled_from([b"a", b"b"]),
            slot=st.integers(0, 3),
            term=st.integers(0, 3),
            leader=st.sampled_from(["", "tcp://one", "tcp://two"]),
            left=st.booleans(),
        ),
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_descriptors_does_not_matter(descriptors: list[GroupDescriptor], rng: random.Random) -> None:
    one, other = Directory(), Directory()
    for each in descriptors:
        one.learn_descriptor(each)
    rng.shuffle(descriptors)
    for each in descriptors:
        other.learn_descriptor(each)
    for group in (b"a", b"b"):
        assert one.descriptor(group) == other.descriptor(group)


@pytest.mark.parametrize("seed", range(20))
def test_claims_and_gaps_are_what_a_simple_list_of_words_says(seed: int) -> None:
    """Words that contradict each other, against a model that looks at every claim for every point."""
    rng = random.Random(seed)
    directory, claims = Directory(), dict[bytes, tuple[int, int, KeyRanges]]()
    for number in range(40):
        group = bytes([rng.randrange(6)])
        slot = rng.randrange(20)
        ends = [KeyRange(*(rng.choice(POINTS) for _ in range(2))) for _ in range(rng.randrange(3))]
        ranges = joined(ends)
        directory.learn(Word(descriptor(group, slot), ranges))
        if slot > claims.get(group, (-1, 0, ()))[0]:
            claims[group] = slot, number, ranges
        known: KeyRanges = joined(key_range for _, _, ranges in claims.values() for key_range in ranges)
        assert directory.covers() == (known == (WHOLE,))
        for point in POINTS:
            claiming = [(learned, group) for group, (_, learned, ranges) in claims.items() if owns(ranges, point)]
            found = directory.find(point)
            assert (found and found.group) == (max(claiming)[1] if claiming else None)
            gap = directory.gap(point)
            assert (gap is None) == directory.covers()
            if gap is not None:
                assert common((gap,), known) == ()
                assert point == gap.start or owns(known, gap.start)
                assert point == gap.start or not without((KeyRange(point, gap.start),), known), "There is a nearer one."


def test_a_claim_that_was_taken_away_counts_again_when_the_other_is_given_up() -> None:
    directory, point = Directory(), POINTS[0]
    directory.learn(Word(descriptor(b"a", 5), (WHOLE,)))
    directory.learn(Word(descriptor(b"b", 7), (WHOLE,)))
    assert directory.find(point) == descriptor(b"b", 7)
    assert not directory.learn(Word(descriptor(b"a", 5), (WHOLE,))), "This is no newer."
    assert directory.find(point) == descriptor(b"b", 7)
    directory.learn(Word(descriptor(b"a", 6), (WHOLE,)))
    assert directory.find(point) == descriptor(b"a", 6)
    assert directory.learn(Word(descriptor(b"a", 9), ()))
    assert directory.find(point) == descriptor(b"b", 7)


def test_a_descriptor_without_a_leader_erases_none_of_its_term() -> None:
    directory = Directory()
    directory.learn_descriptor(descriptor(b"a", 1, term=4, leader="tcp://four"))
    assert not directory.learn_descriptor(descriptor(b"a", 2, term=4))
    assert not directory.learn_descriptor(descriptor(b"a", 3, term=2, leader="tcp://two"))
    assert directory.descriptor(b"a") == descriptor(b"a", 3, term=4, leader="tcp://four")
    assert directory.learn_descriptor(descriptor(b"a", 3, term=5))
    assert directory.descriptor(b"a") == descriptor(b"a", 3, term=5)


def test_of_two_ballots_of_one_number_that_of_the_higher_member_leads_whatever_its_address() -> None:
    """Two members ran at once: both ballots are 4, and the one of member 4 deposed that of member 2."""
    older = GroupDescriptor(b"a", (), "tcp://k2:7400", term=4, leader_number=2)
    newer = GroupDescriptor(b"a", (), "tcp://k1:7400", term=4, leader_number=4)
    for descriptors in ((older, newer), (newer, older)):
        directory = Directory()
        assert directory.learn_descriptor(descriptors[0])
        assert directory.learn_descriptor(descriptors[1]) == (descriptors[1] is newer)
        assert directory.descriptor(b"a") == newer


def test_what_is_told_of_a_group_has_the_slot_of_its_ranges_and_not_that_of_a_newer_descriptor() -> None:
    """What the group says itself at that slot would be no news to anyone who was told so."""
    teller, listener = Directory(), Directory()
    teller.learn(Word(descriptor(b"a", 5), (WHOLE,)))
    teller.learn_descriptor(descriptor(b"a", 9, term=2, leader="tcp://a"))
    owner = teller.find(POINTS[0])
    assert owner is not None
    told = teller.word_of(owner)
    assert told == Word(descriptor(b"a", 5, term=2, leader="tcp://a"), (WHOLE,))
    listener.learn(told)
    half = (KeyRange(LAST, POINTS[0]),)
    assert listener.learn(Word(descriptor(b"a", 9, term=2, leader="tcp://a"), half))
    assert listener.ranges_of(b"a") == half


def test_hints_lead_along_the_chain_of_transfers() -> None:
    directory, point = Directory(), POINTS[0]
    assert directory.hint(point) is None
    directory.learn(Word(descriptor(b"a", 5), (), (Gone(WHOLE, descriptor(b"b")),)))
    assert directory.descriptor(b"b") == descriptor(b"b"), "Who was given something is known from now on."
    assert directory.hint(point) == descriptor(b"b")
    directory.learn(Word(descriptor(b"b", 5), (), (Gone(WHOLE, descriptor(b"a")), Gone(WHOLE, descriptor(b"c")))))
    assert directory.hint(point) == descriptor(b"c")
    directory.learn(Word(descriptor(b"c", 5), (), (Gone(WHOLE, descriptor(b"a")),)))
    assert directory.hint(point) == directory.first_at(point), "Hints that go round lead nowhere."
    directory.learn(Word(descriptor(b"d", 1), (WHOLE,)))
    assert directory.hint(point) == descriptor(b"d", 1)


def test_groups_that_left_own_nothing_and_are_nobody_to_ask() -> None:
    directory, point = Directory(), POINTS[0]
    directory.learn(Word(descriptor(b"a", 5), (WHOLE,)))
    directory.learn_descriptor(descriptor(b"a", 6, left=True))
    assert directory.find(point) is None
    assert directory.ranges_of(b"a") == ()
    assert directory.hint(point) is None
    assert directory.gap(point) == KeyRange(point, b"\xff" * 32)


def test_who_stands_at_a_point_and_before_it() -> None:
    directory = Directory()
    assert directory.first_at(POINTS[0]) is directory.last_before(POINTS[0]) is None
    descriptors = sorted((descriptor(bytes([number])) for number in range(9)), key=lambda descriptor: descriptor.point)
    for each in descriptors:
        directory.learn_descriptor(each)
    for place, each in enumerate(descriptors):
        assert directory.first_at(each.point) == each
        assert directory.last_before(each.point) == descriptors[place - 1]
    directory.learn_descriptor(msgspec.structs.replace(descriptors[3], left=True, slot=1))
    assert directory.first_at(descriptors[3].point) == descriptors[4]


def test_a_full_directory_forgets_who_left_and_then_who_was_not_heard_of_for_longest() -> None:
    directory = Directory(groups_max=3)
    directory.learn(Word(descriptor(b"a", 1), (WHOLE,)))
    directory.learn_descriptor(descriptor(b"b", left=True))
    directory.learn_descriptor(descriptor(b"c"))
    directory.learn_descriptor(descriptor(b"d"))
    assert [known.group for known in directory.descriptors()] == [b"a", b"c", b"d"]
    directory.learn_descriptor(descriptor(b"a"))
    directory.learn_descriptor(descriptor(b"e"))
    assert [known.group for known in directory.descriptors()] == [b"d", b"a", b"e"]
    directory.learn_descriptor(descriptor(b"f"))
    directory.learn_descriptor(descriptor(b"g"))
    assert directory.find(POINTS[0]) is None, "What is forgotten owns nothing."


def test_news_is_told_some_times_by_turns_and_then_no_more() -> None:
    directory = Directory()
    directory.learn_descriptor(descriptor(b"a"))
    directory.learn_descriptor(descriptor(b"b"))
    told = []
    while news := directory.tell_news(1):
        told += [each.group for each in news]
    assert told[:4] == [b"a", b"b", b"a", b"b"]
    assert told.count(b"a") == told.count(b"b") == TELLINGS * 2
    assert not directory.learn_descriptor(descriptor(b"a", slot=9))
    assert not directory.tell_news(1), "That a group has applied more is not worth telling."
    directory.learn_descriptor(descriptor(b"a", slot=10, left=True))
    assert directory.tell_news(2) == [descriptor(b"a", slot=10, left=True)]


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_all_groups_are_the_circle_once(seed: int) -> None:
    history = History(random.Random(seed), 5, 20)
    directory = Directory()
    for word in history.words[seed:]:
        directory.learn(word)
    pieces = {group: directory.pieces_of(group) for group in history.ranges}
    for number in range(50):
        point = key_of(str(number))
        owner = directory.find(point)
        assert [group for group, ranges in pieces.items() if owns(ranges, point)] == ([owner.group] if owner else [])


def test_a_group_that_is_distrusted_is_believed_again_when_it_speaks() -> None:
    directory = Directory()
    word = Word(descriptor(b"a", slot=5), (WHOLE,))
    directory.learn(word)
    directory.distrust(b"a")
    directory.distrust(b"unknown")
    assert directory.find(key_of("x")) is None
    assert directory.learn(word)
    owner = directory.find(key_of("x"))
    assert owner is not None and owner.group == b"a"

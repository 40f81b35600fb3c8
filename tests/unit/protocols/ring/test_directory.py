"""The directory: what comes in any order ends in the same knowledge, and that leads to the owner (P9)."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.chord.identifiers import Key, key_of
from tidings.protocols.ring.arcs import LAST, WHOLE, Arc, Arcs, common, joined, owns, without
from tidings.protocols.ring.directory import TELLINGS, Directory
from tidings.protocols.ring.messages import Card, Gone, Word


def card(group: bytes, slot: int = 0, term: int = 0, leader: str = "", left: bool = False) -> Card:
    return Card(group, (f"tcp://{group.hex()}",), leader, term, slot, left)


class History:
    """Groups that give arcs to each other, and every word that any of them could have said."""

    def __init__(self, chance: random.Random, groups: int, moves: int) -> None:
        self.chance = chance
        self.arcs: dict[bytes, Arcs] = {bytes([number]): () for number in range(groups)}
        self.gone: dict[bytes, tuple[Gone, ...]] = dict.fromkeys(self.arcs, ())
        self.slots = dict.fromkeys(self.arcs, 0)
        self.terms = dict.fromkeys(self.arcs, 0)
        self.left: dict[bytes, bool] = dict.fromkeys(self.arcs, False)
        self.words: list[Word] = []
        self.arcs[bytes([0])] = (WHOLE,)
        for group in self.arcs:
            self.say(group)
        for _ in range(moves):
            self.move()

    def say(self, group: bytes) -> None:
        self.slots[group] += 1
        self.terms[group] += self.chance.randrange(2)
        leader = self.chance.choice(["", f"tcp://leader-{self.terms[group]}"])
        told = card(group, self.slots[group], self.terms[group], leader, self.left[group])
        self.words.append(Word(told, self.arcs[group], self.gone[group]))

    def move(self) -> None:
        giver, taker = self.chance.sample(list(self.arcs), 2)
        if self.left[taker] or self.left[giver]:
            return
        start, end = (key_of(str(self.chance.random())) for _ in range(2))
        arcs = common(self.arcs[giver], (Arc(start, end),))
        if self.chance.random() < 0.1 and giver != bytes([0]):
            arcs, self.left[giver] = self.arcs[giver], True
        self.arcs[giver] = without(self.arcs[giver], arcs)
        self.gone[giver] += tuple(Gone(arc, card(taker)) for arc in arcs)
        self.say(giver)
        self.arcs[taker] = joined((*self.arcs[taker], *arcs))
        self.say(taker)

    def owner(self, point: Key) -> bytes:
        [owner] = [group for group, arcs in self.arcs.items() if owns(arcs, point)]
        return owner


POINTS = [key_of(f"point {number}") for number in range(64)]


def state(directory: Directory) -> object:
    cards = sorted(directory.cards(), key=lambda card: card.group)
    found = [directory.find(point) for point in POINTS]
    return cards, [directory.arcs_of(card.group) for card in cards], found, directory.covers()


@pytest.mark.parametrize("seed", range(40))
def test_the_order_of_words_does_not_matter_and_all_of_them_lead_to_the_owners(seed: int) -> None:
    chance = random.Random(seed)
    history = History(chance, groups=chance.randrange(2, 7), moves=chance.randrange(30))
    states = []
    for _ in range(4):
        directory = Directory()
        words = history.words + chance.sample(history.words, len(history.words) // 2)
        chance.shuffle(words)
        for word in words:
            directory.learn(word)
            if chance.random() < 0.2:
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
            card,
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
def test_the_order_of_cards_does_not_matter(cards: list[Card], chance: random.Random) -> None:
    one, other = Directory(), Directory()
    for each in cards:
        one.learn_card(each)
    chance.shuffle(cards)
    for each in cards:
        other.learn_card(each)
    for group in (b"a", b"b"):
        assert one.card(group) == other.card(group)


@pytest.mark.parametrize("seed", range(20))
def test_claims_and_gaps_are_what_a_simple_list_of_words_says(seed: int) -> None:
    """Words that contradict each other, against a model that looks at every claim for every point."""
    chance = random.Random(seed)
    directory, claims = Directory(), dict[bytes, tuple[int, int, Arcs]]()
    for number in range(40):
        group = bytes([chance.randrange(6)])
        slot = chance.randrange(20)
        ends = [Arc(*(chance.choice(POINTS) for _ in range(2))) for _ in range(chance.randrange(3))]
        arcs = joined(ends)
        directory.learn(Word(card(group, slot), arcs))
        if slot > claims.get(group, (-1, 0, ()))[0]:
            claims[group] = slot, number, arcs
        known: Arcs = joined(arc for _, _, arcs in claims.values() for arc in arcs)
        assert directory.covers() == (known == (WHOLE,))
        for point in POINTS:
            claiming = [(learned, group) for group, (_, learned, arcs) in claims.items() if owns(arcs, point)]
            found = directory.find(point)
            assert (found and found.group) == (max(claiming)[1] if claiming else None)
            gap = directory.gap(point)
            assert (gap is None) == directory.covers()
            if gap is not None:
                assert common((gap,), known) == ()
                assert point == gap.start or owns(known, gap.start)
                assert point == gap.start or not without((Arc(point, gap.start),), known), "There is a nearer one."


def test_a_claim_that_was_taken_away_counts_again_when_the_other_is_given_up() -> None:
    directory, point = Directory(), POINTS[0]
    directory.learn(Word(card(b"a", 5), (WHOLE,)))
    directory.learn(Word(card(b"b", 7), (WHOLE,)))
    assert directory.find(point) == card(b"b", 7)
    assert not directory.learn(Word(card(b"a", 5), (WHOLE,))), "This is no newer."
    assert directory.find(point) == card(b"b", 7)
    directory.learn(Word(card(b"a", 6), (WHOLE,)))
    assert directory.find(point) == card(b"a", 6)
    assert directory.learn(Word(card(b"a", 9), ()))
    assert directory.find(point) == card(b"b", 7)


def test_a_card_without_a_leader_erases_none_of_its_term() -> None:
    directory = Directory()
    directory.learn_card(card(b"a", 1, term=4, leader="tcp://four"))
    assert not directory.learn_card(card(b"a", 2, term=4))
    assert not directory.learn_card(card(b"a", 3, term=2, leader="tcp://two"))
    assert directory.card(b"a") == card(b"a", 3, term=4, leader="tcp://four")
    assert directory.learn_card(card(b"a", 3, term=5))
    assert directory.card(b"a") == card(b"a", 3, term=5)


def test_of_two_ballots_of_one_number_that_of_the_higher_member_leads_whatever_its_address() -> None:
    """Two members ran at once: both ballots are 4, and the one of member 4 deposed that of member 2."""
    older = Card(b"a", (), "tcp://k2:7400", term=4, leader_number=2)
    newer = Card(b"a", (), "tcp://k1:7400", term=4, leader_number=4)
    for cards in ((older, newer), (newer, older)):
        directory = Directory()
        assert directory.learn_card(cards[0])
        assert directory.learn_card(cards[1]) == (cards[1] is newer)
        assert directory.card(b"a") == newer


def test_what_is_told_of_a_group_has_the_slot_of_its_arcs_and_not_that_of_a_newer_card() -> None:
    """What the group says itself at that slot would be no news to whoever was told so."""
    teller, listener = Directory(), Directory()
    teller.learn(Word(card(b"a", 5), (WHOLE,)))
    teller.learn_card(card(b"a", 9, term=2, leader="tcp://a"))
    owner = teller.find(POINTS[0])
    assert owner is not None
    told = teller.word_of(owner)
    assert told == Word(card(b"a", 5, term=2, leader="tcp://a"), (WHOLE,))
    listener.learn(told)
    half = (Arc(LAST, POINTS[0]),)
    assert listener.learn(Word(card(b"a", 9, term=2, leader="tcp://a"), half))
    assert listener.arcs_of(b"a") == half


def test_hints_lead_along_the_chain_of_gifts() -> None:
    directory, point = Directory(), POINTS[0]
    assert directory.hint(point) is None
    directory.learn(Word(card(b"a", 5), (), (Gone(WHOLE, card(b"b")),)))
    assert directory.card(b"b") == card(b"b"), "Who was given something is known from now on."
    assert directory.hint(point) == card(b"b")
    directory.learn(Word(card(b"b", 5), (), (Gone(WHOLE, card(b"a")), Gone(WHOLE, card(b"c")))))
    assert directory.hint(point) == card(b"c")
    directory.learn(Word(card(b"c", 5), (), (Gone(WHOLE, card(b"a")),)))
    assert directory.hint(point) == directory.first_at(point), "Hints that go round lead nowhere."
    directory.learn(Word(card(b"d", 1), (WHOLE,)))
    assert directory.hint(point) == card(b"d", 1)


def test_groups_that_left_own_nothing_and_are_nobody_to_ask() -> None:
    directory, point = Directory(), POINTS[0]
    directory.learn(Word(card(b"a", 5), (WHOLE,)))
    directory.learn_card(card(b"a", 6, left=True))
    assert directory.find(point) is None
    assert directory.arcs_of(b"a") == ()
    assert directory.hint(point) is None
    assert directory.gap(point) == Arc(point, b"\xff" * 32)


def test_who_stands_at_a_point_and_before_it() -> None:
    directory = Directory()
    assert directory.first_at(POINTS[0]) is directory.last_before(POINTS[0]) is None
    cards = sorted((card(bytes([number])) for number in range(9)), key=lambda card: card.point)
    for each in cards:
        directory.learn_card(each)
    for place, each in enumerate(cards):
        assert directory.first_at(each.point) == each
        assert directory.last_before(each.point) == cards[place - 1]
    directory.learn_card(msgspec.structs.replace(cards[3], left=True, slot=1))
    assert directory.first_at(cards[3].point) == cards[4]


def test_a_full_directory_forgets_who_left_and_then_who_was_not_heard_of_for_longest() -> None:
    directory = Directory(groups_max=3)
    directory.learn(Word(card(b"a", 1), (WHOLE,)))
    directory.learn_card(card(b"b", left=True))
    directory.learn_card(card(b"c"))
    directory.learn_card(card(b"d"))
    assert [known.group for known in directory.cards()] == [b"a", b"c", b"d"]
    directory.learn_card(card(b"a"))
    directory.learn_card(card(b"e"))
    assert [known.group for known in directory.cards()] == [b"d", b"a", b"e"]
    directory.learn_card(card(b"f"))
    directory.learn_card(card(b"g"))
    assert directory.find(POINTS[0]) is None, "What is forgotten owns nothing."


def test_news_is_told_some_times_by_turns_and_then_no_more() -> None:
    directory = Directory()
    directory.learn_card(card(b"a"))
    directory.learn_card(card(b"b"))
    told = []
    while news := directory.tell_news(1):
        told += [each.group for each in news]
    assert told[:4] == [b"a", b"b", b"a", b"b"]
    assert told.count(b"a") == told.count(b"b") == TELLINGS * 2
    assert not directory.learn_card(card(b"a", slot=9))
    assert not directory.tell_news(1), "That a group has applied more is not worth telling."
    directory.learn_card(card(b"a", slot=10, left=True))
    assert directory.tell_news(2) == [card(b"a", slot=10, left=True)]


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_all_groups_are_the_circle_once(seed: int) -> None:
    history = History(random.Random(seed), 5, 20)
    directory = Directory()
    for word in history.words[seed:]:
        directory.learn(word)
    pieces = {group: directory.pieces_of(group) for group in history.arcs}
    for number in range(50):
        point = key_of(str(number))
        owner = directory.find(point)
        assert [group for group, arcs in pieces.items() if owns(arcs, point)] == ([owner.group] if owner else [])


def test_a_group_that_is_distrusted_is_believed_again_when_it_speaks() -> None:
    directory = Directory()
    word = Word(card(b"a", slot=5), (WHOLE,))
    directory.learn(word)
    directory.distrust(b"a")
    directory.distrust(b"unknown")
    assert directory.find(key_of("x")) is None
    assert directory.learn(word)
    owner = directory.find(key_of("x"))
    assert owner is not None and owner.group == b"a"

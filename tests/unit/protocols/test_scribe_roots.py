"""The root of a topic and its copies (P5, P12): offsets, what counts, and how a reign passes on."""

from __future__ import annotations

from collections import deque

import pytest

from tidings.errors import InvalidRequest, Overloaded
from tidings.protocols.scribe import NOW, ScribeSettings
from tidings.protocols.scribe.log import TopicLog
from tidings.protocols.scribe.messages import (
    Accepted,
    Entry,
    Fetch,
    Fetched,
    Inherit,
    Legacy,
    Pull,
    Pulled,
    Refused,
    Replicate,
    Replicated,
    Submit,
)
from tidings.protocols.scribe.outbox import Outbox
from tidings.protocols.scribe.roots import Roots
from tidings.protocols.stack import Effect, Message, NodeId, Send

TOPIC = "news"
SETTINGS = ScribeSettings(replicas=2, chunk_messages_max=3)


class Office:
    """Some nodes that are roots or copies, and a post between them that a test can hold up."""

    def __init__(self, *names: NodeId, settings: ScribeSettings = SETTINGS) -> None:
        self.settings = settings
        self.nodes: dict[NodeId, Roots] = {}
        self.counted: dict[NodeId, list[tuple[int, bytes]]] = {}
        self.post: deque[tuple[NodeId, NodeId, Message]] = deque()
        self.came: list[tuple[NodeId, Message]] = []
        """What went to somebody who is not a node: a publisher or a reader."""
        for name in names:
            self.add(name)

    def add(self, name: NodeId) -> None:
        counted: list[tuple[int, bytes]] = []

        def count(topic: str, first: int, entries: tuple[Entry, ...]) -> list[Effect]:
            counted.extend((first + index, entry.payload) for index, entry in enumerate(entries))
            return []

        self.counted[name] = counted
        self.nodes[name] = Roots(name, self.settings, lambda peer, message: [Send((peer,), message)], count)

    def do(self, name: NodeId, effects: list[Effect], deliver: bool = True) -> None:
        for effect in effects:
            assert isinstance(effect, Send)
            self.post.extend((name, peer, effect.message) for peer in effect.peers)
        while deliver and self.post:
            self.deliver_one()

    def deliver_one(self) -> None:
        sender, receiver, message = self.post.popleft()
        if receiver not in self.nodes:
            self.came.append((receiver, message))
            return
        roots = self.nodes[receiver]
        match message:
            case Replicate():
                effects = roots.on_replicate(sender, message)
            case Replicated():
                effects = roots.on_replicated(sender, message)
            case Inherit():
                effects = roots.on_inherit(sender, message)
            case Legacy():
                effects = roots.on_legacy(sender, message)
            case Pull():
                effects = roots.on_pull(sender, message)
            case Pulled():
                effects = roots.on_pulled(sender, message)
            case _:
                raise AssertionError(message)
        self.do(receiver, effects, deliver=False)

    def reign(self, name: NodeId, *followers: NodeId) -> None:
        self.do(name, self.nodes[name].on_successors(followers))
        self.do(name, self.nodes[name].begin(TOPIC))

    def submit(self, name: NodeId, first: int, *payloads: bytes, deliver: bool = True, publisher: NodeId = "p") -> None:
        self.do(name, self.nodes[name].on_submit(Submit(TOPIC, publisher, 1, first, payloads)), deliver)

    def beat(self, name: NodeId) -> None:
        self.do(name, self.nodes[name].on_beat())

    def log(self, name: NodeId) -> list[bytes]:
        log = self.nodes[name].logs[TOPIC]
        return [entry.payload for entry in log.slice(log.base, log.end)]


def test_a_root_without_copies_gives_offsets_at_once() -> None:
    office = Office("root")
    office.reign("root")
    office.submit("root", 0, b"a", b"b")
    assert office.counted["root"] == [(0, b"a"), (1, b"b")]
    assert office.came == [("p", Accepted(TOPIC, 1, 2))]


def test_a_message_counts_when_every_copy_has_it() -> None:
    office = Office("root", "one", "two")
    office.reign("root", "one", "two", "beyond")
    office.submit("root", 0, b"a", deliver=False)
    assert [receiver for _, receiver, _ in office.post] == ["one", "two"]
    for _ in range(3):  # Both copies get it, and only one has answered.
        office.deliver_one()
    assert office.counted["root"] == [] and office.came == []
    office.do("root", [])
    assert office.counted["root"] == [(0, b"a")]
    assert office.log("one") == office.log("two") == [b"a"]


def test_a_repeated_message_is_accepted_again_and_not_taken_again() -> None:
    office = Office("root", "one")
    office.reign("root", "one")
    office.submit("root", 0, b"a")
    office.submit("root", 0, b"a", b"b")
    assert office.counted["root"] == [(0, b"a"), (1, b"b")]
    office.submit("root", 0, b"a", b"b")
    assert office.came[-1] == ("p", Accepted(TOPIC, 1, 2))
    assert office.log("root") == [b"a", b"b"]


def test_no_message_is_taken_before_its_turn() -> None:
    office = Office("root")
    office.reign("root")
    office.submit("root", 1, b"b")
    assert office.log("root") == []


def test_lives_of_a_publisher_count_apart() -> None:
    office = Office("root")
    office.reign("root")
    office.submit("root", 0, b"a")
    office.do("root", office.nodes["root"].on_submit(Submit(TOPIC, "p", 2, 0, (b"again",))))
    assert office.log("root") == [b"a", b"again"]


def test_publishers_are_bounded() -> None:
    office = Office("root", settings=ScribeSettings(replicas=0, publishers_max=1))
    office.reign("root")
    office.submit("root", 0, b"a")
    office.submit("root", 0, b"b", publisher="q")
    [(receiver, refusal)] = [(name, message) for name, message in office.came if isinstance(message, Refused)]
    assert receiver == "q" and isinstance(refusal, Refused) and "publishers_max" in refusal.reason


def test_a_copy_that_is_gone_is_not_waited_for() -> None:
    office = Office("root", "one")
    office.reign("root", "one")
    office.nodes["root"].on_successors(("one", "gone"))
    office.submit("root", 0, b"a")
    assert office.counted["root"] == []
    office.do("root", office.nodes["root"].on_successors(("one",)))
    assert office.counted["root"] == [(0, b"a")]


def test_a_new_copy_gets_the_whole_log_piece_by_piece() -> None:
    office = Office("root", "one", "late")
    office.reign("root", "one")
    office.submit("root", 0, *(b"%d" % number for number in range(10)))
    office.do("root", office.nodes["root"].on_successors(("one", "late")))
    assert office.log("late") == office.log("root")
    assert len(office.log("late")) == 10


def test_a_lost_copy_is_sent_again_with_the_beat() -> None:
    office = Office("root", "one")
    office.reign("root", "one")
    office.submit("root", 0, b"a", deliver=False)
    office.post.clear()
    office.beat("root")
    assert office.counted["root"] == [(0, b"a")]


def test_a_copy_becomes_the_root_with_everything_that_counted() -> None:
    office = Office("root", "one", "two", "three")
    office.reign("root", "one", "two")
    office.submit("root", 0, b"a", b"b")
    office.reign("one", "two", "three")
    office.submit("one", 2, b"c")
    assert office.log("three") == [b"a", b"b", b"c"]
    assert office.nodes["one"].logs[TOPIC].committed == 3


def test_a_newcomer_asks_for_the_best_log() -> None:
    office = Office("old", "one", "new")
    office.reign("old", "one")
    office.submit("old", 0, *(b"%d" % number for number in range(8)))
    office.reign("new", "old", "one")
    assert office.log("new") == office.log("old")
    office.submit("new", 8, b"8")
    assert office.log("old")[-1] == b"8"


def test_an_uncounted_message_at_one_copy_survives_if_the_next_root_sees_it() -> None:
    office = Office("root", "one", "two")
    office.reign("root", "one", "two")
    office.submit("root", 0, b"a", deliver=False)
    office.deliver_one()  # Only one copy got it, and the root dies.
    office.post.clear()
    office.reign("two", "one")
    assert office.counted["two"] == [(0, b"a")]


def test_a_different_tail_gives_way_to_the_later_reign() -> None:
    office = Office("root", "one", "two")
    office.reign("root", "one", "two")
    office.submit("root", 0, b"a")
    office.submit("root", 1, b"lost", deliver=False)
    office.post.clear()  # Only the root has it, and it is cut off.
    office.reign("one", "two")
    office.submit("one", 1, b"b", publisher="p")
    office.do("one", office.nodes["one"].on_successors(("two", "root")))
    assert office.log("root") == [b"a", b"b"]
    assert office.nodes["root"].logs[TOPIC].next_sequence("p 1") == 2


def test_a_later_reign_stops_an_earlier_one() -> None:
    """Two joiners in front of the same root: only one of them may go on."""
    office = Office("left", "right", "shared")
    office.reign("left", "shared")
    office.reign("right", "shared")
    office.submit("left", 0, b"a")
    assert office.counted["left"] == []
    assert not office.nodes["left"].reigns[TOPIC].is_active
    office.submit("right", 0, b"b", publisher="q")
    assert office.counted["right"] == [(0, b"b")]


def test_who_was_stopped_claims_again_with_the_beat_and_inherits() -> None:
    office = Office("left", "right", "shared")
    office.reign("left", "shared")
    office.reign("right", "shared")
    office.submit("right", 0, b"b")
    office.submit("left", 0, b"a", publisher="q")
    office.beat("left")
    office.submit("left", 0, b"a", publisher="q")
    assert office.log("left") == [b"b", b"a"]
    office.submit("right", 1, b"c")
    assert office.counted["right"] == [(0, b"b")], "now it is the other one that is stopped"


def test_a_log_that_has_passed_to_a_later_reign_is_not_taken() -> None:
    """Else its entries would stand before those of an earlier epoch, and no later root could tell which log is best."""
    office = Office("left", "right", "shared")
    office.reign("right", "shared")
    office.submit("right", 0, b"a")
    office.do("left", office.nodes["left"].on_successors(("shared",)), deliver=False)
    office.do("left", office.nodes["left"].begin(TOPIC), deliver=False)
    while not any(isinstance(message, Pull) for _, _, message in office.post):
        office.deliver_one()
    pull = office.post.popleft()
    office.submit("right", 1, b"b")  # It learns that somebody else claims the topic,
    office.beat("right")  # claims it again,
    office.submit("right", 1, b"b")  # and goes on.
    office.post.append(pull)
    office.do("left", [])
    assert not office.nodes["left"].reigns[TOPIC].is_active
    office.beat("left")
    assert office.log("left") == [b"a", b"b"]


def test_a_tail_that_nobody_shares_goes_with_the_best_log() -> None:
    office = Office("old", "one", "two")
    office.reign("old", "one")
    office.submit("old", 0, b"a")
    for number in range(1, 4):
        office.submit("old", number, b"tail", deliver=False)
    office.post.clear()
    office.reign("one", "two")
    office.submit("one", 1, b"b")
    office.reign("old", "one", "two")
    office.beat("old")
    assert office.log("old") == [b"a", b"b"]
    assert office.nodes["old"].reigns[TOPIC].is_active


def test_what_comes_while_a_log_is_inherited_waits_for_it() -> None:
    office = Office("root", "one")
    office.do("root", office.nodes["root"].on_successors(("one",)), deliver=False)
    office.do("root", office.nodes["root"].begin(TOPIC), deliver=False)
    office.submit("root", 0, b"a", deliver=False)
    assert office.log("root") == []
    office.do("root", [])
    assert office.counted["root"] == [(0, b"a")]


def test_readers_get_only_what_counts() -> None:
    office = Office("root", "one")
    office.reign("root", "one")
    office.submit("root", 0, b"a", b"b")
    office.submit("root", 2, b"c", deliver=False)
    office.post.clear()
    office.do("root", office.nodes["root"].on_fetch(Fetch(TOPIC, "reader", 1)))
    assert office.came[-1] == ("reader", Fetched(TOPIC, 1, (b"b",), 2))
    office.do("root", office.nodes["root"].on_fetch(Fetch(TOPIC, "reader", NOW)))
    assert office.came[-1] == ("reader", Fetched(TOPIC, 2, (), 2))


def test_an_answer_is_bounded_in_messages_and_bytes() -> None:
    office = Office("root", settings=ScribeSettings(replicas=0, chunk_messages_max=3, chunk_bytes_max=10))
    office.reign("root")
    office.submit("root", 0, b"xxxx", b"xxxx", b"xxxx", b"y" * 20, b"z")
    for first, count in ((0, 2), (3, 1), (4, 1)):
        office.do("root", office.nodes["root"].on_fetch(Fetch(TOPIC, "reader", first)))
        answer = office.came[-1][1]
        assert isinstance(answer, Fetched) and len(answer.payloads) == count


def test_a_log_is_bounded_and_remembers_its_publishers() -> None:
    office = Office("root", "one", "late", settings=ScribeSettings(replicas=2, log_messages_max=4))
    office.reign("root", "one")
    office.submit("root", 0, *(b"%d" % number for number in range(10)))
    assert office.nodes["root"].logs[TOPIC].base == 6
    office.do("root", office.nodes["root"].on_successors(("one", "late")))
    office.reign("late", "one")
    office.submit("late", 0, b"0")
    assert office.came[-1] == ("p", Accepted(TOPIC, 1, 10))
    assert office.nodes["late"].logs[TOPIC].end == 10


def test_beyond_the_limit_the_oldest_copy_goes() -> None:
    office = Office("copy", settings=ScribeSettings(topics_max=2))
    for topic in ("a", "b", "c"):
        office.nodes["copy"].log_of(topic)
    assert list(office.nodes["copy"].logs) == ["b", "c"]


def test_what_counts_is_never_cut_off() -> None:
    log = TopicLog()
    log.append(Entry(1, "p", 1, 0, b"a"))
    log.committed = 1
    with pytest.raises(AssertionError, match="committed never goes"):
        log.truncate(0)


def test_an_outbox_is_bounded() -> None:
    outbox = Outbox(TOPIC, "p", 1, messages_max=1)
    outbox.put(b"a")
    with pytest.raises(Overloaded, match="try again later"):
        outbox.put(b"b")


def test_an_outbox_ignores_an_acknowledgement_that_is_no_news() -> None:
    outbox = Outbox(TOPIC, "p", 1, messages_max=10)
    outbox.put(b"a")
    outbox.put(b"b")
    assert outbox.on_accepted(1)
    assert not outbox.on_accepted(1)
    assert not outbox.on_accepted(9), "nobody can have what was never sent"
    assert outbox.submit(0, 10, 100).payloads == (b"b",)


def test_an_outbox_sends_as_much_as_one_message_may_carry() -> None:
    """Whatever piled up, it must fit into one routed message; a single message always does."""
    outbox = Outbox(TOPIC, "p", 1, messages_max=10)
    for payload in (b"three", b"four", b"five"):
        outbox.put(payload)
    assert outbox.submit(0, 10, 9).payloads == (b"three", b"four")
    assert outbox.submit(0, 1, 100).payloads == (b"three",)
    assert outbox.submit(0, 10, 1).payloads == (b"three",)


@pytest.mark.parametrize("setting", [{"replicas": -1}, {"beat_ms": 0}, {"silence_ms_max": 1_000}])
def test_senseless_settings_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        ScribeSettings(**setting)

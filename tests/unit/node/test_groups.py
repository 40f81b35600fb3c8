"""Groups on the broker and the journal, request by request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.node.desk import Desk
from tidings.errors import Fenced, InvalidRequest, NoSuchTopic, NotSubscribed, Overloaded
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.protocols.broker.collecting import collect_due
from tidings.protocols.broker.commands import Collect
from tidings.settings import BrokerSettings, JournalSettings
from tidings.wire import codec

SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20)


class Shop(Desk):
    """A desk with a group on the topic `jobs`."""

    def __init__(self, *members: str, settings: BrokerSettings | None = None) -> None:
        super().__init__(settings or BrokerSettings(), SMALL)
        self.streams: dict[str, int] = {}
        self.got: dict[str, list[tuple[int, int, list[tuple[int, bytes]]]]] = {}
        self.hello("publisher")
        self.sequence = 0
        for member in members:
            self.join(member)
            self.work(member)

    def join(self, member: str, token: bytes = b"t", **options: Any) -> Any:
        self.hello(member, token)
        return self.ask(messages.Join(1, member, self.epochs[member], "workers", "jobs", **options))

    def work(
        self,
        member: str,
        room: int = 100,
        held: tuple[messages.Held, ...] = (),
        new: bool = True,
        taken: tuple[tuple[int, int], ...] | None = None,
    ) -> Any:
        self.streams[member] = self.streams.get(member, 0) + new
        request = messages.Work(
            5, member, self.epochs[member], "workers", "jobs", self.streams[member], room, held, new, taken
        )
        self.say([codec.encode(request)], peer=member)
        self.commit()
        return self.listen()

    def listen(self) -> Any:
        """Files away the batches; the last answer of another kind."""
        last = None
        for peer, message, batches in self.heard():
            if isinstance(message, messages.GroupBatch):
                values = [value for columns in batches for value in columns.values]
                rows = list(zip(message.offsets, values, strict=True))
                self.got.setdefault(peer, []).append((message.batch, message.attempt, rows))
            else:
                last = message
        return last

    def publish(self, *keyed: tuple[str, str]) -> Any:
        values, keys = [value.encode() for _, value in keyed], [key.encode() or None for key, _ in keyed]
        part = messages.Part((messages.Target("jobs", self.sequence + 1),), len(values))
        request = messages.Put(2, "publisher", self.epochs["publisher"], part)
        self.say([codec.encode(request), codec.encode(Columns(1, "publisher", values, keys))])
        self.commit()
        answer = self.listen()
        if isinstance(answer, messages.PutDone):
            self.sequence += len(values)
        return answer

    def ack(self, member: str, batch: int, *ranges: tuple[int, int]) -> Any:
        request = messages.GroupAck(
            6,
            member,
            self.epochs[member],
            "workers",
            "jobs",
            self.streams[member],
            (messages.BatchRanges(batch, ranges),),
        )
        self.say([codec.encode(request)], peer=member)
        self.commit()
        return self.listen()

    def values(self, member: str) -> list[str]:
        return [value.decode() for _, _, rows in self.got.get(member, []) for _, value in rows]


TWO_LANES = [(f"p{number % 2}", f"p{number % 2}-{number // 2}") for number in range(10)]


def test_two_lanes_go_whole_to_two_members() -> None:
    """C3, C4, table 3: 10 messages in 2 partitions, 2 subscribers."""
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    lanes = sorted(tuple(shop.values(member)) for member in ("ann", "bob"))
    assert lanes == [tuple(f"p{lane}-{number}" for number in range(5)) for lane in range(2)]


def test_publishing_first_loses_nothing() -> None:
    """C5, table 1: nobody is there, and the first who comes gets everything."""
    shop = Shop()
    shop.publish(*TWO_LANES)
    shop.join("ann")
    shop.work("ann")
    assert len(shop.values("ann")) == 10


def test_a_member_that_leaves_hands_on_only_what_it_has_not_acked() -> None:
    """C7, C9, table 6: the 4th and 5th message go to the other member, in order."""
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    batch, _, rows = shop.got["bob"][0]
    shop.ack("bob", batch, *[(offset, offset + 1) for offset, _ in rows[:3]])
    before = shop.values("ann")
    shop.say([codec.encode(messages.Leave(7, "bob", shop.epochs["bob"], "workers", "jobs"))])
    shop.commit()
    assert isinstance(shop.listen(), messages.LeaveDone)
    assert shop.values("ann")[len(before) :] == [value.decode() for _, value in rows[3:]]


def test_a_name_may_leave_in_another_session_than_the_one_that_joined() -> None:
    """C7: a session takes a new epoch when copies of older requests may be under way; it is the same member."""
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    rows = shop.got["bob"][0][2]
    before = shop.values("ann")
    epoch = shop.hello("bob", b"another token")
    shop.say([codec.encode(messages.Leave(7, "bob", epoch, "workers", "jobs"))])
    shop.commit()
    assert isinstance(shop.listen(), messages.LeaveDone)
    assert shop.values("ann")[len(before) :] == [value.decode() for _, value in rows]


def test_a_silent_member_loses_its_lease_and_its_late_ack_is_refused() -> None:
    """C9: noticed by its lease; what it acks afterwards counts no more."""
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    batch, _, rows = shop.got["bob"][0]
    shop.now_ms += shop.settings.lease_ms + 1
    shop.ask(messages.Beat(9, "ann", shop.epochs["ann"], ()))
    shop.engine.tick(shop.now_ms)
    shop.commit()
    shop.listen()
    assert shop.values("ann")[-5:] == [value.decode() for _, value in rows]
    assert shop.got["ann"][-1][1] == 2, "sent before, so it is another attempt"
    refused = shop.ack("bob", batch)
    assert refused.number == Fenced.number
    assert "again" in refused.text
    working = shop.work("bob", held=(messages.Held(1, ((0, 10),)),))
    assert working.kept == ()


def test_acked_work_stays_acked_over_a_restart() -> None:
    """C8: the queues are rebuilt from the journal: exactly what was not acked, in order."""
    shop = Shop("ann")
    shop.publish(*TWO_LANES)
    [(batch, _, _)] = shop.got["ann"]
    shop.ack("ann", batch, (0, 3), (7, 8))
    shop.restart()
    shop.got.clear()
    shop.join("ann", b"second")
    shop.work("ann")
    offsets = [offset for _, _, rows in shop.got["ann"] for offset, _ in rows]
    assert offsets == [3, 4, 5, 6, 8, 9]


def test_a_topic_of_many_batches_most_of_them_acked_is_read_on_after_a_restart() -> None:
    """C8: however many batches are done, and in whatever order they were, the next open one is found."""
    shop = Shop("ann")
    shop.work("ann", room=3_000, new=False)
    for number in range(1_200):
        shop.publish(("", str(number)))
    for batch, _, rows in shop.got["ann"]:
        if rows[0][0] not in (0, 1_100):
            shop.ack("ann", batch)
    shop.restart()
    shop.got.clear()
    shop.join("ann", b"second")
    shop.work("ann", room=1)
    assert [rows for _, _, rows in shop.got["ann"]] == [[(0, b"0")]]
    shop.ack("ann", shop.got["ann"][0][0])
    assert [rows for _, _, rows in shop.got["ann"]] == [[(0, b"0")], [(1_100, b"1100")]]


def test_many_batches_may_be_looked_at_without_finding_work() -> None:
    """All of them are in another member's hands, so each that is looked at leads to the next."""
    shop = Shop()
    for member in ("ann", "bob"):
        shop.join(member)
    shop.work("ann", room=3_000)
    for number in range(1_200):
        shop.publish((str(number), str(number)))
    shop.restart()
    shop.got.clear()
    for member in ("ann", "bob"):
        shop.join(member, b"second")
    working = shop.work("ann", room=0, held=(messages.Held(1, ((0, 1_200),)),))
    assert [kept.ranges for kept in working.kept] == [((0, 1_200),)]
    shop.work("bob", room=1)
    assert shop.got == {}
    shop.publish(("new", "new"))
    assert [rows for _, _, rows in shop.got["bob"]] == [[(1_200, b"new")]]


def test_after_a_restart_nothing_is_given_out_before_all_members_are_back() -> None:
    """C8: a member in the middle of its work keeps it; no lane gets two workers."""
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    held = {member: [offset for offset, _ in shop.got[member][0][2]] for member in ("ann", "bob")}
    shop.restart()
    shop.got.clear()
    for member in ("ann", "bob"):
        ranges = tuple((offset, offset + 1) for offset in held[member])
        working = shop.work(member, held=(messages.Held(1, ranges),))
        kept = [offset for each in working.kept for start, end in each.ranges for offset in range(start, end)]
        assert kept == held[member]
    assert shop.got == {}
    shop.publish(("p0", "p0-5"), ("p1", "p1-5"))
    for member in ("ann", "bob"):
        lane = held[member][0] % 2
        assert shop.values(member) == [f"p{lane}-5"]


def test_after_a_restart_only_what_is_handed_out_stays_with_its_member() -> None:
    """C9: another member may have worked on the rest in the life before, so that goes out again, and marked."""
    shop = Shop("ann", "bob")
    shop.publish(("k", "one"), ("k", "two"), ("k", "three"))
    shop.restart()
    shop.got.clear()
    in_flight = (messages.Held(1, ((0, 2),)), messages.Held(2, ((2, 3),)))
    working = shop.work("ann", held=in_flight, taken=((0, 1),))
    assert [kept.ranges for kept in working.kept] == [((0, 1),)], "and nothing that is behind it in its lane"
    shop.work("bob")
    assert shop.got == {"ann": [(2, 2, [(1, b"two"), (2, b"three")])]}


def test_what_came_back_from_another_member_is_not_kept_as_new() -> None:
    """C9: ann was silent too long, bob gave back what had been hers, and she still has it in flight as new."""
    shop = Shop("ann", "bob")
    shop.publish(("k", "one"))
    [member] = shop.got
    other = "bob" if member == "ann" else "ann"
    shop.now_ms += shop.settings.lease_ms + 1
    shop.ask(messages.Beat(9, other, shop.epochs[other], ()))
    shop.engine.tick(shop.now_ms)
    shop.listen()
    [(batch, attempt, _)] = shop.got[other]
    shop.work(other, new=False, taken=((0, 1),))
    release = messages.GroupNack(
        6, other, shop.epochs[other], "workers", "jobs", 1, messages.BatchRanges(batch, ((0, 1),)), 60_000
    )
    shop.say([codec.encode(release)], peer=other)
    shop.commit()
    shop.listen()
    working = shop.work(member, held=(messages.Held(1, ((0, 1),)),), taken=())
    assert (attempt, working.kept) == (2, ())


def test_after_a_restart_a_member_that_stays_away_is_waited_for_as_long_as_its_lease() -> None:
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    shop.restart()
    shop.got.clear()
    shop.engine.tick(shop.now_ms)
    shop.work("ann")
    assert shop.got == {}
    shop.now_ms += shop.settings.lease_ms + 1
    shop.work("ann", new=False)
    shop.engine.tick(shop.now_ms)
    shop.listen()
    assert len(shop.values("ann")) == 10


def test_a_member_that_said_goodbye_is_not_waited_for_after_a_restart() -> None:
    shop = Shop("ann", "bob")
    shop.publish(*TWO_LANES)
    shop.ask(messages.Bye(7, "bob", shop.epochs["bob"]))
    shop.restart()
    shop.got.clear()
    shop.work("ann")
    assert len(shop.values("ann")) == 10


def test_an_ack_whose_answer_was_lost_is_not_lost() -> None:
    """C11: said again in the same life it is accepted; after a restart the member is told that it is acked."""
    shop = Shop("ann")
    shop.publish(("k", "one"), ("k", "two"))
    [(batch, _, _)] = shop.got["ann"]
    assert shop.ack("ann", batch, (0, 1)) == messages.GroupAckDone(6, turn=2)
    assert shop.ack("ann", batch, (0, 1)) == messages.GroupAckDone(6, turn=3)
    shop.restart()
    working = shop.work("ann", held=(messages.Held(1, ((0, 2),)),))
    assert working.acked == ((0, 1),)
    assert [each.ranges for each in working.kept] == [((1, 2),)]


def test_a_member_is_told_that_it_has_acked_only_what_it_has_acked_itself() -> None:
    """C9, C11: what another has acked meanwhile is not taken for its own, over a restart and a snapshot either."""
    shop = Shop("ann", "bob")
    shop.publish(("k", "one"))
    [(batch, _, _)] = shop.got["ann"]
    shop.now_ms += shop.settings.lease_ms + 1
    shop.ask(messages.Beat(9, "bob", shop.epochs["bob"], ()))
    shop.engine.tick(shop.now_ms)
    shop.listen()
    [(batch, _, _)] = shop.got["bob"]
    assert isinstance(shop.ack("bob", batch), messages.GroupAckDone)
    in_flight = (messages.Held(1, ((0, 1),)),)
    for round_number in range(2):
        assert (shop.work("ann", held=in_flight).acked, shop.work("ann", held=in_flight).kept) == ((), ())
        assert shop.work("bob", held=in_flight).acked == ((0, 1),)
        for number in range(30 * (1 - round_number)):  # A segment ends, and with it comes a snapshot.
            shop.hello(f"client{number}")
        shop.restart()


def test_a_stream_that_begins_again_gets_its_lanes_back_before_anything_else_is_given_out() -> None:
    """C3, C8: also if an ack is being written when it begins, and the journal's answer lets others go on."""
    shop = Shop("ann")
    shop.publish(("other", "zero"), ("k", "one"))
    shop.publish(("k", "two"))
    first = shop.got["ann"][0][0]
    ack = messages.GroupAck(
        6, "ann", shop.epochs["ann"], "workers", "jobs", 1, (messages.BatchRanges(first, ((0, 1),)),)
    )
    shop.say([codec.encode(ack)], peer="ann")
    shop.got.clear()
    work = messages.Work(7, "ann", shop.epochs["ann"], "workers", "jobs", 2, 100, (messages.Held(1, ((0, 3),)),), True)
    shop.say([codec.encode(work)], peer="ann")
    shop.commit()
    working = shop.listen()
    assert (working.acked, [each.ranges for each in working.kept]) == (((0, 1),), [((1, 3),)])
    assert shop.got == {}, "nothing is sent that the member has in flight"


def test_an_old_stream_does_not_begin_when_its_request_comes_late() -> None:
    """C9: the stream after it has begun, or has ended meanwhile; nobody would take what it were sent."""
    shop = Shop("ann")
    assert isinstance(shop.work("ann"), messages.Working)

    def late() -> None:
        epoch = shop.epochs["ann"]
        shop.say([codec.encode(messages.Work(8, "ann", epoch, "workers", "jobs", 1, 100, (), True))], peer="old")

    late()
    assert shop.heard() == []
    shop.now_ms += shop.settings.lease_ms + 1
    shop.engine.tick(shop.now_ms)
    late()
    assert shop.heard() == []
    shop.ask(messages.Leave(8, "ann", shop.epochs["ann"], "workers", "jobs"))
    shop.join("ann")
    shop.engine.tick(shop.now_ms)
    late()
    assert shop.heard() == []
    assert isinstance(shop.work("ann"), messages.Working)


def test_an_older_grant_that_comes_late_does_not_give_room() -> None:
    shop = Shop("ann")
    shop.work("ann", room=0, new=False)
    epoch = shop.epochs["ann"]
    shop.say([codec.encode(messages.Work(4, "ann", epoch, "workers", "jobs", 1, 100))], peer="ann")
    assert isinstance(shop.listen(), messages.Working)
    shop.publish(*TWO_LANES)
    assert shop.got == {}


def test_a_stream_that_begins_before_a_goodbye_is_durable_ends_with_it() -> None:
    """C9: a member at rest has no stream, and what it was sent goes to the others at once."""
    shop = Shop("ann", "bob")
    epoch = shop.epochs["bob"]
    shop.say([codec.encode(messages.Bye(7, "bob", epoch))], peer="bob")
    shop.say([codec.encode(messages.Work(8, "bob", epoch, "workers", "jobs", 2, 100, (), True))], peer="bob")
    shop.commit()
    shop.listen()
    shop.publish(*TWO_LANES)
    assert len(shop.values("ann")) == 10


def rest(shop: Shop, member: str, *taken: tuple[int, int]) -> Any:
    epoch, stream = shop.epochs[member], shop.streams[member]
    shop.say([codec.encode(messages.GroupPause(9, member, epoch, "workers", "jobs", stream, taken=taken))], peer=member)
    return shop.heard()


def test_a_member_at_rest_has_nothing_and_what_nobody_looked_at_was_no_attempt() -> None:
    """C7: at once, and without another word about its membership."""
    shop = Shop("ann")
    shop.publish(("k", "one"), ("k", "two"), ("k", "three"))
    shop.join("bob")
    shop.work("bob")
    (_, done, _), *batches = rest(shop, "ann", (0, 1))
    assert done == messages.GroupPauseDone(9)
    assert [(peer, message.attempt, message.offsets) for peer, message, _ in batches] == [
        ("bob", 2, (0,)),
        ("bob", 1, (1, 2)),
    ]
    [(_, refused, _)] = rest(shop, "ann")
    assert refused.number == Fenced.number
    assert isinstance(shop.work("ann"), messages.Working), "it is still a member"


def test_a_member_that_rests_while_its_ack_is_written_has_acked_all_the_same() -> None:
    """C9, C11: nobody gets the message meanwhile, and the member is told when it comes back."""
    shop = Shop("ann", "bob")
    shop.publish(("k", "one"))
    [(batch, _, _)] = shop.got["ann"]
    acks = (messages.BatchRanges(batch),)
    request = messages.GroupAck(6, "ann", shop.epochs["ann"], "workers", "jobs", shop.streams["ann"], acks)
    shop.say([codec.encode(request)], peer="ann")
    assert [message for _, message, _ in rest(shop, "ann")] == [messages.GroupPauseDone(9)]
    shop.commit()
    [(peer, answer, _)] = shop.heard()
    assert (peer, answer.number) == ("ann", Fenced.number), "its stream has ended"
    working = shop.work("ann", held=(messages.Held(1, ((0, 1),)),))
    assert (working.kept, working.acked) == ((), ((0, 1),))
    assert "bob" not in shop.got


def test_a_member_may_not_speak_of_more_messages_than_anybody_can_have() -> None:
    shop = Shop("ann")
    shop.publish(*TWO_LANES)
    assert shop.ack("ann", 1, (0, 1 << 60)).number == InvalidRequest.number
    assert shop.ack("ann", 1, (5, 2)).number == InvalidRequest.number
    assert shop.work("ann", held=(messages.Held(1, ((0, 1 << 60),)),)).number == InvalidRequest.number


def test_a_released_message_comes_again_after_its_delay_and_in_order() -> None:
    shop = Shop("ann")
    shop.publish(("k", "one"), ("k", "two"), ("other", "three"))
    [(batch, _, _)] = shop.got["ann"]
    request = messages.GroupNack(
        6,
        "ann",
        shop.epochs["ann"],
        "workers",
        "jobs",
        shop.streams["ann"],
        messages.BatchRanges(batch, ((0, 1),)),
        5_000,
    )
    shop.say([codec.encode(request)], peer="ann")
    answer = shop.listen()
    assert answer == messages.GroupNackDone(6, ((0, 2),), 2), "what follows in the lane is taken back as well"
    shop.got.clear()
    shop.engine.tick(shop.now_ms + 4_000)
    assert shop.listen() is None
    assert shop.got == {}
    shop.engine.tick(shop.now_ms + 5_001)
    shop.listen()
    assert shop.values("ann") == ["one", "two"]


def test_a_message_that_fails_too_often_goes_to_the_dead_letter_topic() -> None:
    shop = Shop("ann", settings=BrokerSettings(dead_letter="dead", deliveries_max=2))
    shop.publish(("k", "poison"), ("k", "fine"))
    for _ in range(2):
        batch = next(number for number, _, rows in reversed(shop.got["ann"]) if rows[0][0] == 0)
        request = messages.GroupNack(
            6,
            "ann",
            shop.epochs["ann"],
            "workers",
            "jobs",
            shop.streams["ann"],
            messages.BatchRanges(batch, ((0, 1),)),
            0,
        )
        shop.say([codec.encode(request)], peer="ann")
        shop.commit()
        shop.listen()
    assert shop.values("ann")[-1] == "fine"
    shop.hello("reader")
    shop.subscribe("reader", "dead", start="earliest")
    [(_, _, [columns]), *_] = shop.flow("reader", "dead")
    assert columns.values == [b"poison"]
    batch, _, _ = shop.got["ann"][-1]
    assert isinstance(shop.ack("ann", batch), messages.GroupAckDone)
    assert shop.ask(messages.AskGroups(1)).groups[0].lag == 0


def test_a_message_of_which_its_process_dies_is_tried_often_enough_and_its_neighbours_are_not_blamed() -> None:
    """C9, C11: what a process that died may have had is marked once; only what it said that it hands out counts."""
    shop = Shop(settings=BrokerSettings(dead_letter="dead", deliveries_max=2))
    shop.publish(("a", "poison"), ("b", "neighbour"))
    seen: list[list[tuple[int, int]]] = []
    for life in range(1, 4):
        shop.join("ann", b"life %d" % life)
        shop.got.clear()
        shop.work("ann")
        seen.append([(offset, attempt) for _, attempt, rows in shop.got.get("ann", []) for offset, _ in rows])
        took = messages.Work(7, "ann", shop.epochs["ann"], "workers", "jobs", shop.streams["ann"], 100, taken=((0, 1),))
        shop.say([codec.encode(took)], peer="ann")
        assert isinstance(shop.listen(), messages.Working)
    assert seen == [[(0, 1), (1, 1)], [(0, 2), (1, 2)], [(0, 3), (1, 2)]]
    shop.join("ann", b"last life")
    shop.got.clear()
    shop.work("ann")
    shop.now_ms += 100
    shop.engine.tick(shop.now_ms)
    shop.commit()
    shop.listen()
    assert [rows for _, _, rows in shop.got["ann"]] == [[(1, b"neighbour")]]
    assert [attempt for _, attempt, _ in shop.got["ann"]] == [2]
    assert shop.ask(messages.AskTopics(8, "dead")).topics[0].next_offset == 1


def test_a_full_backlog_refuses_the_1001st_message() -> None:
    """C6, table 1: nothing is dropped in silence, and acked messages make room."""
    shop = Shop("ann", settings=BrokerSettings(max_backlog=1_000))
    for number in range(100):
        assert isinstance(shop.publish(*[(f"k{index}", str(number)) for index in range(10)]), messages.PutDone)
    refused = shop.publish(("k", "one too many"))
    assert refused.number == Overloaded.number
    assert "max_backlog" in refused.text
    shop.ack("ann", shop.got["ann"][0][0])
    assert isinstance(shop.publish(("k", "now there is room")), messages.PutDone)


def test_groups_and_topics_that_nobody_uses_are_collected_and_nothing_owed_is() -> None:
    """C14."""
    shop = Shop("ann", settings=BrokerSettings(collect_after_ms=60_000, drop_acknowledged=True))
    shop.publish(("k", "one"))
    shop.hello("bob")
    shop.subscribe("bob", "empty")
    shop.ask(messages.Unsubscribe(1, "bob", shop.epochs["bob"], ("empty",)))
    shop.ask(messages.Leave(7, "ann", shop.epochs["ann"], "workers", "jobs"))

    def later() -> tuple[int, list[str]]:
        shop.now_ms += 61_000
        shop.engine.tick(shop.now_ms)
        shop.commit()
        return len(shop.ask(messages.AskGroups(1)).groups), [
            each.name for each in shop.ask(messages.AskTopics(1)).topics
        ]

    assert later() == (1, ["jobs"]), "one message is still owed"
    shop.join("ann", b"second")
    shop.work("ann")
    shop.ack("ann", shop.got["ann"][-1][0])
    shop.ask(messages.Leave(7, "ann", shop.epochs["ann"], "workers", "jobs"))
    assert later()[0] == 0
    assert later() == (0, [])
    shop.restart()
    assert shop.publish(("k", "two")).stored[0].first_offset == 1, "offsets go on where they had stopped"


IDLE = BrokerSettings(collect_after_ms=60_000, topic_idle_ms=60_000)


def topics_later(shop: Shop, ms: int = 61_000) -> list[str]:
    """The topics that are still there after a while in which nobody does anything."""
    shop.now_ms += ms
    shop.engine.tick(shop.now_ms)
    shop.commit()
    return [each.name for each in shop.ask(messages.AskTopics(1)).topics]


def test_a_topic_that_nobody_uses_goes_with_what_was_acked() -> None:
    """C14: without `drop_acknowledged`. It comes back with its offsets, and a put sent again is no second one."""
    shop = Shop("ann", settings=IDLE)
    shop.publish(("k", "one"))
    assert topics_later(shop) == ["jobs"], "it has a group"
    shop.join("ann", b"second")
    shop.work("ann")
    shop.ack("ann", shop.got["ann"][-1][0])
    shop.ask(messages.Leave(7, "ann", shop.epochs["ann"], "workers", "jobs"))
    assert topics_later(shop) == ["jobs"], "the group has gone only now"
    shop.publish(("k", "two"))
    shop.sequence = 0
    assert topics_later(shop) == ["jobs"], "nobody has acked the second one"
    shop.join("ann", b"third", start="earliest")
    shop.work("ann")
    for batch, _, _ in shop.got["ann"][-2:]:
        shop.ack("ann", batch)
    shop.ask(messages.Leave(7, "ann", shop.epochs["ann"], "workers", "jobs"))
    assert topics_later(shop) == ["jobs"]
    assert topics_later(shop) == []
    shop.restart()
    again = shop.publish(("k", "one"))
    assert again.stored == (messages.Stored(None, ((0, None),)),), "its number was taken, and what it was has gone"
    shop.sequence = 2
    assert shop.publish(("k", "three")).stored[0].first_offset == 2


def test_what_nobody_was_meant_to_get_is_not_acked() -> None:
    """C14: a subscription from now on says nothing of what was there before; by its age that may go all the same."""
    for retain_age_ms, left in ((None, ["jobs"]), (100_000, [])):
        shop = Shop(settings=msgspec.structs.replace(IDLE, retain_age_ms=retain_age_ms))
        shop.publish(("k", "one"))
        shop.hello("bob")
        shop.subscribe("bob", "jobs")
        assert topics_later(shop) == ["jobs"], "it has a subscription"
        shop.ask(messages.Unsubscribe(1, "bob", shop.epochs["bob"], ("jobs",)))
        assert topics_later(shop, 59_000) == ["jobs"], "that has gone only now"
        assert topics_later(shop) == left


def test_a_topic_stays_while_one_of_its_ids_may_come_again() -> None:
    shop = Shop(settings=msgspec.structs.replace(IDLE, retain_age_ms=1_000, ids_age_ms=200_000))
    part = messages.Part((messages.Target("jobs", 1),), 1)
    request = messages.Put(2, "publisher", shop.epochs["publisher"], part)
    shop.say([codec.encode(request), codec.encode(Columns(1, "publisher", [b"one"], ids=["job-1"]))])
    shop.commit()
    shop.listen()
    assert topics_later(shop) == ["jobs"]
    assert topics_later(shop, 200_000) == []


def test_a_put_that_comes_before_the_decision_is_journaled_keeps_its_topic() -> None:
    shop = Shop(settings=msgspec.structs.replace(IDLE, retain_age_ms=1_000))
    shop.publish(("k", "one"))
    shop.now_ms += 61_000
    machine = shop.engine.broker.machine
    due = collect_due(machine, shop.now_ms)
    assert due == Collect((), (), (messages.Position("jobs", 1),))
    shop.publish(("k", "two"))
    machine.apply(due, shop.now_ms, 0)
    assert "jobs" in machine.topics


def test_what_a_stranger_asks_of_a_group_is_refused() -> None:
    shop = Shop("ann")
    shop.hello("eve")
    shop.streams["eve"] = 1
    assert shop.work("eve").number == NotSubscribed.number
    request = messages.Leave(1, "eve", shop.epochs["eve"], "workers", "nowhere")
    assert shop.ask(request).number == NoSuchTopic.number


@pytest.mark.parametrize("lanes", ["key", "publisher"])
def test_what_makes_a_lane(lanes: Any) -> None:
    """C3: the key, or the publisher and the key."""
    shop = Shop()
    shop.join("ann", lanes=lanes)
    shop.join("bob")
    shop.work("ann")
    shop.work("bob")
    shop.publish(("k", "one"))
    shop.hello("second")
    part = messages.Part((messages.Target("jobs", 1),), 1)
    shop.say([codec.encode(messages.Put(2, "second", 1, part)), codec.encode(Columns(1, "second", [b"two"], [b"k"]))])
    shop.commit()
    shop.listen()
    counts = sorted(len(shop.values(member)) for member in ("ann", "bob"))
    assert counts == ([0, 2] if lanes == "key" else [1, 1])

"""What retention lets go in a replica group goes by its own age, wherever each member has it by then."""

from __future__ import annotations

from tests.unit.node.members import Members, put
from tests.unit.node.test_group import place_of, store, values_of
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings

RETAIN_MS = 20_000
SMALL = JournalSettings(segment_bytes_max=2_000, segment_records_max=20)


def test_a_small_topic_beside_a_busy_one_expires_however_often_it_is_copied_forward() -> None:
    """Every member copies for itself, and a message is as old on all of them as when it was stored."""
    group = Members(broker=BrokerSettings(retain_age_ms=RETAIN_MS, retain_bytes=1_000), journal=SMALL)
    for number in (1, 2):
        store(group, b"small %d" % number, sequence=number)
    leader = group.leader()
    stored_at_ms = group.now_ms
    places = {number: place_of(node) for number, node in group.nodes.items()}
    epoch, sequence = group.hello(leader, "bob"), 0

    def be_busy_until(now_ms: int) -> None:
        """Segment after segment, each young when the small topic's messages come there."""
        nonlocal sequence
        while group.now_ms < now_ms:
            sequence += 1
            answer = group.ask(leader, *put("bob", epoch, sequence, bytes(50), topic="busy"), peer="bob")
            assert isinstance(answer, messages.PutDone), answer
            group.pass_ms(100)

    be_busy_until(stored_at_ms + RETAIN_MS * 3 // 4)
    for number, node in group.nodes.items():
        assert values_of(node) == [b"small 1", b"small 2"]
        assert place_of(node) > places[number], "it has been copied forward"
    be_busy_until(stored_at_ms + RETAIN_MS * 3 // 2)
    assert [values_of(node) for node in group.nodes.values()] == [[b"small 2"]] * 3, "the last one stays"

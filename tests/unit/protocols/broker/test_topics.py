"""The index of a topic: what it finds, forgets, seals and loads."""

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.broker.messages import Position
from tidings.protocols.broker.topics import Topic


def filled(counts: list[int]) -> Topic:
    topic = Topic("news")
    for number, count in enumerate(counts):
        topic.append(1000 + 100 * number, 10 + number, count, None, None)
    return topic


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.data())
def test_every_offset_is_found_in_its_batch(counts: list[int], data: st.DataObject) -> None:
    topic = filled(counts)
    offset = data.draw(st.integers(0, topic.next_offset - 1))
    entry = topic.find(offset)
    assert topic.offsets[entry] <= offset < topic.end_of(entry)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 120))
def test_trim_forgets_whole_batches_and_keeps_the_rest(counts: list[int], offset: int) -> None:
    topic = filled(counts)
    topic.trim(offset)
    assert topic.first_offset <= max(offset, 0) or topic.first_offset == 0
    assert topic.size_bytes == sum(topic.sizes)
    assert list(topic.offsets) == [each for each in filled(counts).offsets if each >= topic.first_offset]


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5), st.integers(0, 60))
def test_pieces_put_together_give_the_index_again(segments: list[list[int]], trimmed: int) -> None:
    topic = Topic("news")
    pieces = []
    address = 0
    for counts in segments:
        for count in counts:
            kept = tuple(range(count)) if count == 3 else None
            shared = (Position("sport", address),) if count == 4 else None
            topic.append(address, 7, count, kept, shared, 5 * address)
            address += 100
        piece = topic.seal()
        if piece is not None:
            pieces.append(piece)
        topic.mark_sealed()
    topic.trim(trimmed)
    loaded = Topic("news", topic.first_offset, topic.next_offset)
    for piece in pieces:
        loaded.load(piece)
    loaded.finish_loading()
    for name in (
        "offsets",
        "addresses",
        "sizes",
        "times",
        "thinned",
        "shared",
        "size_bytes",
        "first_offset",
        "next_offset",
    ):
        assert getattr(loaded, name) == getattr(topic, name), name


def test_a_carried_batch_is_found_at_its_new_address_after_loading() -> None:
    """The old segment's piece may be there still, or gone with the segment."""
    topic = filled([2, 3])
    first = topic.seal()
    topic.mark_sealed()
    topic.carry(0, 9000)
    topic.append(9100, 5, 1, None, None, 77)
    second = topic.seal()
    assert first is not None and second is not None
    whole = Topic("news", 0, topic.next_offset)
    whole.load(first)
    whole.load(second)
    whole.finish_loading()
    assert list(whole.addresses) == [9000, 1100, 9100] == list(topic.addresses)
    assert list(whole.times) == [0, 0, 77] == list(topic.times)
    assert whole.lowest_address == topic.lowest_address == 1100
    rest = Topic("news", 0, topic.next_offset)
    rest.load(second)
    rest.finish_loading()
    assert list(rest.addresses) == [9000, 9100]


def test_an_id_may_be_used_again_after_its_time() -> None:
    topic = Topic("news")
    topic.remember_ids([("a", 0)], time_ms=1_000)
    topic.remember_ids([("b", 1)], time_ms=2_000)
    topic.forget_ids(before_ms=1_500)
    assert topic.ids == {"b": 1}

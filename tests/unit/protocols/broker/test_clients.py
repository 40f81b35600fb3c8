"""Tracks: every sequence number a topic has taken, and where its message went."""

from hypothesis import given
from hypothesis import strategies as st

from tidings.protocols.broker.clients import Client, Track, TrackIndex
from tidings.protocols.fields import NOTED_MAX


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), min_size=1, max_size=30))
def test_every_number_is_found_where_it_was_stored(batches: list[tuple[int, int]]) -> None:
    """Z9: an older duplicate is answered with its old place, however long ago that was."""
    track, places = Track(), {}
    sequence, offset = 1, 0
    for count, others in batches:
        track.take(sequence, offset, count)
        for index in range(count):
            places[sequence + index] = offset + index
        sequence += count
        offset += count + others  # Messages of other publishers lie in between.
    assert {number: track.find(number) for number in places} == places
    assert track.last == sequence - 1


def test_a_lone_publisher_needs_one_run() -> None:
    track = Track()
    for number in range(1, 1000):
        track.take(number, number - 1, 1)
    assert len(track.sequences) == 1


def test_trimming_forgets_places_and_never_numbers() -> None:
    track = Track()
    track.take(1, 0, 5)
    track.take(6, 10, 5)
    track.trim(10)
    assert track.last == 10
    assert track.find(3) is None
    assert track.find(7) == 11


def test_each_piece_knows_the_places_of_its_own_segment() -> None:
    """The pieces of removed segments are gone; what lies in later ones is still found."""
    client = Client("alice", b"t", False)
    track = client.tracks["news"] = Track()
    track.take(1, 0, 5)
    client.seal()
    client.mark_sealed()
    track.take(6, 5, 5)
    [piece] = client.seal()
    loaded = Track(10)
    loaded.load(piece)
    assert [loaded.find(number) for number in (5, 6, 10)] == [None, 5, 9]


def test_a_piece_that_says_it_all_again_replaces_what_was_there() -> None:
    client = Client("alice", b"t", False)
    track = client.tracks["news"] = Track()
    track.take(1, 0, 5)
    track.take(6, 10, 5)
    [first] = client.seal()
    client.mark_sealed()
    track.seal_again()
    track.take(11, 40, 1)
    [second] = client.seal()
    for pieces in ((first, second), (second,)):
        loaded = Track(11)
        for piece in pieces:
            loaded.load(piece)
        assert list(loaded.sequences) == [1, 6, 11]
        assert list(loaded.offsets) == [0, 10, 40]


def test_runs_survive_sealing_and_loading() -> None:
    client = Client("alice", b"t", False)
    track = client.tracks["news"] = Track()
    track.take(1, 0, 5)
    track.take(6, 10, 5)
    [piece] = client.seal()
    client.mark_sealed()
    assert client.seal() == []
    track.take(11, 40, 1)
    [second] = client.seal()
    loaded = Track(11)
    for each in (piece, second):
        assert isinstance(each, TrackIndex)
        loaded.load(each)
    assert [loaded.find(number) for number in (1, 5, 6, 11)] == [0, 4, 10, 40]


def test_whom_to_tell_is_a_list_with_a_limit() -> None:
    """Beyond it all are told, for ever: nobody knows any more who is missing."""
    client = Client("ann", b"token", False)
    groups = [bytes([number]) for number in range(NOTED_MAX + 1)]
    client.note(groups[:NOTED_MAX])
    client.note(groups[:2])
    assert client.noted == tuple(groups[:NOTED_MAX])
    client.note(groups[NOTED_MAX:])
    assert client.noted is None
    client.note(groups[:1])
    assert client.noted is None


def test_a_list_that_is_joined_with_an_unknown_one_is_unknown() -> None:
    client = Client("ann", b"token", False)
    client.note((b"one",))
    client.note(None)
    assert client.noted is None

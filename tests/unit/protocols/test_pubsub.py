"""Publish and subscribe by topics over Scribe and over gossip: the same words for the application (P1, P9, P12)."""

from __future__ import annotations

import pytest

from tidings.errors import InvalidRequest, InvalidTopic, LimitReached, MessageTooLarge, NotSubscribed
from tidings.protocols import scribe
from tidings.protocols.gossip import Broadcast, Delivered, Missed, Skip, Supply
from tidings.protocols.pubsub import Arrived, Lost, OverGossip, OverScribe, Publish, Rejected, Subscribe, Unsubscribe
from tidings.protocols.pubsub import over_scribe as over_scribe_module
from tidings.protocols.pubsub.messages import Letter, encode
from tidings.protocols.pubsub.over_gossip import TRIES_MAX, AskBack, SentBack, stream_of
from tidings.protocols.stack import Ask, Effect, Notified, Notify, Received, Request, Requested, Send

ME, PEER = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
LIFE = 77


def over_gossip(kept_max: int = 4) -> OverGossip:
    layer = OverGossip(ME, kept_max=kept_max, subscriptions_max=2, payload_bytes_max=200)
    assert layer.start(LIFE) == []
    return layer


def over_scribe() -> OverScribe:
    layer = OverScribe(ME)
    assert layer.start(LIFE) == []
    return layer


def ask(layer: OverGossip | OverScribe, request: Request) -> list[Effect]:
    return layer.handle(Requested(LIFE + 1, request))


def test_over_scribe_the_requests_become_scribes() -> None:
    layer = over_scribe()
    assert ask(layer, Subscribe("news")) == [Ask(scribe.Subscribe("news"))]
    assert ask(layer, Unsubscribe("news")) == [Ask(scribe.Unsubscribe("news"))]
    for number in range(2):
        letter = Letter("news", ME, LIFE, number, b"hello")
        assert ask(layer, Publish("news", b"hello")) == [Ask(scribe.Publish("news", encode(letter)))]


def test_over_scribe_the_news_become_ours() -> None:
    layer = over_scribe()
    payload = encode(Letter("news", PEER, 5, 3, b"hello"))
    news = Notified(1, scribe.MessageDelivered("news", 9, payload))
    assert layer.handle(news) == [Notify(Arrived("news", PEER, 5, 3, b"hello"))]
    assert layer.handle(Notified(1, scribe.MessageDelivered("news", 9, b"?"))) == [Notify(Lost("news", 1))]
    assert layer.handle(Notified(1, scribe.MessagesMissed("news", 3, 7))) == [Notify(Lost("news", 4))]
    refused = layer.handle(Notified(1, scribe.PublishRefused("news", "full")))
    assert refused == [Notify(Rejected("news", "full"))]


def test_over_scribe_a_message_to_several_topics_arrives_once() -> None:
    """P13: one submission for all of them; whichever copy comes first is passed on, with all of its topics."""
    layer = over_scribe()
    letter = Letter("news", ME, LIFE, 0, b"hello", ("sport", "arts"))
    assert ask(layer, Publish("news", b"hello", ("sport", "arts"))) == [
        Ask(scribe.Publish("news", encode(letter), ("sport", "arts")))
    ]
    payload = encode(Letter("news", PEER, 5, 3, b"hello", ("sport",)))
    first = layer.handle(Notified(1, scribe.MessageDelivered("sport", 9, payload)))
    assert first == [Notify(Arrived("sport", PEER, 5, 3, b"hello", ("news",)))]
    assert layer.handle(Notified(1, scribe.MessageDelivered("news", 4, payload))) == []
    another_life = encode(Letter("news", PEER, 6, 3, b"hello", ("sport",)))
    assert layer.handle(Notified(1, scribe.MessageDelivered("news", 5, another_life))) != []


def test_over_scribe_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_scribe_module, "SEEN_MAX", 2)
    layer = over_scribe()
    for number in range(4):
        payload = encode(Letter("news", PEER, 5, number, b"hello", ("sport",)))
        assert len(layer.handle(Notified(1, scribe.MessageDelivered("news", number, payload)))) == 1
    assert len(layer._seen) == 2


def test_over_gossip_a_message_to_several_topics_is_one_message() -> None:
    """P13: so it comes to all or none, and once to a subscriber of several."""
    layer = over_gossip()
    letter = Letter("news", ME, LIFE, 0, b"hello", ("sport",))
    broadcast = Broadcast(stream_of(ME, LIFE), 0, encode(letter))
    assert ask(layer, Publish("news", b"hello", ("sport",))) == [Ask(broadcast)]
    news = Notified(1, Delivered(stream_of(PEER, 5), 3, encode(Letter("news", PEER, 5, 3, b"hello", ("sport",))), 2))
    assert layer.handle(news) == []
    ask(layer, Subscribe("sport"))
    assert layer.handle(news) == [Notify(Arrived("sport", PEER, 5, 3, b"hello", ("news",)))]
    ask(layer, Subscribe("news"))
    assert layer.handle(news) == [Notify(Arrived("news", PEER, 5, 3, b"hello", ("sport",)))]


def test_a_message_names_each_of_some_topics_once() -> None:
    for layer in (over_scribe(), over_gossip()):
        for also, error in (
            (("news",), InvalidRequest),
            (("",), InvalidTopic),
            (tuple(str(number) for number in range(64)), LimitReached),
        ):
            with pytest.raises(error):
                ask(layer, Publish("news", b"", also))


@pytest.mark.parametrize("topic", ["", "x" * 129, "a\nb"])
def test_a_topic_has_a_name(topic: str) -> None:
    for layer in (over_scribe(), over_gossip()):
        for request in (Subscribe(topic), Publish(topic, b"")):
            with pytest.raises(InvalidTopic):
                ask(layer, request)


def test_over_gossip_a_node_counts_its_messages_whatever_their_topic() -> None:
    layer = over_gossip()
    for number, topic in enumerate(("news", "sport", "news")):
        letter = Letter(topic, ME, LIFE, number, b"hello")
        broadcast = Broadcast(stream_of(ME, LIFE), number, encode(letter))
        assert ask(layer, Publish(topic, b"hello")) == [Ask(broadcast)]


def test_over_gossip_a_message_that_is_too_large_uses_up_no_number() -> None:
    layer = over_gossip()
    with pytest.raises(MessageTooLarge):
        ask(layer, Publish("news", b"x" * 200))
    (effect,) = ask(layer, Publish("news", b"hello"))
    assert isinstance(effect, Ask) and isinstance(effect.request, Broadcast) and effect.request.offset == 0


def test_over_gossip_only_subscribers_are_told() -> None:
    layer = over_gossip()
    news = Notified(1, Delivered(stream_of(PEER, 5), 3, encode(Letter("news", PEER, 5, 3, b"hello")), 2))
    assert layer.handle(news) == []
    ask(layer, Subscribe("news"))
    assert layer.handle(news) == [Notify(Arrived("news", PEER, 5, 3, b"hello"))]
    ask(layer, Unsubscribe("news"))
    assert layer.handle(news) == []
    with pytest.raises(NotSubscribed):
        ask(layer, Unsubscribe("news"))
    unreadable = Notified(1, Delivered(stream_of(PEER, 5), 4, b"?", 2))
    assert layer.handle(unreadable) == [Notify(Lost(stream_of(PEER, 5), 1))]


def test_over_gossip_subscriptions_are_bounded() -> None:
    layer = over_gossip()
    for topic in ("a", "b", "a"):
        ask(layer, Subscribe(topic))
    with pytest.raises(LimitReached):
        ask(layer, Subscribe("c"))


def test_what_no_neighbour_keeps_is_asked_back_from_its_publisher() -> None:
    """P12: gaps are noticed by number and fetched from the owner."""
    layer, publisher = over_gossip(), OverGossip(PEER, kept_max=2, subscriptions_max=2, payload_bytes_max=200)
    publisher.start(5)
    for _ in range(4):
        ask(publisher, Publish("news", b"hello"))
    stream = stream_of(PEER, 5)
    asked = layer.handle(Notified(1, Missed(stream, (3, 1, 2))))
    assert asked == [Send((PEER,), AskBack(5, (1, 2, 3)))]
    sent = publisher.handle(Received(2, ME, AskBack(5, (1, 2, 3))))
    payloads = [encode(Letter("news", PEER, 5, number, b"hello")) for number in (2, 3)]  # It keeps two.
    assert sent == [Send((ME,), SentBack(5, number, payload)) for number, payload in zip((2, 3), payloads, strict=True)]
    supplied = layer.handle(Received(3, PEER, SentBack(5, 2, payloads[0])))
    assert supplied == [Ask(Supply(stream, 2, payloads[0]))]
    assert publisher.handle(Received(2, ME, AskBack(4, (1,)))) == []  # Another life's.


def test_what_nobody_has_is_given_up_after_some_tries() -> None:
    layer = over_gossip()
    missed = Notified(1, Missed(stream_of(PEER, 5), (7, 8)))
    for _ in range(TRIES_MAX):
        assert layer.handle(missed) == [Send((PEER,), AskBack(5, (7, 8)))]
    assert layer.handle(missed) == [Ask(Skip(stream_of(PEER, 5), 9)), Notify(Lost(stream_of(PEER, 5), 2))]
    assert layer.handle(missed) == [Send((PEER,), AskBack(5, (7, 8)))]  # The count begins again.
    nameless = Notified(1, Missed("nonsense", (0,)))
    assert layer.handle(nameless) == [Ask(Skip("nonsense", 1)), Notify(Lost("nonsense", 1))]

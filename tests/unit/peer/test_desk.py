"""The clients' side of a node: every command has its answer, whatever it is (P10)."""

from __future__ import annotations

import pytest

from tidings.errors import MessageTooLarge, NotSubscribed, ProtocolError, Unavailable
from tidings.peer import desk as desks
from tidings.peer.desk import Desk
from tidings.protocols import pubsub
from tidings.protocols.stack import Request
from tidings.settings import PeerSettings
from tidings.wire import door
from tidings.wire.codec import encode

VIEW = door.NodeView("tcp://127.0.0.1:1", 1, "chord", True, 0, {}, 0, 0, 0, 0, 0, {}, {}, {})


class House:
    """A desk, and what it asked of its stack."""

    def __init__(self, **settings: int) -> None:
        self.asked: list[Request] = []
        self.desk = Desk(PeerSettings(**settings), self.ask, lambda: VIEW)  # type: ignore[arg-type]

    def ask(self, request: Request) -> None:
        if isinstance(request, pubsub.Unsubscribe):
            raise NotSubscribed("This node has not subscribed: subscribe first.")
        self.asked.append(request)

    def serve(self, command: door.AnyCommand) -> door.AnyAnswer:
        return self.desk.serve(encode(command))

    def arrive(self, *texts: str) -> None:
        for number, text in enumerate(texts):
            self.desk.keep(pubsub.Arrived("news", "tcp://127.0.0.1:2", 5, number, text.encode()))

    def take(self, first: int, count_max: int = 100) -> tuple[int, list[str]]:
        taken = self.serve(door.TakeTexts(1, first, count_max))
        assert isinstance(taken, door.TakenTexts)
        return taken.first, [text.text for text in taken.texts]


def test_commands_go_to_the_stack() -> None:
    house = House()
    assert house.serve(door.Subscribe(7, "news")) == door.Done(7)
    assert house.serve(door.Publish(8, "news", "h\u00e9llo")) == door.Done(8)
    assert house.serve(door.Publish(9, "news", "both", ("sport",))) == door.Done(9)
    assert house.asked == [
        pubsub.Subscribe("news"),
        pubsub.Publish("news", "h\u00e9llo".encode()),
        pubsub.Publish("news", b"both", ("sport",)),
    ]
    assert house.desk.published == 2
    assert house.serve(door.Look(9)) == door.Seen(9, VIEW)


def test_errors_are_answers() -> None:
    house = House(text_bytes_max=4)
    refusals = [
        (house.serve(door.Unsubscribe(7, "news")), 7, NotSubscribed.number),
        (house.serve(door.Publish(8, "news", "hello")), 8, MessageTooLarge.number),
        (house.desk.serve(encode(["publish", 9, "news"])), 9, ProtocolError.number),
        (house.desk.serve(b"\xc1"), 0, ProtocolError.number),
        (house.desk.serve(b"\x91" * 2_000_000), 0, ProtocolError.number),
    ]
    for answer, request, number in refusals:
        assert isinstance(answer, door.Failed)
        assert (answer.request, answer.error) == (request, number) and len(answer.text) > 20
    assert house.desk.published == 0


def test_a_node_that_leaves_takes_no_orders_and_can_still_be_looked_at() -> None:
    house = House()
    house.arrive("one")
    house.desk.is_closing = True
    answer = house.serve(door.Publish(7, "news", "hello"))
    assert isinstance(answer, door.Failed) and answer.error == Unavailable.number
    assert isinstance(house.serve(door.Look(8)), door.Seen)
    assert house.take(0) == (0, ["one"])


def test_what_arrived_is_taken_by_number_as_often_as_one_likes() -> None:
    house = House()
    house.arrive("one", "two", "three")
    assert house.take(0, 2) == house.take(0, 2) == (0, ["one", "two"])
    assert house.take(2) == (2, ["three"])
    assert house.take(3) == (3, [])
    assert house.take(0, 0) == (0, [])
    assert isinstance(house.serve(door.TakeTexts(1, 0, -1)), door.Failed)
    assert isinstance(house.serve(door.TakeTexts(1, 2**63, 1)), door.Failed)


@pytest.mark.parametrize("limit", [{"inbox_messages_max": 2}, {"inbox_bytes_max": 8}])
def test_what_arrived_is_bounded_and_the_oldest_goes(limit: dict[str, int]) -> None:
    house = House(**limit)
    house.arrive("one", "two", "four", "five")
    assert house.take(0) == (2, ["four", "five"])
    assert house.desk.arrived == 4


def test_one_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    house.arrive("one", "two", "three")
    monkeypatch.setattr(desks, "TAKEN_BYTES_MAX", 6)
    assert house.take(0) == (0, ["one", "two"])
    assert house.take(2) == (2, ["three"])
    monkeypatch.setattr(desks, "TAKEN_BYTES_MAX", 1)
    assert house.take(0) == (0, ["one"])  # At least one, or nobody would ever get on.

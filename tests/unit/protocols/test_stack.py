"""Layers that talk only by requests, notifications and timers (P1)."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Event,
    Message,
    Notification,
    Notified,
    Notify,
    PeerDown,
    Received,
    Request,
    Requested,
    Send,
    SetTimer,
    Stack,
    Suspect,
    Table,
    Timer,
    TimerFired,
    UnexpectedEvent,
)


class Ping(Message, frozen=True):
    number: int


class Order(Request, frozen=True):
    number: int


class Done(Notification, frozen=True):
    number: int


class Due(Timer, frozen=True):
    pass


class Worker(Table):
    """Below: carries out orders and tells when they are done."""

    def start(self, now_ms: int) -> list[Effect]:
        return [SetTimer(Due(), 10)]

    def _on_ping(self, peer: str, message: Ping) -> list[Effect]:
        return [Send((peer,), Ping(message.number + 1))]

    def _on_order(self, request: Order) -> list[Effect]:
        return [Send(("b",), Ping(request.number)), Notify(Done(request.number))]

    def _on_due(self, _: Due) -> list[Effect]:
        return [Suspect("c"), CancelTimer(Due())]

    on: ClassVar = {Ping: _on_ping, Order: _on_order, Due: _on_due}


class Boss(Table):
    """Above: orders one more for each that is done, up to three."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def start(self, now_ms: int) -> list[Effect]:
        return [Ask(Order(0))]

    def _on_done(self, news: Done) -> list[Effect]:
        return [Ask(Order(news.number + 1))] if news.number < 2 else []

    def _on_peer_down(self, peer: str) -> list[Effect]:
        self.lost.append(peer)
        return []

    on: ClassVar = {Done: _on_done, PeerDown: _on_peer_down}


def test_a_request_goes_down_and_news_come_up_until_only_the_runtime_is_left() -> None:
    stack = Stack([Boss(), Worker()])
    assert stack.start(0) == [
        SetTimer(Due(), 10),
        *(Send(("b",), Ping(0)), Notify(Done(0))),
        *(Send(("b",), Ping(1)), Notify(Done(1))),
        *(Send(("b",), Ping(2)), Notify(Done(2))),
    ]


def test_a_message_goes_to_the_layer_that_handles_it() -> None:
    assert Stack([Boss(), Worker()]).handle(Received(0, "a", Ping(5))) == [Send(("a",), Ping(6))]


class Plain:
    """The same as a worker, but without a table."""

    handles = Worker.handles
    listens = ()

    def __init__(self) -> None:
        self._worker = Worker()

    def start(self, now_ms: int) -> list[Effect]:
        return self._worker.start(now_ms)

    def handle(self, event: Event) -> list[Effect]:
        return self._worker.handle(event)


@pytest.mark.parametrize("worker", [Worker(), Plain()])
def test_messages_and_timers_need_no_event(worker: Worker | Plain) -> None:
    """What a runtime hands in directly leads to the same as the event, whether the layer is a table or not."""
    boss = Boss()
    stack = Stack([boss, worker])
    assert stack.receive(0, "a", Ping(5)) == stack.handle(Received(0, "a", Ping(5))) == [Send(("a",), Ping(6))]
    assert stack.fire(0, Due()) == stack.handle(TimerFired(0, Due())) == [CancelTimer(Due())]
    assert boss.lost == ["c", "c"]
    with pytest.raises(UnexpectedEvent):
        Stack([boss], outside=(Order,)).receive(0, "a", Ping(0))
    with pytest.raises(UnexpectedEvent):
        Stack([boss], outside=(Order,)).fire(0, Due())


def test_a_table_is_read_when_the_stack_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of the same classes share their wiring, but not with those that were made of another table."""
    Stack([Boss(), Worker()])
    monkeypatch.setattr(Worker, "on", {**Worker.on, Ping: lambda self, peer, message: []})
    assert Stack([Boss(), Worker()]).receive(0, "a", Ping(5)) == []


def test_the_application_may_ask_too() -> None:
    effects = Stack([Boss(), Worker()]).handle(Requested(0, Order(2)))
    assert effects == [Send(("b",), Ping(2)), Notify(Done(2))]


def test_who_listens_hears_of_broken_connections_and_of_suspicions_alike() -> None:
    boss = Boss()
    stack = Stack([boss, Worker()])
    assert stack.handle(PeerDown(0, "a")) == []
    assert stack.handle(TimerFired(0, Due())) == [CancelTimer(Due())]
    assert boss.lost == ["a", "c"]


def test_a_table_declares_what_is_in_it() -> None:
    assert Worker.handles == (Ping, Order, Due)
    assert Boss.listens == (Done, PeerDown)


def test_a_layer_is_found_by_its_class() -> None:
    boss = Boss()
    stack = Stack([boss, Worker()])
    assert stack.layer(Boss) is boss
    assert stack.messages == (Ping,)
    with pytest.raises(LookupError):
        Stack([Worker()]).layer(Boss)


def test_a_request_may_be_served_outside() -> None:
    assert Stack([Boss()], outside=(Order,)).start(0) == [Ask(Order(0))]


@pytest.mark.parametrize("layers", [[Worker(), Worker()], [Worker()]])
def test_a_type_is_handled_once(layers: list[Worker]) -> None:
    with pytest.raises(ValueError, match="handled twice"):
        Stack(layers, outside=() if len(layers) > 1 else (Order,))


def _layer(handled: tuple[type, ...] = (), heard: tuple[type, ...] = ()) -> object:
    class Odd:
        handles = handled
        listens = heard

        def start(self, now_ms: int) -> list[Effect]:
            return []

        def handle(self, event: Event) -> list[Effect]:
            return []

    return Odd()


def test_what_cannot_be_handled_is_refused() -> None:
    with pytest.raises(TypeError, match="neither a message"):
        Stack([_layer(handled=(Done,))])
    with pytest.raises(TypeError, match="neither a notification"):
        Stack([_layer(heard=(Order,))])
    with pytest.raises(ValueError, match="listens to Done twice"):
        Stack([_layer(heard=(Done, Done))])


def test_two_messages_of_one_name_are_refused_as_the_name_is_their_tag() -> None:
    other = type("Ping", (Message,), {}, frozen=True)
    with pytest.raises(ValueError, match="share a name"):
        Stack([_layer(handled=(Ping, other))])


@pytest.mark.parametrize(
    "event",
    [Received(0, "a", Ping(0)), TimerFired(0, Due()), Requested(0, Order(0)), Notified(0, Done(0))],
)
def test_what_nobody_declared_is_a_bug(event: Event) -> None:
    with pytest.raises(UnexpectedEvent):
        Stack([_layer()]).handle(event)
    with pytest.raises(UnexpectedEvent):
        Table().handle(event)


def test_an_unserved_request_is_a_bug() -> None:
    with pytest.raises(UnexpectedEvent):
        Stack([Boss()]).start(0)


def test_layers_that_answer_each_other_for_ever_are_a_bug() -> None:
    class Echo(Table):
        def start(self, now_ms: int) -> list[Effect]:
            return [Notify(Done(0))]

        def _on_done(self, news: Done) -> list[Effect]:
            return [Notify(news)]

        on: ClassVar = {Done: _on_done}

    with pytest.raises(AssertionError, match="for ever"):
        Stack([Echo()]).start(0)

"""Planted bugs of the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidings.client.future import Future
from tidings.client.outbox import Outbox
from tidings.client.puts import Entry, Record
from tidings.client.request import Request
from tidings.client.stream import Stream
from tidings.client.streams import Streams
from tidings.protocols.broker import messages
from tidings.simulator.checkers.rules import ONCE, TOGETHER, TWICE
from tidings.simulator.clients.client import MemoryInbox
from tidings.simulator.planting import mutant, patched


@mutant("client-keeps-repetitions", "a delivery that comes twice is handed out twice", ONCE, TWICE)
def _client_keeps_repetitions() -> Iterator[None]:
    def make(deliver: Any) -> Any:
        def planted(self: Stream, delivery: messages.Delivery, bodies: Any) -> bool:
            if delivery.topic in self.received:
                self.received[delivery.topic] = min(self.received[delivery.topic], delivery.since)
            return bool(deliver(self, delivery, bodies))

        return planted

    with patched(Stream, "deliver", make):
        yield


@mutant("client-ignores-gaps", "a delivery that leaves a gap is taken", ONCE, TOGETHER)
def _client_ignores_gaps() -> Iterator[None]:
    def make(deliver: Any) -> Any:
        def planted(self: Stream, delivery: messages.Delivery, bodies: Any) -> bool:
            if delivery.topic in self.received:
                self.received[delivery.topic] = max(self.received[delivery.topic], delivery.since)
            return bool(deliver(self, delivery, bodies))

        return planted

    with patched(Stream, "deliver", make):
        yield


@mutant("resend-renumbered", "a put with an unknown outcome is sent again under a new sequence number", TWICE)
def _resend_renumbered() -> Iterator[None]:
    def make(resend: Any) -> Any:
        def planted(self: Outbox, entry: Entry) -> Any:
            if not isinstance(entry, Record):
                return resend(self, entry)
            self._unknown = [each for each in self._unknown if entry not in each.entries]
            self._unsent = [each for each in self._unsent if each is not entry]
            self.give(entry)
            return entry.future

        return planted

    with patched(Outbox, "resend", make):
        yield


@mutant("get-before-ack", "get hands a message out before its acknowledgement is durable", ONCE)
def _get_before_ack() -> Iterator[None]:
    def make(acknowledge: Any) -> Any:
        def planted(self: Streams, *arguments: Any) -> Request:
            request: Request = acknowledge(self, *arguments)
            request.owner = Future()
            request.future.finish(messages.AckDone(0))
            return request

        return planted

    with patched(Streams, "acknowledge", make):
        yield


@mutant("inbox-without-marks", "the inbox does not write down what was handed out", ONCE)
def _inbox_without_marks() -> Iterator[None]:
    with patched(MemoryInbox, "mark_all", lambda _: lambda inbox, marks: None):
        yield

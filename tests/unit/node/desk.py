"""A broker without a network: requests in, answers out, on the simulated disk."""

from __future__ import annotations

import random
from typing import Any

from tidings.journal.disk import DiskFull, RealDisk
from tidings.journal.journal import Journal
from tidings.message import Columns
from tidings.node.engines import lone_engine
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings
from tidings.simulator.disk import SimulatedDisk
from tidings.wire import codec


class Desk:
    """Drives an engine by hand. Times are given, commits end at once unless they are held."""

    def __init__(
        self,
        broker: BrokerSettings | None = None,
        journal: JournalSettings | None = None,
        disk: SimulatedDisk | RealDisk | None = None,
    ) -> None:
        self.disk = disk or SimulatedDisk(random.Random(1))
        self.settings = broker or BrokerSettings()
        self.journal_settings = journal or JournalSettings()
        self.now_ms = 1_000
        self.epochs: dict[str, int] = {}
        self.restart()

    def restart(self) -> int:
        """The process ends and a new one recovers; how many records it replayed."""
        self.engine = lone_engine(self.settings, Journal.open(self.disk, self.journal_settings))
        return self.engine.recover()

    def commit(self) -> None:
        while self.engine.has_staged:
            commit = self.engine.begin_commit(self.now_ms)
            try:
                self.engine.journal.write(commit)
            except DiskFull as error:
                self.engine.refuse_commit(self.now_ms, error)
            else:
                self.engine.finish_commit(self.now_ms)

    def say(self, frames: list[bytes], peer: str = "peer", user: str | None = None) -> None:
        self.engine.receive(self.now_ms, peer, frames, user)

    def heard(self) -> list[tuple[Any, Any, list[Columns]]]:
        """All that went out since the last call: peer, message, batches."""
        outgoing, self.engine.outgoing = self.engine.outgoing, []
        return [
            (peer, codec.decode_answer(frames[0]), [codec.decode_columns(body) for body in frames[1:]])
            for peer, frames in outgoing
        ]

    def ask(self, request: messages.Request, *batches: Columns, peer: str = "peer", user: str | None = None) -> Any:
        """The one answer to a request; deliveries that came before it are dropped."""
        self.say([codec.encode(request), *map(codec.encode, batches)], peer, user)
        self.commit()
        return self.heard()[-1][1]

    def hello(self, client: str, token: bytes = b"token", anonymous: bool = False) -> int:
        welcome = self.ask(messages.Hello(1, messages.VERSION, client, token, anonymous))
        self.epochs[client] = welcome.epoch
        return int(welcome.epoch)

    def put(self, client: str, topic: str, sequence: int, *values: bytes, **columns: Any) -> Any:
        part = messages.Part((messages.Target(topic, sequence),), len(values))
        return self.ask(messages.Put(2, client, self.epochs[client], part), Columns(1, client, list(values), **columns))

    def subscribe(self, client: str, *topics: str, start: messages.Start = "now") -> Any:
        return self.ask(messages.Subscribe(3, client, self.epochs[client], topics, start))

    def flow(
        self,
        client: str,
        *topics: str,
        stream: int = 1,
        messages_room: int = 1000,
        bytes_room: int = 1_000_000,
        positions: tuple[messages.Position, ...] = (),
        request: int = 0,
    ) -> list[tuple[Any, Any, list[Columns]]]:
        flow = messages.Flow(request, client, self.epochs[client], topics, stream, positions, messages_room, bytes_room)
        self.say([codec.encode(flow)], peer=client)
        self.commit()
        return self.heard()

    def ack(self, client: str, topic: str, offset: int) -> Any:
        acknowledgement = messages.Acknowledgement((topic,), (messages.Position(topic, offset),))
        return self.ask(messages.Ack(4, client, self.epochs[client], acknowledgement))


def values(heard: list[tuple[Any, Any, list[Columns]]]) -> list[bytes]:
    """The values of all deliveries, cut at where each stream stood."""
    found: list[bytes] = []
    for _, message, batches in heard:
        if isinstance(message, messages.Delivery):
            rows = [value for columns in batches for value in columns.values]
            found += rows[max(0, message.since - message.first_offset) :]
    return found

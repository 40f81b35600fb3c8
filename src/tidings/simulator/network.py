"""The network between the clients and the broker: it delays, loses, repeats, reorders and is cut.

Everything that travels is bytes, as on the wire. A connection has a number, which is what the broker knows of
its client; a connection that is made again gets a new one, and what was on its way to the client over the old
one is lost. Frames that the broker is to get may still arrive then: they had left.

Answers and deliveries are also repeated. A request is not: no connection makes copies of what it carries. It
comes twice because the client sent it twice, over two connections, and the older copy may be the later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidings.protocols.broker.messages import AnyRequest
from tidings.simulator.faults import Break, FaultPlan, Partition
from tidings.wire.codec import Frame, decode_answer, decode_request

if TYPE_CHECKING:
    from tidings.simulator.client import ClientProcess
    from tidings.simulator.world import World


class Network:
    """Carries frames; the plan says how badly."""

    def __init__(self, world: World, plan: FaultPlan) -> None:
        self._world = world
        self._plan = plan
        self._connections: dict[int, ClientProcess] = {}
        self._owners: dict[int, ClientProcess] = {}
        """Whose each connection is or was."""
        self._last = 0
        self._ready_ms: dict[tuple[int, bool], int] = {}
        """When a connection is free again in a direction, for plans that keep the order."""

    def connect(self, process: ClientProcess) -> None:
        """A new connection for a process; the old one, if any, is gone."""
        self._connections.pop(process.connection, None)
        self._last += 1
        process.connection = self._last
        self._connections[self._last] = self._owners[self._last] = process

    def disconnect(self, process: ClientProcess) -> None:
        """The process has gone."""
        self._connections.pop(process.connection, None)

    def disconnect_all(self) -> None:
        """The broker has gone: every connection will be a new one."""
        for process in list(self._connections.values()):
            self.connect(process)

    def on_break(self, fault: Break) -> None:
        self._world.note("network", f"the connection of {fault.client} breaks")
        for process in list(self._connections.values()):
            if process.name == fault.client:
                self.connect(process)

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        request = decode_request(copied[0])
        self._world.note(process.label, f"-> {described(request, copied)}")
        self._world.watch.on_request(process, request)
        connection, broker = process.connection, self._world.broker
        life = None
        if self._plan.severing:  # What is sent while there is no broker waits for the next one, and for no later one.
            life = broker.life if broker.engine is not None else broker.life + 1
        for at_ms in self._arrivals(connection, process.name, to_broker=True):
            self._world.at(at_ms, lambda: self._reach_broker(process, connection, life, request, copied))

    def send_to_client(self, connection: int, frames: Sequence[Frame]) -> None:
        copied = [bytes(frame) for frame in frames]
        answer = decode_answer(copied[0])
        self._world.watch.on_answer(self._owners[connection], answer)
        process = self._connections.get(connection)
        if process is None:
            return  # Nobody is at the other end any more.
        self._world.note("broker", f"-> {process.label} {described(answer, copied)}")
        for at_ms in self._arrivals(connection, process.name, to_broker=False):
            self._world.at(at_ms, lambda: self._reach_client(connection, copied))

    def _reach_broker(
        self, process: ClientProcess, connection: int, life: int | None, request: AnyRequest, frames: list[bytes]
    ) -> None:
        broker = self._world.broker
        if broker.engine is not None and life in (None, broker.life):
            self._world.watch.on_arrived(process, request)
            broker.receive(connection, frames)

    def _reach_client(self, connection: int, frames: list[bytes]) -> None:
        process = self._connections.get(connection)
        if process is not None:
            process.receive(frames)

    def _arrivals(self, connection: int, client: str, to_broker: bool) -> list[int]:
        """When a message arrives: never, once, or several times."""
        plan, random, now_ms = self._plan, self._world.random, self._world.now_ms
        if self._world.calm:
            arrivals = [now_ms + 1]
        elif random.random() < plan.loss:
            arrivals = []
        else:
            count = 1 if to_broker or random.random() >= plan.repetition else 2
            arrivals = [
                now_ms + random.randint(1, plan.late_ms_max if random.random() < plan.late else plan.latency_ms_max)
                for _ in range(count)
            ]
        until_ms = self._blocked_until(client, to_broker, now_ms)
        if until_ms is not None:
            # A connection holds what it cannot get across; without one it is lost.
            arrivals = [max(at_ms, until_ms) for at_ms in arrivals] if plan.orderly else []
        if plan.orderly:
            key = (connection, to_broker)
            arrivals = [max(at_ms, self._ready_ms.get(key, 0)) for at_ms in arrivals]
            if arrivals:
                self._ready_ms[key] = max(arrivals)
        return arrivals

    def _blocked_until(self, client: str, to_broker: bool, now_ms: int) -> int | None:
        def blocks(each: Partition) -> bool:
            return each.client == client and (each.to_broker if to_broker else each.to_client)

        found = [
            each.until_ms for each in self._plan.partitions if each.at_ms <= now_ms < each.until_ms and blocks(each)
        ]
        return max(found, default=None)


def described(message: object, frames: list[bytes]) -> str:
    """A message as it is shown in a trace."""
    return f"{message!r} +{len(frames) - 1}" if len(frames) > 1 else repr(message)

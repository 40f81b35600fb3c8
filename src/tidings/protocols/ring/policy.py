"""The ownership policy of a broker whose group may be part of a ring.

Until the group has claimed something (`Claim`) it is part of no ring, and owns everything. From then on it owns what
its `Ownership` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidings.errors import InvalidRequest
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import OwnershipCommand, Write
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Hello
from tidings.protocols.broker.state import State
from tidings.protocols.ring import transfer
from tidings.protocols.ring.commands import Claim, RingCommand
from tidings.protocols.ring.key_ranges import tag_of
from tidings.protocols.ring.ownership import Ownership, RingState
from tidings.protocols.ring.subjects import topics_of, topics_written


class RingPolicy:
    """Owns some ranges of a ring, or everything as long as there is no ring."""

    def __init__(self, ring: Ownership | None = None) -> None:
        self.ring = ring
        """None for a group that is part of no ring."""

    def owns_topic(self, name: str) -> bool:
        return self.ring is None or self.ring.owns_topic(name)

    def owns_home(self, client: str) -> bool:
        return self.ring is None or self.ring.owns_home(client)

    def check_topics(self, names: Iterable[str]) -> None:
        if self.ring is not None:
            self.ring.check_topics(names)

    def check_home(self, client: str) -> None:
        if self.ring is not None:
            self.ring.check_home(client)

    def check_request(self, message: Any) -> None:
        """In a ring, only what this group owns is answered here."""
        if self.ring is None:
            return
        if isinstance(message, Hello):
            self.ring.check_home(message.client)
        elif topics := topics_of(message):
            self.ring.check_topics(topics)

    def check_write(self, command: Write) -> None:
        if self.ring is not None:
            self.ring.check_topics(topics_written(command))

    def check_staging(self) -> None:
        if self.ring is not None:  # The topics of a query's batch may belong to several groups.
            raise InvalidRequest("A ring takes no staged batches: put them, or use one broker or group for them.")

    def beside(self, topic: str, name: str) -> str:
        return name if self.ring is None else f"{{{tag_of(topic)}}}{name}"

    def is_held(self, state: State, client: Client) -> bool:
        return self.ring is not None and transfer.is_held(state, self.ring, client)

    def apply(self, state: State, command: OwnershipCommand, body_address: int) -> object:
        assert isinstance(command, RingCommand)
        if isinstance(command, Claim):
            if self.ring is None:
                self.ring = Ownership(command.ranges)
                if command.brings:
                    self.ring.bring(transfer.points_of(state), command.doors)
            return None
        if self.ring is None:
            raise InvalidRequest("This broker is part of no ring: claim some ranges first.")
        return transfer.apply(state, self.ring, command, body_address)

    # Snapshots.

    def seal(self) -> bytes:
        return msgspec.msgpack.encode(None if self.ring is None else self.ring.state())

    def restore(self, part: memoryview) -> None:
        state = msgspec.msgpack.decode(part, type=RingState | None)
        self.ring = None if state is None else Ownership.restore(state)


def ring_of(machine: Machine) -> Ownership | None:
    """What a broker owns of a ring; None if it is part of none."""
    return machine.ownership.ring if isinstance(machine.ownership, RingPolicy) else None

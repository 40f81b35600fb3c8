"""The ownership policy of a broker whose group may be part of a ring.

Until the group has claimed something (`Claim`) it is part of no ring, and owns everything. From then on it owns what
its `Ownership` says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidings.errors import InvalidRequest, Moved
from tidings.protocols.broker.bulk import StageName
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import OwnershipCommand, Publish, Write
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Ack, Beat, Commit, Hello, Put
from tidings.protocols.broker.staged import sink_key
from tidings.protocols.broker.state import State
from tidings.protocols.ring import committing, transfer
from tidings.protocols.ring.commands import Claim, RingCommand
from tidings.protocols.ring.commit_commands import CommitCommand
from tidings.protocols.ring.key_ranges import WHOLE, client_of, home_of, owns, point_of, tag_of
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

    def noted(self, client: Client) -> tuple[bytes, ...] | None:
        """Groups do not ask for names that are made up for one session, so such a name has no list."""
        return None if self.ring is None or transfer.is_anonymous(client.name) else client.noted

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
            return
        if self.ring.commits.held and not isinstance(message, Beat):
            self.ring.commits.check_free(getattr(message, "client", ""))
        if isinstance(message, Put | Commit | Ack):  # Any topics may be written at once, where they have one owner.
            self.ring.check_owned(topics_of(message))
        elif topics := topics_of(message):
            self.ring.check_topics(topics)

    def check_write(self, command: Write) -> None:
        if self.ring is not None:
            self.ring.commits.check_free(command.client)
            self.ring.check_owned(topics_written(command))

    def shares_stages(self) -> bool:
        return self.ring is not None

    def check_publish(self, command: Publish) -> None:
        """One record is enough if all topics, and what is remembered of the query, are this group's."""
        ring, client = self.ring, client_of(sink_key(command.query, command.sink))
        if ring is None:
            return
        if client in ring.commits.open:
            raise Moved(f"Another batch of {command.query!r} is being published: ask again.")
        ring.commits.check_free(client)
        if not publishes_alone(ring, client, command.stages):
            raise Moved(f"Not all of what {command.query!r} publishes is here: ask again.")

    def is_frozen(self, name: str) -> bool:
        given = self.ring.handing_off if self.ring is not None else None
        return given is not None and owns(given.ranges, point_of(name))

    def check_free(self, client: str) -> None:
        if self.ring is not None:
            self.ring.commits.check_free(client)

    def beside(self, topic: str, name: str) -> str:
        return name if self.ring is None else f"{{{tag_of(topic)}}}{name}"

    def is_held(self, state: State, client: Client) -> bool:
        return self.ring is not None and transfer.is_held(state, self.ring, client)

    def apply(self, state: State, command: OwnershipCommand, time_ms: int, body_address: int) -> object:
        assert isinstance(command, RingCommand)
        if isinstance(command, Claim):
            if self.ring is None:
                self.ring = Ownership(command.ranges)
                if command.brings:
                    self.ring.bring(transfer.points_of(state), command.doors)
                state.stages.split()
            return None
        if self.ring is None:
            raise InvalidRequest("This broker is part of no ring: claim some ranges first.")
        if isinstance(command, CommitCommand):
            return committing.apply(state, self.ring, command, time_ms, body_address)
        return transfer.apply(state, self.ring, command, body_address)

    # Snapshots.

    def seal(self) -> bytes:
        return msgspec.msgpack.encode(None if self.ring is None else self.ring.state())

    def restore(self, part: memoryview) -> None:
        state = msgspec.msgpack.decode(part, type=RingState | None)
        self.ring = None if state is None else Ownership.restore(state)


def publishes_alone(ring: Ownership, client: str, stages: Iterable[StageName]) -> bool:
    """Whether a group has everything of some stages, and the home of their query's sink."""
    if not ring.serves(home_of(client)):
        return False
    written = [named for named in stages if named.count]
    if ring.ranges != (WHOLE,) and not all(named.topics for named in written):
        return False
    return all(ring.owns_topic(topic) for named in written for topic in named.topics)


def ring_of(machine: Machine) -> Ownership | None:
    """What a broker owns of a ring; None if it is part of none."""
    return machine.ownership.ring if isinstance(machine.ownership, RingPolicy) else None

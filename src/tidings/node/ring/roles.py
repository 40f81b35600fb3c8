"""What the parts of a ring's node need from the node that they are parts of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tidings.node.engine import Engine
from tidings.node.group import Group
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.events import Received
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.handoff_messages import HandoffMessage
from tidings.protocols.ring.messages import GroupDescriptor, NodeMessage, Word
from tidings.protocols.ring.transfer import AtHome
from tidings.settings import RingSettings
from tidings.wire.codec import Frame


class RingNode(Protocol):
    """A node of a ring: its engine, its group, and its way to other nodes."""

    address: str
    """Where the other nodes reach this one."""
    settings: RingSettings
    directory: Directory
    engine: Engine[Group, Any]
    group: Group

    def descriptor(self) -> GroupDescriptor:
        """Where our group is reached, as far as is known here."""

    def word(self) -> Word:
        """What our group owns, as far as is known here."""

    def send_node(self, address: str, message: NodeMessage | HandoffMessage, bodies: Sequence[Frame] = ()) -> None:
        """Sends a message to another node."""

    def draw_bytes(self, count: int) -> bytes:
        """Bytes that nobody else draws."""

    def admit(self, received: Received, home: AtHome | None = None) -> None:
        """Takes a request, once the epoch that it names is known here; its home may just have said which is the
        newest."""

    def publishes(self, received: Received) -> bool:
        """Takes a request to publish what lies with other owners too; False for any other."""

    def send_leave_notices(self, descriptors: Iterable[GroupDescriptor]) -> None:
        """Tells other groups that ours has left."""

    def seek(self, now_ms: int, point: Key) -> None:
        """The owner of a point is wanted."""

    def suspect(self, group: bytes) -> None:
        """What is known of a group may be old: it is asked."""

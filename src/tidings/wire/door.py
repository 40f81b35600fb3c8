"""What clients say to a node of an overlay, and what it answers.

A command and an answer are one frame each, a msgpack array whose first field is the kind and whose second is a number
of the client's choice, which comes back with the answer:

    ["publish", 7, "news", "hello"]      ["done", 7]
    ["take", 8, 0, 100]                  ["taken", 8, 0, [["news", "tcp://127.0.0.1:7501", 1763212345678, 0, "hello"]]]

They go to the same address as the messages of peers; the kind tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from tidings.errors import ProtocolError
from tidings.protocols.fields import Name, Number
from tidings.wire.codec import Frame

COMMAND_BYTES_MAX = 1024 * 1024
TOPICS_MAX = 64


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client wants."""

    request: Number


class Subscribe(Command, frozen=True, tag="subscribe"):
    topic: Name


class Unsubscribe(Command, frozen=True, tag="unsubscribe"):
    topic: Name


class Publish(Command, frozen=True, tag="publish"):
    """`also` are more topics: the message goes to all of them or to none, and comes once to a subscriber of several."""

    topic: Name
    text: str
    also: Annotated[tuple[Name, ...], msgspec.Meta(max_length=TOPICS_MAX - 1)] = ()


class TakeTexts(Command, frozen=True, tag="take"):
    """The messages that arrived, from a number on. Taking changes nothing, so it may be asked again."""

    first: Number
    count_max: Number


class Look(Command, frozen=True, tag="look"):
    """What the node sees."""


AnyCommand = Subscribe | Unsubscribe | Publish | TakeTexts | Look


class RingView(msgspec.Struct, frozen=True):
    """A node's place in the ring."""

    predecessor: str | None
    successors: tuple[str, ...]
    successors_max: int
    fingers: tuple[str, ...]
    """The nodes far away that it knows, each once."""
    awaited: int = 0
    """Founding members that are still missing."""


class ViewsView(msgspec.Struct, frozen=True):
    """A node's views in an overlay without structure."""

    active: tuple[str, ...]
    passive: tuple[str, ...]


class TreeView(msgspec.Struct, frozen=True):
    """A node's part in the tree of a topic."""

    topic: str
    is_root: bool
    parent: str | None
    children: tuple[str, ...]


class NodeView(msgspec.Struct, frozen=True):
    """What a node sees, and what it has counted since it began."""

    address: str
    life: int
    overlay: str
    joined: bool
    uptime_ms: int
    subscriptions: dict[str, bool]
    """The topics, and whether each is in effect: False while it is still being arranged."""
    published: int
    waiting: int
    """Messages that were published here and that the topic's owner has not taken yet."""
    arrived: int
    lost: int
    links: int
    sent: dict[str, dict[str, int]]
    """Messages sent to peers, by layer and type."""
    received: dict[str, int]
    """Messages from peers, by layer."""
    refused: dict[str, int]
    """Frames that were dropped, by what was wrong with them."""
    ring: RingView | None = None
    views: ViewsView | None = None
    trees: tuple[TreeView, ...] = ()

    def others(self) -> Iterator[str]:
        """Every node that this one knows of."""
        if self.ring is not None:
            yield from self.ring.successors
            yield from self.ring.fingers
            if self.ring.predecessor is not None:
                yield self.ring.predecessor
        if self.views is not None:
            yield from self.views.active
            yield from self.views.passive


class Text(msgspec.Struct, frozen=True, array_like=True):
    """A message that arrived."""

    topic: str
    publisher: str
    life: int
    number: int
    """The publisher's own count."""
    text: str
    also: Annotated[tuple[Name, ...], msgspec.Meta(max_length=TOPICS_MAX - 1)] = ()
    """The other topics that it was published to."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """To a command."""

    request: int


class Done(Answer, frozen=True, tag="done"):
    pass


class Failed(Answer, frozen=True, tag="failed"):
    error: int
    """Its number in `tidings.errors`."""
    text: str


class TakenTexts(Answer, frozen=True, tag="taken"):
    first: int
    """The number of the first of these messages: later than was asked for if the ones before are kept no longer."""
    texts: tuple[Text, ...]


class Seen(Answer, frozen=True, tag="seen"):
    view: NodeView


AnyAnswer = Done | Failed | TakenTexts | Seen

_command_decoder = msgspec.msgpack.Decoder(AnyCommand)
_answer_decoder = msgspec.msgpack.Decoder(AnyAnswer)


def decode_command(frame: Frame) -> AnyCommand:
    """The command of a client."""
    if len(frame) > COMMAND_BYTES_MAX:
        raise ProtocolError(f"A command of {len(frame)} bytes is above the limit of {COMMAND_BYTES_MAX}: send less.")
    try:
        command: AnyCommand = _command_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The command could not be read ({error}): docs/node.md lists the commands.") from error
    return command


def decode_answer(frame: Frame) -> AnyAnswer:
    """A node's answer to a command."""
    try:
        answer: AnyAnswer = _answer_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The answer could not be read ({error}): is that a node of an overlay?") from error
    return answer

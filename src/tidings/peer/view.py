"""What can be seen of a stack from outside: its neighbours, its trees, its subscriptions."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from tidings.protocols.chord import Chord
from tidings.protocols.chord.founding import Founding
from tidings.protocols.gossip import Gossip
from tidings.protocols.hyparview import HyParView
from tidings.protocols.pubsub import OverGossip
from tidings.protocols.scribe import Scribe
from tidings.protocols.stack import Stack
from tidings.wire.door import NodeView, RingView, TreeView, ViewsView

TREES_MAX = 1_000
"""Trees in one view: an answer must not grow without end."""


def is_ring(stack: Stack) -> bool:
    return any(isinstance(layer, Chord) for layer in stack.layers)


def is_joined(stack: Stack) -> bool:
    """Whether the node takes part in its overlay."""
    if is_ring(stack):
        return stack.layer(Chord).ring.is_member
    return stack.layer(Gossip).knows_beginning


def subscriptions_of(stack: Stack) -> dict[str, bool]:
    """The topics, and whether messages that are published from now on will come."""
    if is_ring(stack):
        return {topic: reader.next_offset is not None for topic, reader in stack.layer(Scribe).readers.items()}
    joined = is_joined(stack)
    return dict.fromkeys(stack.layer(OverGossip).subscriptions, joined)


def waiting_in(stack: Stack) -> int:
    """Messages that this node published and that are not yet safe with somebody else."""
    return sum(len(outbox) for outbox in stack.layer(Scribe).outboxes.values()) if is_ring(stack) else 0


def look(stack: Stack, view: NodeView) -> NodeView:
    """The view with what is special about its overlay."""
    if not is_ring(stack):
        views = stack.layer(HyParView)
        return replace(view, views=ViewsView(views.active, views.passive))
    ring, fingers = stack.layer(Chord).ring, stack.layer(Chord).fingers
    trees = islice(stack.layer(Scribe).trees.trees.values(), TREES_MAX)
    return replace(
        view,
        ring=RingView(
            None if ring.predecessor_is_dead else ring.predecessor,
            ring.successors,
            ring.settings.successors_max,
            tuple(dict.fromkeys(node for _, node in fingers.items())),
            stack.layer(Founding).missing,
        ),
        trees=tuple(TreeView(tree.topic, tree.is_root, tree.parent, tuple(tree.children)) for tree in trees),
    )

"""The multicast trees: who is a child of whom, for each topic (Scribe, sections 3.2 to 3.4).

A node that wants a topic asks, by one step of Chord's route to the topic's owner, to be a child of the next node,
which does the same unless it is in the tree already. So the routes of all subscribers, run backwards, are the tree.

There can be no circle: every step leads strictly nearer to the topic's point, except the last one, to the
owner behind it, and the owner has no parent. A node that ceases to be the owner lets all its children go first.

Parents beat their children, and children confirm; who is silent for too long is dropped. A child that has lost its
parent takes a new step, which leads around what is dead.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.protocols.chord import RouteStep, key_of
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.scribe.messages import (
    Grafted,
    JoinTree,
    Orphaned,
    Pruned,
    Spread,
    TreeBeat,
    TreeBeatTaken,
    encode,
)
from tidings.protocols.stack import Ask, Effect, NodeId, Send
from tidings.settings import ScribeSettings

TREES_PER_BEAT_MAX = 1_000


class Tree(msgspec.Struct):
    """This node's part of one tree."""

    topic: str
    is_root: bool = False
    is_wanted: bool = False
    """This node subscribed itself."""
    parent: NodeId | None = None
    parent_heard_ms: int = 0
    asked_ms: int | None = None
    """When a step was last taken to find a parent."""
    children: dict[NodeId, int] = {}
    """When each was last heard of."""
    root: NodeId | None = None
    """Who the root is, as far as the parent knows."""
    end: int = 0
    """How far the topic goes, as far as anybody has told."""

    @property
    def is_idle(self) -> bool:
        return not (self.is_root or self.is_wanted or self.children)


class Trees:
    """All trees in which this node has a part."""

    def __init__(self, node: NodeId, settings: ScribeSettings, key_of: Callable[[str], Key] = key_of) -> None:
        self._node = node
        self._settings = settings
        self._key_of = key_of
        """Where a topic lies."""
        self.trees: dict[str, Tree] = {}
        self.refused = 0
        """Children that were not taken because there were too many."""

    def get(self, topic: str) -> Tree | None:
        return self.trees.get(topic)

    def need(self, topic: str) -> Tree | None:
        """The part in a tree, made if there is none; None if there are too many."""
        tree = self.trees.get(topic)
        if tree is None:
            if len(self.trees) >= self._settings.topics_max:
                return None
            tree = self.trees[topic] = Tree(topic)
        return tree

    # Parents.

    def climb(self, now_ms: int, tree: Tree) -> list[Effect]:
        """Takes a step towards the root, unless there is a parent or a step is under way."""
        if tree.is_root or tree.parent is not None or tree.is_idle:
            return []
        if tree.asked_ms is not None and now_ms - tree.asked_ms < self._settings.retry_ms:
            return []
        tree.asked_ms = now_ms
        return [Ask(RouteStep(self._key_of(tree.topic), encode(JoinTree(tree.topic))))]

    def on_grafted(self, now_ms: int, peer: NodeId, grafted: Grafted) -> list[Effect]:
        tree = self.trees.get(grafted.topic)
        if tree is None or tree.is_root or tree.is_idle:
            return [Send((peer,), Pruned(grafted.topic))]
        effects: list[Effect] = []
        if tree.parent is not None and tree.parent != peer:
            effects.append(Send((tree.parent,), Pruned(tree.topic)))
        tree.parent, tree.parent_heard_ms, tree.asked_ms = peer, now_ms, None
        self._learn(tree, grafted.root, grafted.end)
        return effects

    def on_orphaned(self, now_ms: int, peer: NodeId, topic: str) -> list[Effect]:
        tree = self.trees.get(topic)
        return self._lose_parent(now_ms, tree) if tree is not None and tree.parent == peer else []

    def _lose_parent(self, now_ms: int, tree: Tree) -> list[Effect]:
        tree.parent = tree.asked_ms = None
        return self.climb(now_ms, tree)

    @staticmethod
    def _learn(tree: Tree, root: NodeId | None, end: int) -> None:
        if root is not None:
            tree.root = root
        tree.end = max(tree.end, end)

    # Children.

    def on_join(self, now_ms: int, child: NodeId, tree: Tree) -> list[Effect]:
        """Somebody takes a step to us: it is our child, and we need a parent ourselves."""
        if child not in tree.children and len(tree.children) >= self._settings.children_max:
            self.refused += 1
            return self._drop_if_idle(tree)
        tree.children[child] = now_ms
        return [Send((child,), Grafted(tree.topic, tree.root, tree.end)), *self.climb(now_ms, tree)]

    def on_pruned(self, peer: NodeId, topic: str) -> list[Effect]:
        """A child leaves; if nobody needs us any more, so do we."""
        tree = self.trees.get(topic)
        if tree is None or tree.children.pop(peer, None) is None:
            return []
        return self._drop_if_idle(tree)

    def _drop_if_idle(self, tree: Tree) -> list[Effect]:
        if not tree.is_idle:
            return []
        del self.trees[tree.topic]
        return [] if tree.parent is None else [Send((tree.parent,), Pruned(tree.topic))]

    def leave(self, tree: Tree) -> list[Effect]:
        """This node does not want the topic any more; it may still have to forward it."""
        tree.is_wanted = False
        return self._drop_if_idle(tree)

    # The root.

    def crown(self, tree: Tree) -> list[Effect]:
        """This node is the root from now on, and a root has no parent."""
        tree.is_root, tree.root = True, self._node
        parent, tree.parent, tree.asked_ms = tree.parent, None, None
        return [] if parent is None else [Send((parent,), Pruned(tree.topic))]

    def uncrown(self, now_ms: int, tree: Tree) -> list[Effect]:
        """Somebody else is the root. The children have to go, because this node is about to be somebody's child."""
        tree.is_root, tree.root = False, None
        children = tuple(tree.children)
        tree.children.clear()
        effects: list[Effect] = [Send(children, Orphaned(tree.topic))] if children else []
        return effects + (self._drop_if_idle(tree) or self.climb(now_ms, tree))

    # Messages on their way down.

    def pass_on(self, tree: Tree, spread: Spread) -> list[Effect]:
        self._learn(tree, spread.root, spread.first_offset + len(spread.payloads))
        return [Send(tuple(tree.children), spread)] if tree.children else []

    def on_spread(self, now_ms: int, peer: NodeId, spread: Spread) -> list[Effect]:
        """Only what comes from the parent goes on: from anybody else it would go round in circles."""
        tree = self.trees.get(spread.topic)
        if tree is None or tree.parent != peer:
            return [Send((peer,), Pruned(spread.topic))]
        tree.parent_heard_ms = now_ms
        return self.pass_on(tree, spread)

    # Beats and silence.

    def on_tree_beat(self, now_ms: int, peer: NodeId, beat: TreeBeat) -> list[Effect]:
        """The parent lives, and says how far its topics go. Trees in which it is not our parent are left
        unconfirmed.
        """
        taken = []
        for topic, root, end in beat.trees:
            tree = self.trees.get(topic)
            if tree is not None and tree.parent == peer:
                tree.parent_heard_ms = now_ms
                self._learn(tree, root, end)
                taken.append(topic)
        return [Send((peer,), TreeBeatTaken(tuple(taken)))]

    def on_tree_beat_taken(self, now_ms: int, peer: NodeId, topics: tuple[str, ...]) -> None:
        for topic in topics:
            tree = self.trees.get(topic)
            if tree is not None and peer in tree.children:
                tree.children[peer] = now_ms

    def on_beat(self, now_ms: int) -> list[Effect]:
        """Beats the children, lets the silent go, and looks for parents."""
        effects: list[Effect] = []
        earliest_ms = now_ms - self._settings.silence_ms_max
        beats: dict[NodeId, list[tuple[str, NodeId | None, int]]] = {}
        for tree in list(self.trees.values()):
            for child in [child for child, heard_ms in tree.children.items() if heard_ms < earliest_ms]:
                del tree.children[child]
            if tree.is_idle:
                effects += self._drop_if_idle(tree)
                continue
            for child in tree.children:
                beats.setdefault(child, []).append((tree.topic, tree.root, tree.end))
            if tree.parent is not None and tree.parent_heard_ms < earliest_ms:
                effects += self._lose_parent(now_ms, tree)
            else:
                effects += self.climb(now_ms, tree)
        for child, trees in beats.items():
            for first in range(0, len(trees), TREES_PER_BEAT_MAX):
                effects.append(Send((child,), TreeBeat(tuple(trees[first : first + TREES_PER_BEAT_MAX]))))
        return effects

    def on_down(self, now_ms: int, peer: NodeId) -> list[Effect]:
        """A peer is gone: it is nobody's child and nobody's parent."""
        effects: list[Effect] = []
        for tree in list(self.trees.values()):
            if tree.parent == peer:
                effects += self._lose_parent(now_ms, tree)
            if tree.root == peer:
                tree.root = None
            if tree.children.pop(peer, None) is not None:
                effects += self._drop_if_idle(tree)
        return effects

"""Planted bugs of Chord and Scribe: each takes one rule away, and a checker has to notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidings.protocols.chord.messages import Place, Precede
from tidings.protocols.chord.ring import Links, Ring
from tidings.protocols.chord.routing import Routing
from tidings.protocols.scribe.log import TopicLog
from tidings.protocols.scribe.messages import Replicate, Submit
from tidings.protocols.scribe.outbox import Outbox
from tidings.protocols.scribe.reader import Reader
from tidings.protocols.scribe.roots import Root, Roots
from tidings.protocols.scribe.scribe import Scribe
from tidings.protocols.scribe.trees import Tree, Trees
from tidings.protocols.stack import Effect, NodeId, Send
from tidings.simulator.planting import mutant, patched
from tidings_lab.simulated_overlay.chord import checkers, tree_checkers

# Chord.


@mutant(
    "adopt-unasked",
    "a better successor is adopted unasked",
    checkers.LIVE,
    checkers.IDEAL,
    world="ring-churn",
)
def _adopt_unasked() -> Iterator[None]:
    def planted(self: Ring, candidate: NodeId) -> list[Effect]:
        self.successors = self._ordered((candidate, *self.successors))
        return [Send((candidate,), Precede())]

    with patched(Ring, "_on_better_candidate", lambda _: planted):
        yield


@mutant("any-predecessor", "anyone who comes is taken for the predecessor", *checkers.RULES, world="ring-churn")
def _any_predecessor() -> Iterator[None]:
    with patched(Ring, "_is_closer_predecessor", lambda _: lambda self, peer: peer != self.predecessor):
        yield


@mutant(
    "keep-dead-predecessor",
    "a dead predecessor is never replaced by a farther one",
    *checkers.RULES,
    world="ring-churn",
)
def _keep_dead_predecessor() -> Iterator[None]:
    def planted(self: Ring, peer: NodeId) -> list[Effect]:
        if self.is_member and peer != self.node and (self.predecessor is None or self._is_closer_predecessor(peer)):
            self._take_predecessor(peer)
        return []

    with patched(Ring, "on_precede", lambda _: planted):
        yield


@mutant(
    "join-with-one-successor", "a joiner takes one successor and not the whole list", checkers.LIVE, world="ring-churn"
)
def _join_with_one_successor() -> Iterator[None]:
    def make(on_place: Any) -> Any:
        return lambda self, peer, place: on_place(self, peer, Place(place.successors[:1]))

    with patched(Ring, "on_place", make):
        yield


@mutant("join-anywhere", "a joiner takes the list of whomever it asked first", *checkers.RULES, world="ring-churn")
def _join_anywhere() -> Iterator[None]:
    def planted(self: Ring, peer: NodeId, place: Place) -> list[Effect]:
        if self.is_member or not place.successors:
            return []
        self.take_place(Links(peer, tuple(name for name in place.successors if name != self.node)))
        return self.stabilise()

    def advance(_: Any) -> Any:
        return lambda self, hop, point: self._ring.place_for(hop.origin)

    with patched(Ring, "on_place", lambda _: planted), patched(Routing, "_advance_join", advance):
        yield


@mutant(
    "no-successor-lists", "the successor's list is not taken over", checkers.LIVE, checkers.IDEAL, world="ring-churn"
)
def _no_successor_lists() -> Iterator[None]:
    def make(ordered: Any) -> Any:
        return lambda self, names: ordered(self, names[:1])

    with patched(Ring, "_ordered", make):
        yield


@mutant("no-notify", "a successor is never told of its predecessor", *checkers.RULES, world="ring-churn")
def _no_notify() -> Iterator[None]:
    with patched(Ring, "on_precede", lambda _: lambda self, peer: []):
        yield


# Scribe.


@mutant("no-gap-fetch", "what the tree lost is never fetched", tree_checkers.COMPLETE, world="ring-multicast")
def _no_gap_fetch() -> Iterator[None]:
    with patched(Reader, "wants", lambda _: lambda self, *rest: None):
        yield


@mutant(
    "tail-gap-ignored", "only a later message shows a gap, no beat does", tree_checkers.COMPLETE, world="ring-multicast"
)
def _tail_gap_ignored() -> Iterator[None]:
    with patched(Reader, "learn_end", lambda _: lambda self, now_ms, end: None):
        yield


@mutant("no-dedup-at-the-reader", "a reader delivers whatever comes", tree_checkers.ONCE, world="ring-multicast")
def _no_dedup_at_the_reader() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Reader, now_ms: int, first_offset: int, payloads: Sequence[bytes]) -> list[Effect]:
            self.next_offset = first_offset
            for offset, payload in enumerate(payloads, first_offset):
                self._held[offset] = payload
            return self._deliver()

        return planted

    with patched(Reader, "on_messages", make):
        yield


@mutant(
    "no-dedup-at-the-root",
    "the root takes a publisher's message every time",
    tree_checkers.ONCE,
    world="ring-multicast",
)
def _no_dedup_at_the_root() -> Iterator[None]:
    def make(on_submit: Any) -> Any:
        def planted(self: Roots, submit: Submit) -> list[Effect]:
            self.logs[submit.topic]._next_sequences[f"{submit.publisher} {submit.life}"] = submit.first_sequence
            effects: list[Effect] = on_submit(self, submit)
            return effects

        return planted

    with patched(Roots, "on_submit", make):
        yield


@mutant("publish-once", "a publisher does not send again", tree_checkers.COMPLETE, world="ring-multicast")
def _publish_once() -> Iterator[None]:
    def make(submit: Any) -> Any:
        def planted(self: Outbox, now_ms: int, *limits: int) -> Submit:
            made: Submit = submit(self, now_ms, *limits)
            self.sent_ms = 1 << 60
            return made

        return planted

    with patched(Outbox, "submit", make):
        yield


@mutant("parent-loss-ignored", "a child never looks for a new parent", *tree_checkers.RULES, world="ring-multicast")
def _parent_loss_ignored() -> Iterator[None]:
    with patched(Trees, "_lose_parent", lambda _: lambda self, now_ms, tree: []):
        yield


@mutant(
    "no-copies",
    "the root tells nobody what it has before it counts",
    tree_checkers.COMPLETE,
    *tree_checkers.RULES,
    world="ring-multicast",
)
def _no_copies() -> Iterator[None]:
    with patched(Roots, "_follow", lambda _: lambda self, root: []):
        yield


@mutant(
    "no-inheritance", "a new root begins with what it happens to have", *tree_checkers.RULES, world="ring-multicast"
)
def _no_inheritance() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Roots, root: Root) -> list[Effect]:
            root.log.epoch = root.epoch = root.log.epoch + 1
            root.is_active = True
            for follower in root.followers.values():
                follower.acked = root.log.end
            return self._commit(root)

        return planted

    with patched(Roots, "_claim", make):
        yield


@mutant(
    "forwarders-deliver",
    "a node that only forwards delivers too",
    tree_checkers.ONLY_SUBSCRIBERS,
    world="ring-multicast",
)
def _forwarders_deliver() -> Iterator[None]:
    def make(read: Any) -> Any:
        def planted(self: Scribe, spread: Any) -> list[Effect]:
            if spread.topic in self.readers:
                effects: list[Effect] = read(self, spread)
                return effects
            return Reader(spread.topic, spread.first_offset, 100).on_messages(0, spread.first_offset, spread.payloads)

        return planted

    with patched(Scribe, "_read", make):
        yield


@mutant(
    "keep-children",
    "a node that is no longer the root keeps its children",
    *tree_checkers.RULES,
    world="ring-multicast",
)
def _keep_children() -> Iterator[None]:
    def make(_: Any) -> Any:
        def planted(self: Trees, now_ms: int, tree: Tree) -> list[Effect]:
            tree.is_root, tree.root = False, None
            return self._drop_if_idle(tree) or self.climb(now_ms, tree)

        return planted

    with patched(Trees, "uncrown", make):
        yield


@mutant(
    "copies-later",
    "a message counts at once, and the copies get it with the next beat",
    *tree_checkers.RULES,
    world="ring-multicast",
)
def _copies_later() -> Iterator[None]:
    def make_commit(commit: Any) -> Any:
        def planted(self: Roots, root: Root) -> list[Effect]:
            followers, root.followers = root.followers, {}
            effects: list[Effect] = commit(self, root)
            root.followers = followers
            return effects

        return planted

    def make_submit(on_submit: Any) -> Any:
        def planted(self: Roots, submit: Submit) -> list[Effect]:
            effects: list[Effect] = on_submit(self, submit)
            return [
                effect for effect in effects if not (isinstance(effect, Send) and isinstance(effect.message, Replicate))
            ]

        return planted

    with patched(Roots, "_commit", make_commit), patched(Roots, "on_submit", make_submit):
        yield


@mutant(
    "forget-publishers",
    "a copy does not know how far each publisher was",
    tree_checkers.ONCE,
    tree_checkers.COMPLETE,
    world="ring-multicast",
)
def _forget_publishers() -> Iterator[None]:
    def make(merge: Any) -> Any:
        def planted(self: TopicLog, first: int, entries: Any) -> None:
            merge(self, first, entries)
            self._next_sequences.clear()

        return planted

    with patched(TopicLog, "merge", make):
        yield

"""The owner's side of a topic: it gives offsets, keeps the log, copies it to its successors, and inherits it.

The Scribe paper lets a root's state live on at the nodes next to it, and so do we: a message counts (`committed`) when
the first k successors have it, and only then goes down the tree. When the owner dies, its first live successor owns the
topic and has the log; when somebody joins in front of the owner, it asks the old one.

Every reign has an epoch. Anyone who begins to reign asks its followers to obey no earlier epoch and to say what they
have kept, takes the best log (the last epoch, then the longest), and needs every follower for whatever counts
afterwards. So two nodes that both take themselves for the owner, as joiners may for a moment, cannot both go on as long
as they share one live follower. Logs are compared as in Raft: equal epochs at an offset mean equal logs up to it.

This is not agreement: Chord says who the followers are, so the two sides of a cut network can each have a root. Replica
groups are what keeps a topic right through that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.protocols.chord import identifier
from tidings.protocols.chord.identifiers import distance
from tidings.protocols.scribe.log import TopicLog, chunks, size_of
from tidings.protocols.scribe.messages import (
    NOW,
    Accepted,
    Entry,
    Fetch,
    Fetched,
    Inherit,
    Legacy,
    Pull,
    Pulled,
    Refused,
    Replicate,
    Replicated,
    Submit,
)
from tidings.protocols.stack import Effect, Message, NodeId
from tidings.settings import ScribeSettings

EPOCH_BITS = 32
"""Bits of an epoch that only tell claimants apart."""


class Follower(msgspec.Struct):
    """One copy, as its root sees it."""

    acked: int = -1
    """Up to where the copy is known to be the same; -1: nothing is known."""
    next_offset: int = 0
    """What to send next."""


class Root(msgspec.Struct):
    """The reign of this node over a topic."""

    topic: str
    log: TopicLog
    epoch: int = 0
    claims: int = 0
    followers: dict[NodeId, Follower] = {}
    legacies: dict[NodeId, Legacy] = {}
    pulling: NodeId | None = None
    pull_offset: int = 0
    is_active: bool = False
    """False while the log is still being inherited."""
    held: dict[str, Submit] = {}
    """What came in the meantime, by publisher."""


ToPeer = Callable[[NodeId, Message], list[Effect]]
OnCommitted = Callable[[str, int, tuple[Entry, ...]], list[Effect]]
"""Is told the topic, the first offset and the entries that now count."""


class Roots:
    """All topics that this node owns or keeps copies of."""

    def __init__(self, node: NodeId, settings: ScribeSettings, to_peer: ToPeer, on_committed: OnCommitted) -> None:
        self._node = node
        self._settings = settings
        self._to = to_peer
        self._on_committed = on_committed
        self._successors: tuple[NodeId, ...] = ()
        self.logs: dict[str, TopicLog] = {}
        self.reigns: dict[str, Root] = {}

    def log_of(self, topic: str) -> TopicLog:
        log = self.logs.get(topic)
        if log is None:
            self._make_room()
            log = self.logs[topic] = TopicLog()
        return log

    def _make_room(self) -> None:
        """Beyond the limit the oldest copy goes; what this node owns stays."""
        if len(self.logs) >= self._settings.topics_max:
            oldest = next((topic for topic in self.logs if topic not in self.reigns), None)
            if oldest is not None:
                del self.logs[oldest]

    # Beginning and end of a reign.

    def begin(self, topic: str) -> list[Effect]:
        """This node owns a topic from now on: it asks its successors what they have kept."""
        if topic in self.reigns:
            return []
        root = self.reigns[topic] = Root(topic, self.log_of(topic))
        self._follow(root)
        return self._claim(root)

    def end(self, topic: str) -> None:
        """Somebody else owns the topic; the log stays here as a copy."""
        self.reigns.pop(topic, None)

    def on_successors(self, successors: tuple[NodeId, ...]) -> list[Effect]:
        self._successors = successors[: self._settings.replicas]
        effects: list[Effect] = []
        for root in list(self.reigns.values()):
            for peer in self._follow(root):
                message = Inherit(root.topic, root.epoch)
                effects += self._replicate(root, peer) if root.is_active else self._to(peer, message)
            effects += self._commit(root) if root.is_active else self._inherit(root)
        return effects

    def _follow(self, root: Root) -> list[NodeId]:
        """Gives a reign its present followers, and says which are new; those who are gone are not waited for."""
        before = root.followers
        root.followers = {peer: before.get(peer) or Follower(next_offset=root.log.end) for peer in self._successors}
        if root.pulling is not None and root.pulling not in root.followers:
            root.pulling = None
        return [peer for peer in root.followers if peer not in before]

    # Inheriting.

    def _claim(self, root: Root) -> list[Effect]:
        """Begins an epoch that is later than any this node has heard of."""
        # The lower bits keep two claimants apart, who may count alike.
        root.epoch = ((root.log.epoch >> EPOCH_BITS) + 1 << EPOCH_BITS) + (identifier(self._node) >> 256 - EPOCH_BITS)
        root.log.epoch = root.epoch
        root.claims += 1
        root.is_active, root.legacies, root.pulling = False, {}, None
        asked = [effect for peer in root.followers for effect in self._to(peer, Inherit(root.topic, root.epoch))]
        return asked + self._inherit(root)

    def on_inherit(self, peer: NodeId, inherit: Inherit) -> list[Effect]:
        log = self.log_of(inherit.topic)
        log.epoch = max(log.epoch, inherit.epoch)
        root = self.reigns.get(inherit.topic)
        if root is not None and root.epoch < log.epoch:
            root.is_active = False
        return self._to(peer, Legacy(inherit.topic, log.epoch, log.last_epoch, log.end))

    def is_closer(self, peer: NodeId, topic: str) -> bool:
        """Whether a peer comes before this node on the way from a topic's point: then it is the owner."""
        point = identifier(topic)
        return distance(point, identifier(peer)) < distance(point, identifier(self._node))

    def on_legacy(self, peer: NodeId, legacy: Legacy) -> list[Effect]:
        root = self.reigns.get(legacy.topic)
        if root is None or root.is_active or peer not in root.followers or legacy.epoch < root.epoch:
            return []
        if legacy.epoch > root.epoch:
            # A newcomer cannot know the epochs before it, and claims again at once. A second refusal means that
            # somebody else claims the topic too: then the next beat is soon enough, if this node still owns it.
            root.log.epoch = max(root.log.epoch, legacy.epoch)
            return self._claim(root) if root.claims == 1 else []
        root.legacies[peer] = legacy
        return self._inherit(root)

    def _inherit(self, root: Root) -> list[Effect]:
        """Once every follower has said what it has, takes the best log and begins to reign."""
        log = root.log
        if root.pulling is not None or root.epoch < log.epoch:
            return []
        if any(peer not in root.legacies for peer in root.followers):
            return []
        legacies = {peer: root.legacies[peer] for peer in root.followers}
        best = max(legacies, key=lambda peer: (legacies[peer].last_epoch, legacies[peer].end), default=None)
        if best is not None and (legacies[best].last_epoch, legacies[best].end) > (log.last_epoch, log.end):
            root.pulling, root.pull_offset = best, log.committed
            return self._to(best, Pull(root.topic, root.pull_offset))
        root.is_active = True
        for follower in root.followers.values():
            follower.acked, follower.next_offset = -1, log.end
        effects = [effect for peer in root.followers for effect in self._replicate(root, peer)]
        effects += self._commit(root)
        held, root.held = root.held, {}
        for submit in held.values():
            effects += self.on_submit(submit)
        return effects

    def on_pull(self, peer: NodeId, pull: Pull) -> list[Effect]:
        log = self.log_of(pull.topic)
        first = max(pull.first_offset, log.base)
        if first > log.end:
            return []
        entries = self._chunk(log, first, log.end)
        publishers = log.base_sequences() if first == log.base else ()
        return self._to(
            peer, Pulled(pull.topic, log.epoch, first, log.epoch_before(first), entries, log.end, publishers)
        )

    def on_pulled(self, peer: NodeId, pulled: Pulled) -> list[Effect]:
        root = self.reigns.get(pulled.topic)
        if root is None or root.pulling != peer or pulled.first_offset < root.pull_offset:
            return []
        log = root.log
        if pulled.epoch > root.epoch:
            # It obeys a later reign by now and may have more than it said: what it has is not ours to take.
            log.epoch = max(log.epoch, pulled.epoch)
            return []
        if pulled.first_offset > root.pull_offset:
            log.reset(pulled.first_offset, pulled.previous_epoch, pulled.publishers)
        log.merge(pulled.first_offset, pulled.entries)
        root.pull_offset = pulled.first_offset + len(pulled.entries)
        if root.pull_offset < pulled.end:
            return self._to(peer, Pull(root.topic, root.pull_offset))
        root.pulling = None
        log.truncate(max(pulled.end, log.committed))  # What we had beyond was never anybody's.
        return self._inherit(root)

    # Copies.

    def _replicate(self, root: Root, peer: NodeId) -> list[Effect]:
        log, follower = root.log, root.followers[peer]
        first = max(follower.next_offset, log.base)
        entries = self._chunk(log, first, log.end)
        follower.next_offset = first + len(entries)
        publishers = log.base_sequences() if first == log.base else ()
        return self._to(
            peer,
            Replicate(
                root.topic, root.epoch, first, log.epoch_before(first), entries, log.committed, log.base, publishers
            ),
        )

    def on_replicate(self, peer: NodeId, copy: Replicate) -> list[Effect]:
        log = self.log_of(copy.topic)
        if copy.epoch < log.epoch:
            return self._to(peer, Replicated(copy.topic, log.epoch, False, log.end))
        log.epoch = copy.epoch
        first = copy.first_offset
        if log.end < copy.base == first:
            log.reset(first, copy.previous_epoch, copy.publishers)
        elif first > log.end:
            return self._to(peer, Replicated(copy.topic, copy.epoch, False, log.end))
        elif first > log.committed and log.epoch_before(first) != copy.previous_epoch:
            return self._to(peer, Replicated(copy.topic, copy.epoch, False, max(log.committed, first - 1)))
        log.merge(first, copy.entries)
        same_up_to = first + len(copy.entries)
        log.committed = max(log.committed, min(copy.committed, same_up_to))
        log.shrink(self._settings.log_messages_max)
        return self._to(peer, Replicated(copy.topic, copy.epoch, True, same_up_to))

    def on_replicated(self, peer: NodeId, answer: Replicated) -> list[Effect]:
        root = self.reigns.get(answer.topic)
        if root is None or not root.is_active or peer not in root.followers:
            return []
        if answer.epoch > root.epoch:
            # Somebody has begun to reign since. If this node still owns the topic, its next beat claims it again.
            root.log.epoch = max(root.log.epoch, answer.epoch)
            root.is_active = False
            return []
        if answer.epoch < root.epoch:
            return []  # It was meant for an earlier reign of ours.
        follower = root.followers[peer]
        end = min(answer.end, root.log.end)
        if answer.is_kept:
            follower.acked = max(follower.acked, end)
            follower.next_offset = max(follower.next_offset, end)
        else:
            follower.next_offset = end
        more = self._replicate(root, peer) if follower.next_offset < root.log.end else []
        return more + self._commit(root)

    def _commit(self, root: Root) -> list[Effect]:
        """What every follower has counts: it goes down the tree, and its publishers are told."""
        log = root.log
        end = min((follower.acked for follower in root.followers.values()), default=log.end)
        first = log.committed
        if end <= first:
            return []
        entries = log.slice(first, end)
        log.committed = end
        taken: dict[tuple[NodeId, int], int] = {}
        for entry in entries:
            taken[entry.publisher, entry.life] = entry.sequence + 1
        log.shrink(self._settings.log_messages_max)
        effects = self._on_committed(root.topic, first, entries)
        for (publisher, life), sequence_end in taken.items():
            effects += self._to(publisher, Accepted(root.topic, life, sequence_end))
        return effects

    # Publishers and readers.

    def on_submit(self, submit: Submit) -> list[Effect]:
        """Messages to be ordered: those that are known are not taken again, and none is taken before its turn."""
        root, log = self.reigns[submit.topic], self.logs[submit.topic]
        publisher = f"{submit.publisher} {submit.life}"
        wanted = log.next_sequence(publisher)
        if not root.is_active:
            if len(root.held) < self._settings.publishers_max:
                root.held[publisher] = submit
            return []
        if wanted == 0 and log.publishers >= self._settings.publishers_max:
            reason = f"{submit.topic!r} has {log.publishers} publishers, which is the limit: raise publishers_max."
            return self._to(submit.publisher, Refused(submit.topic, submit.life, reason))
        before = log.end
        for sequence, payload in enumerate(submit.payloads, submit.first_sequence):
            if sequence == wanted:
                log.append(Entry(root.epoch, submit.publisher, submit.life, sequence, payload))
                wanted += 1
        if log.end > before:
            effects = [effect for peer in root.followers for effect in self._replicate(root, peer)]
            return effects + self._commit(root)
        if log.committed == log.end:
            # All of it counts already, and the publisher does not know.
            return self._to(submit.publisher, Accepted(submit.topic, submit.life, wanted))
        return []

    def on_fetch(self, fetch: Fetch) -> list[Effect]:
        root = self.reigns[fetch.topic]
        if not root.is_active:
            return []
        log = root.log
        if fetch.first_offset == NOW:
            return self._to(fetch.reader, Fetched(fetch.topic, log.committed, (), log.committed))
        first = max(fetch.first_offset, log.base)
        payloads = tuple(entry.payload for entry in self._chunk(log, first, log.committed))
        return self._to(fetch.reader, Fetched(fetch.topic, first, payloads, log.committed))

    def on_beat(self) -> list[Effect]:
        """Asks again whatever has not been answered."""
        effects: list[Effect] = []
        for root in list(self.reigns.values()):
            if root.is_active:
                for peer, follower in root.followers.items():
                    if follower.acked < root.log.end:
                        follower.next_offset = follower.acked if follower.acked >= 0 else root.log.end
                        effects += self._replicate(root, peer)
            elif root.epoch < root.log.epoch:
                effects += self._claim(root)
            elif root.pulling is not None:
                effects += self._to(root.pulling, Pull(root.topic, root.pull_offset))
            else:
                waiting = [peer for peer in root.followers if peer not in root.legacies]
                effects += [effect for peer in waiting for effect in self._to(peer, Inherit(root.topic, root.epoch))]
        return effects

    def _chunk(self, log: TopicLog, first: int, end: int) -> tuple[Entry, ...]:
        """As many entries as one message may carry, and at least one if there is any."""
        settings = self._settings
        entries = log.slice(first, min(end, first + settings.chunk_messages_max))
        return next(chunks(entries, size_of, settings.chunk_messages_max, settings.chunk_bytes_max), ())

"""HyParView keeps every node connected to a few others, no matter who fails.

Each node has two lists. The active view is its handful of friends: links are mutual, watched, and used to send. The
passive view is its address book: people it has heard of and could call. When a friend is gone, somebody from the
address book is asked to take the place; and every now and then two nodes far apart compare their address books, so
that they stay fresh without anybody knowing everybody.

J. Leitao, J. Pereira, L. Rodrigues: HyParView: a membership protocol for reliable gossip-based broadcast, DSN 2007. A
newcomer's JOIN goes on random walks (FORWARDJOIN) that put it into views all over the network; NEIGHBOR asks for a
place, and with high priority gets it; DISCONNECT gives notice; SHUFFLE walks exchange samples of the views.

It guarantees that views stay within their bounds and hold no node twice, nor this one. Once nothing fails any
more, links become mutual and the live nodes one connected whole; that is very likely, not certain, as everything
here is drawn by lot.

Differs from the paper:
- Links are made by request and answer, as messages may be lost: the asked node adds the asker when it accepts, the
  asker adds it when it hears so. A half-made link goes silent, and the failure detector removes it.
- The one who has a free place looks for a neighbour at once and every `repair_ms`, whatever freed the place. The paper
  does so after failures; a DISCONNECT frees a place just as well.
- The one who had a free place all through `repair_ms` asks somebody of its passive view, or a contact, with high
  priority, though it is not alone. A few nodes that know only each other, or only content ones that refuse them, would
  otherwise stay a small world of their own.
- A node that knows nobody any more joins again by its contacts, and so does one that has never met any of them.
  Newcomers that only found each other, because their contacts were not up yet, would otherwise be content and apart.
- Every `rotate_ms` a node asks in the same way, though it misses nobody. Two halves of a network that was cut would
  otherwise stay apart for ever, each content with its full views.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import ClassVar

from tidings.protocols.fields import Number, Several
from tidings.protocols.heartbeat import Unwatch, Watch
from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Message,
    NodeId,
    Notification,
    Notify,
    PeerDown,
    Send,
    SetTimer,
    Table,
    Timer,
)
from tidings.settings import HyParViewSettings


class Join(Message, frozen=True):
    """I am new: take me in, and make me known."""


class ForwardJoin(Message, frozen=True):
    """Somebody is new. The walk goes on for `walk_left` more steps."""

    newcomer: NodeId
    walk_left: Number


class Neighbor(Message, frozen=True):
    """Will you be my neighbour? An urgent request (the paper's high priority) is always granted."""

    urgent: bool


class NeighborAnswer(Message, frozen=True):
    """To a `Neighbor` or a `Join`."""

    accepted: bool


class Disconnect(Message, frozen=True):
    """I have no place for you any more; do not think I failed."""


class Shuffle(Message, frozen=True):
    """A sample of the origin's views, on a walk to somebody far away."""

    origin: NodeId
    walk_left: Number
    nodes: Several[NodeId]


class ShuffleReply(Message, frozen=True):
    """As many of mine, for a `Shuffle`."""

    nodes: Several[NodeId]


class NeighborUp(Notification, frozen=True):
    """The active view has a new member."""

    peer: NodeId


class NeighborDown(Notification, frozen=True):
    """A member has left the active view."""

    peer: NodeId


class ShuffleDue(Timer, frozen=True):
    """Time to compare address books with somebody."""


class RepairDue(Timer, frozen=True):
    """Time to look again for neighbours, if any are missing."""


class RotateDue(Timer, frozen=True):
    """Time to exchange a neighbour."""


class AnswerDue(Timer, frozen=True):
    """A peer that was asked should have answered by now."""

    peer: NodeId


class HyParView(Table):
    """The membership of one node. `contacts` are the nodes by which it joins; without any it waits to be joined."""

    __slots__ = (
        "_active",
        "_asked",
        "_contacts",
        "_has_met_contact",
        "_me",
        "_offered",
        "_passive",
        "_refused",
        "_rng",
        "_settings",
        "_was_full",
    )

    def __init__(self, me: NodeId, contacts: Iterable[NodeId], settings: HyParViewSettings, rng: random.Random) -> None:
        self._me = me
        self._contacts = tuple(contact for contact in contacts if contact != me)
        self._settings = settings
        self._rng = rng
        # Dictionaries as ordered sets: the order of a set changes from process to process.
        self._active: dict[NodeId, None] = {}
        self._passive: dict[NodeId, None] = {}
        self._asked: dict[NodeId, bool] = {}
        """Who was asked to be a neighbour and has not answered, and whether urgently."""
        self._refused: dict[NodeId, None] = {}
        """Who refused since the last repair; asking again at once would lead to the same."""
        self._offered: tuple[NodeId, ...] = ()
        """The sample of the last shuffle: these may go first when its reply comes."""
        self._has_met_contact = not self._contacts
        """Whether this node has ever been the neighbour of a contact, and with it in the overlay."""
        self._was_full = True
        """Whether the active view has been full at some time since the last repair."""

    @property
    def active(self) -> tuple[NodeId, ...]:
        return tuple(self._active)

    @property
    def passive(self) -> tuple[NodeId, ...]:
        return tuple(self._passive)

    def start(self, now_ms: int) -> list[Effect]:
        settings = self._settings
        effects: list[Effect] = [
            # The first times are drawn, so that nodes which start together do not act together for ever.
            SetTimer(ShuffleDue(), self._rng.randint(1, settings.shuffle_ms)),
            SetTimer(RepairDue(), self._rng.randint(settings.repair_ms // 2 + 1, settings.repair_ms)),
            SetTimer(RotateDue(), self._rng.randint(settings.rotate_ms // 2 + 1, settings.rotate_ms)),
        ]
        return effects + self._join()

    # Joining.

    def _join(self) -> list[Effect]:
        """Asks one of the contacts to be taken in."""
        contacts = [contact for contact in self._contacts if contact not in self._asked]
        if not contacts:
            return []
        contact = self._rng.choice(contacts)
        self._asked[contact] = True
        return [Send((contact,), Join()), SetTimer(AnswerDue(contact), self._settings.answer_ms)]

    def _on_join(self, peer: NodeId, _: Join) -> list[Effect]:
        # A neighbour that joins has been restarted, and knows nothing of the link there was.
        effects = self._unlink(peer) if peer in self._active else []
        effects += self._link(peer)
        effects.append(Send((peer,), NeighborAnswer(accepted=True)))
        others = tuple(other for other in self._active if other != peer)
        if others:
            effects.append(Send(others, ForwardJoin(peer, self._settings.active_walk)))
        return effects

    def _on_forward_join(self, peer: NodeId, message: ForwardJoin) -> list[Effect]:
        newcomer = message.newcomer
        if newcomer == self._me:
            return []
        walk_left = min(message.walk_left, self._settings.active_walk)
        further = [other for other in self._active if other != peer and other != newcomer]
        if walk_left <= 0 or len(self._active) <= 1 or not further:
            return self._ask(newcomer, urgent=True)
        if walk_left == self._settings.passive_walk:
            self._remember(newcomer)
        return [Send((self._rng.choice(further),), ForwardJoin(newcomer, walk_left - 1))]

    # Links.

    def _ask(self, peer: NodeId, urgent: bool) -> list[Effect]:
        if peer == self._me or peer in self._active or peer in self._asked:
            return []
        if len(self._asked) >= self._settings.asked_max:  # Enough is under way; the next repair looks again.
            return []
        self._asked[peer] = urgent
        return [Send((peer,), Neighbor(urgent)), SetTimer(AnswerDue(peer), self._settings.answer_ms)]

    def _on_neighbor(self, peer: NodeId, message: Neighbor) -> list[Effect]:
        if peer == self._me:
            return []
        if peer not in self._active and not message.urgent and len(self._active) >= self._settings.active_max:
            return [Send((peer,), NeighborAnswer(accepted=False))]
        return [*self._link(peer), Send((peer,), NeighborAnswer(accepted=True))]

    def _on_neighbor_answer(self, peer: NodeId, message: NeighborAnswer) -> list[Effect]:
        accepted = message.accepted
        urgent = self._asked.pop(peer, None)
        if urgent is None:
            # Too late: we no longer wait for it, so the peer must not believe in a link.
            return [Send((peer,), Disconnect())] if accepted and peer not in self._active else []
        effects: list[Effect] = [CancelTimer(AnswerDue(peer))]
        if not accepted:
            self._refused[peer] = None
        elif peer in self._active or urgent or len(self._active) < self._settings.active_max:
            effects += self._link(peer)
        else:
            # The place was taken while we waited.
            self._remember(peer)
            effects.append(Send((peer,), Disconnect()))
        return effects + self._fill()

    def _on_answer_due(self, timer: AnswerDue) -> list[Effect]:
        """No answer is taken for a failed connection."""
        self._asked.pop(timer.peer, None)
        self._passive.pop(timer.peer, None)
        return self._fill()

    def _on_disconnect(self, peer: NodeId, _: Disconnect) -> list[Effect]:
        if peer not in self._active:
            return []
        effects = self._unlink(peer)
        self._remember(peer)
        self._refused[peer] = None  # It has just found somebody better.
        return effects + self._fill()

    def _on_peer_down(self, peer: NodeId) -> list[Effect]:
        effects: list[Effect] = []
        if self._asked.pop(peer, None) is not None:
            effects.append(CancelTimer(AnswerDue(peer)))
        self._passive.pop(peer, None)
        if peer in self._active:
            effects += self._unlink(peer)
        return effects + self._fill()

    def _link(self, peer: NodeId) -> list[Effect]:
        """Puts a peer into the active view, in place of another if there is no room."""
        if peer in self._active:
            return []
        effects: list[Effect] = []
        if self._asked.pop(peer, None) is not None:
            # The requests have crossed, and one link is enough: a later answer must not bring it back once it is gone.
            effects.append(CancelTimer(AnswerDue(peer)))
        if len(self._active) >= self._settings.active_max:
            unlucky = self._rng.choice(list(self._active))
            effects += [*self._unlink(unlucky), Send((unlucky,), Disconnect())]
            self._remember(unlucky)
        self._passive.pop(peer, None)
        self._active[peer] = None
        self._has_met_contact = self._has_met_contact or peer in self._contacts
        self._was_full = self._was_full or len(self._active) >= self._settings.active_max
        return [*effects, Ask(Watch(peer)), Notify(NeighborUp(peer))]

    def _unlink(self, peer: NodeId) -> list[Effect]:
        del self._active[peer]
        return [Ask(Unwatch(peer)), Notify(NeighborDown(peer))]

    def _fill(self) -> list[Effect]:
        """Asks as many of the passive view as there are free places."""
        free = self._settings.active_max - len(self._active) - len(self._asked)
        if free <= 0:
            return []
        effects: list[Effect] = []
        candidates = [peer for peer in self._passive if peer not in self._asked and peer not in self._refused]
        for peer in self._rng.sample(candidates, min(free, len(candidates))):
            # One urgent request is enough for a node that has nobody: each may cost somebody else a neighbour.
            alone = not self._active and True not in self._asked.values()
            effects += self._ask(peer, urgent=alone)
        return effects

    def _on_repair_due(self, _: RepairDue) -> list[Effect]:
        self._refused.clear()
        effects: list[Effect] = [SetTimer(RepairDue(), self._settings.repair_ms)]
        if not self._was_full:
            effects += self._ask_anybody()
        self._was_full = len(self._active) >= self._settings.active_max
        effects += self._fill()
        if (not self._active and not self._asked) or not self._has_met_contact:
            effects += self._join()
        return effects

    def _on_rotate_due(self, _: RotateDue) -> list[Effect]:
        return [SetTimer(RotateDue(), self._settings.rotate_ms), *self._ask_anybody()]

    def _ask_anybody(self) -> list[Effect]:
        """Asks somebody of the passive view, or a contact, with high priority."""
        known = [peer for peer in dict.fromkeys((*self._passive, *self._contacts)) if peer not in self._active]
        return self._ask(self._rng.choice(known), urgent=True) if known else []

    # Shuffles.

    def _on_shuffle_due(self, _: ShuffleDue) -> list[Effect]:
        settings = self._settings
        effects: list[Effect] = [SetTimer(ShuffleDue(), settings.shuffle_ms)]
        if not self._active:
            return effects
        peer = self._rng.choice(list(self._active))
        others = [other for other in self._active if other != peer]
        self._offered = (
            self._me,
            *self._rng.sample(others, min(settings.shuffle_active, len(others))),
            *self._sample_passive(settings.shuffle_passive),
        )
        return [*effects, Send((peer,), Shuffle(self._me, settings.active_walk, self._offered))]

    def _on_shuffle(self, peer: NodeId, message: Shuffle) -> list[Effect]:
        origin = message.origin
        walk_left = min(message.walk_left, self._settings.active_walk) - 1
        further = [other for other in self._active if other != peer and other != origin]
        if walk_left > 0 and len(self._active) > 1 and further:
            return [Send((self._rng.choice(further),), Shuffle(origin, walk_left, message.nodes))]
        if origin == self._me:
            return []
        nodes = message.nodes[: self._settings.shuffle_max]
        mine = self._sample_passive(len(nodes))
        self._integrate(nodes, mine)
        return [Send((origin,), ShuffleReply(mine))]

    def _on_shuffle_reply(self, _: NodeId, message: ShuffleReply) -> list[Effect]:
        self._integrate(message.nodes[: self._settings.shuffle_max], self._offered)
        return []

    def _sample_passive(self, count: int) -> tuple[NodeId, ...]:
        return tuple(self._rng.sample(list(self._passive), min(count, len(self._passive))))

    def _integrate(self, nodes: tuple[NodeId, ...], offered: tuple[NodeId, ...]) -> None:
        """Takes nodes into the passive view; those that the other side was given make room first."""
        leaving = [node for node in offered if node in self._passive]
        for node in nodes:
            self._remember(node, leaving)

    def _remember(self, node: NodeId, leaving: list[NodeId] | None = None) -> None:
        """Takes a node into the passive view; one of `leaving` makes room, or else anybody."""
        passive = self._passive
        if node == self._me or node in self._active or node in passive:
            return
        if len(passive) >= self._settings.passive_max:
            del passive[leaving.pop() if leaving else self._rng.choice(list(passive))]
        passive[node] = None

    on: ClassVar = {
        Join: _on_join,
        ForwardJoin: _on_forward_join,
        Neighbor: _on_neighbor,
        NeighborAnswer: _on_neighbor_answer,
        Disconnect: _on_disconnect,
        Shuffle: _on_shuffle,
        ShuffleReply: _on_shuffle_reply,
        ShuffleDue: _on_shuffle_due,
        RepairDue: _on_repair_due,
        RotateDue: _on_rotate_due,
        AnswerDue: _on_answer_due,
        PeerDown: _on_peer_down,
    }

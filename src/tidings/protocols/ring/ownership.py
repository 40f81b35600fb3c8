"""What a group owns of the circle, as its own journal knows it.

A broker that is part of no ring has no `Ownership`, and nothing is asked. In a ring every group has one, and it changes
only by journaled commands: whoever applies the same records owns the same.

Arcs leave for good when they are *given*: from that record on nothing is accepted for them, and what they hold is
frozen until the taker has all of it (`Giving`). The group that *takes* collects what it gets in its own journal
(`Taking`), out of sight, and owns it with one record at the end. So no point is ever owned by two groups. Every gift
has a number of its giver's; the taker remembers which it has taken, so that one that is offered again is not taken
twice, even if it has been given on since.

A group that was there before it joined its ring *brings* topics of its own. The points where these lie, and the homes
of its clients, are its `strays`: no part of what it owns in the ring, and served to the clients at its own doors all
the same. It takes these points from their owners, who give them only if they hold no topic there; so one by one they
become what it owns, in place, and then it hands them on to those who own what lies around them (`brought`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidings.errors import InvalidRequest, Moved
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.arcs import (
    Arc,
    Arcs,
    common,
    finder,
    home_of,
    joined,
    owns,
    point_of,
    spots,
    without,
)
from tidings.protocols.ring.facts import START, Mark
from tidings.protocols.ring.messages import Card, Gone

GIVEN_MAX = 64
CONTACTS_MAX = 64
"""Groups that are remembered, and as many that have left."""
TAKEN_MAX = 4_096
"""Groups of which it is remembered what was taken from them: as many as a ring may have."""
JUDGED_MAX = 65_536
"""Names of which it is remembered whether they are owned, so that a put does not have to hash its topic."""


def newest(cards: Iterable[Card]) -> tuple[Card, ...]:
    """Of cards in the order in which they were heard of as many as are remembered, those of groups that left behind.

    >>> [card.group for card in newest([Card(b"a", ()), Card(b"b", (), left=True), Card(b"c", ())])]
    [b'a', b'c', b'b']
    """
    known = list(cards)
    here = [card for card in known if not card.left]
    left = [card for card in known if card.left]
    return (*here[-CONTACTS_MAX:], *left[-CONTACTS_MAX:])


class Giving(msgspec.Struct, frozen=True, array_like=True):
    """Arcs that were given and are not yet forgotten."""

    arcs: Arcs
    taker: Card
    number: int
    """Which gift of this group it is."""


class Taking(msgspec.Struct, frozen=True, array_like=True):
    """Arcs that are being taken from another group."""

    giver: bytes
    arcs: Arcs
    number: int = 0
    """The number of the gift; 0 as long as the giver has not given anything, and either side may still turn back."""
    mark: Mark = START
    """Everything before this place in the list of the gift's facts is here."""


class RingState(msgspec.Struct, frozen=True, array_like=True):
    """An `Ownership` as a snapshot holds it."""

    arcs: Arcs
    giving: Giving | None
    taking: Taking | None
    given: tuple[Gone, ...]
    contacts: tuple[Card, ...]
    gifts: int
    taken: dict[bytes, int]
    strays: tuple[Key, ...] = ()
    brought: Arcs = ()
    doors: tuple[str, ...] = ()


class Ownership:
    """The arcs of a group, those on their way, and whom it knows."""

    def __init__(self, arcs: Iterable[Arc] = ()) -> None:
        self.arcs: Arcs = joined(arcs)
        """What is owned: served to clients, and nowhere else."""
        self.giving: Giving | None = None
        self.taking: Taking | None = None
        self.given: tuple[Gone, ...] = ()
        """Arcs that were given away, the newest last: hints where to ask."""
        self.contacts: tuple[Card, ...] = ()
        """Groups of the ring, so that one that starts again finds it, and those that left, so it waits for none."""
        self.gifts = 0
        """How many times something was given."""
        self.taken: dict[bytes, int] = {}
        """group -> the number of its gift that was taken last."""
        self.strays: dict[Key, None] = {}
        """Points of what this group had before it joined, and which it has not taken from their owners yet."""
        self.brought: Arcs = ()
        """Strays that were taken, to be handed on to the owners of what lies around them."""
        self.doors: tuple[str, ...] = ()
        """Nodes of the ring that a group joins which brings something."""
        self._judged: dict[str, bool] = {}

    @property
    def gone(self) -> tuple[Gone, ...]:
        """Where to ask for what is not owned any more, the newest last."""
        if self.giving is None:
            return self.given
        return (*self.given, *(Gone(arc, self.giving.taker) for arc in self.giving.arcs))

    @property
    def has_left(self) -> bool:
        """Whether everything that was ever owned here is another group's, and nothing is on its way."""
        moves = self.giving is not None or self.taking is not None
        return bool(self.gifts) and not self.arcs and not moves and not self.strays

    @property
    def settled(self) -> int:
        """Up to which of our gifts all have been taken, as far as is known here."""
        return self.gifts if self.giving is None else self.gifts - 1

    def owns_topic(self, name: str) -> bool:
        """Whether a topic is served here."""
        known = self._judged.get(name)
        if known is None:
            if len(self._judged) >= JUDGED_MAX:
                self._judged.clear()
            known = self._judged[name] = self.serves(point_of(name))
        return known

    def serves(self, point: Key) -> bool:
        """Whether a point is served here: it is owned, or a stray."""
        return point in self.strays or owns(self.arcs, point)

    def owns_home(self, client: str) -> bool:
        """Whether the epochs of a client are given here."""
        return self.serves(home_of(client))

    def check_topics(self, names: Iterable[str]) -> None:
        """Moved if one of these topics is not owned; InvalidRequest if they could come apart."""
        together: bytes | None = None
        first = ""
        for name in names:
            if not self.owns_topic(name):
                raise Moved(f"The topic {name!r} is not owned here: ask who owns it.")
            if first and name != first:
                together = together or point_of(first)
                if point_of(name) != together:
                    raise InvalidRequest(
                        f"The topics {first!r} and {name!r} cannot be used in one request, because different groups of "
                        "the ring may own them: give both the same tag in braces, as in '{shop}orders' and "
                        "'{shop}refunds'."
                    )
            first = first or name

    def check_home(self, client: str) -> None:
        """Moved if the epochs of a client are given elsewhere."""
        if not self.owns_home(client):
            raise Moved(f"The name {client!r} is not looked after here: ask who owns its home.")

    # How it changes. Each is part of a command that has been checked.

    def bring(self, points: Iterable[Key], doors: tuple[str, ...]) -> None:
        """This group had something at these points before it joined the ring of these nodes."""
        self.strays, self.doors = dict.fromkeys(points), doors
        self._judged.clear()

    def strays_in(self, arcs: Arcs) -> Arcs:
        """The strays in some arcs: nobody else may have a topic there."""
        is_in = finder(arcs)
        return spots(point for point in self.strays if is_in(point))

    def give(self, arcs: Arcs, taker: Card) -> None:
        """These arcs are owned no more."""
        self.gifts += 1
        self.giving = Giving(arcs, taker, self.gifts)
        self.brought = without(self.brought, arcs)
        self._become(without(self.arcs, arcs))

    def drop(self) -> None:
        """The gift has been taken."""
        self.given, self.giving = self.gone[-GIVEN_MAX:], None

    def take(self) -> Arcs:
        """What was being taken is owned."""
        taking = self.taking
        assert taking is not None and taking.number
        assert not common(self.arcs, taking.arcs), "what is taken was owned by somebody else"
        self.taken.pop(taking.giver, None)
        self.taken[taking.giver] = taking.number
        while len(self.taken) > TAKEN_MAX:
            del self.taken[next(iter(self.taken))]
        left = ((gone.card, without((gone.arc,), taking.arcs)) for gone in self.given)
        self.given = tuple(Gone(arc, card) for card, arcs in left for arc in arcs)[-GIVEN_MAX:]
        self.taking = None
        strays = self.strays_in(taking.arcs)
        if strays == taking.arcs:
            self.brought = joined((*self.brought, *strays))
        is_in = finder(taking.arcs)
        self.strays = {point: None for point in self.strays if not is_in(point)}
        self._become(joined((*self.arcs, *taking.arcs)))
        return taking.arcs

    def know(self, cards: Iterable[Card]) -> None:
        """These groups are in the ring, or have been."""
        self.contacts = newest(cards)

    def knows_left(self, group: bytes) -> bool:
        """Whether it is written down that a group has left."""
        return any(card.left and card.group == group for card in self.contacts)

    def _become(self, arcs: Arcs) -> None:
        self.arcs = arcs
        self._judged.clear()

    # Snapshots.

    def state(self) -> RingState:
        """Everything, for a snapshot."""
        return RingState(
            self.arcs,
            self.giving,
            self.taking,
            self.given,
            self.contacts,
            self.gifts,
            dict(self.taken),
            tuple(self.strays),
            self.brought,
            self.doors,
        )

    @classmethod
    def restore(cls, state: RingState) -> Ownership:
        """From what `state` gave."""
        ring = cls(state.arcs)
        ring.giving, ring.taking, ring.given = state.giving, state.taking, state.given
        ring.contacts, ring.gifts, ring.taken = state.contacts, state.gifts, dict(state.taken)
        ring.strays, ring.brought, ring.doors = dict.fromkeys(state.strays), state.brought, state.doors
        return ring

"""Planted bugs of subscriptions to topics with several owners: what each part hands out, keeps and is granted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.node.ring import apart
from tidings.node.ring.apart import Apart, InParts
from tidings.node.ring.apart_streams import ApartStream, Share
from tidings.protocols.broker.messages import Acknowledgement, Subscribe
from tidings.protocols.broker.subscriptions import Subscription
from tidings.protocols.ring import transfer
from tidings.protocols.ring.facts import Reader
from tidings.simulator.checkers.ring_cluster import NothingLeftBehind
from tidings.simulator.checkers.rules import ONCE, PROGRESS
from tidings.simulator.planting import mutant, patched

BEHIND = NothingLeftBehind.RULE

_mutant = partial(mutant, world="ring-cluster")


@_mutant("every-part-hands-out", "a message that went to topics of several owners comes through each of them", ONCE)
def _every_part_hands_out() -> Iterator[None]:
    with patched(Subscription, "leaves", lambda _: lambda *_: False):
        yield


@_mutant(
    "leave-it-to-strangers", "a part leaves messages to topics that the subscription does not have", ONCE, PROGRESS
)
def _leave_it_to_strangers() -> Iterator[None]:
    def planted(self: Subscription, topic: str, offset: int, places: Iterable[str]) -> bool:
        return offset >= self.made.get(topic, 0) and any(place not in self.topics for place in places)

    with patched(Subscription, "leaves", lambda _: planted):
        yield


@_mutant("parts-forget-their-making", "a part that moves forgets what was there when it was made", BEHIND)
def _parts_forget_their_making() -> Iterator[None]:
    def make(apply_fact: Any) -> Any:
        def planted(machine: Any, ring: Any, fact: Any) -> None:
            if isinstance(fact, Reader):
                fact = msgspec.structs.replace(fact, subscription=msgspec.structs.replace(fact.subscription, made={}))
            apply_fact(machine, ring, fact)

        return planted

    with patched(transfer, "_apply_fact", make):
        yield


@_mutant("first-part-has-all-the-room", "only the first part of a subscription is granted anything", PROGRESS)
def _first_part_has_all_the_room() -> Iterator[None]:
    def make(raise_share: Any) -> Any:
        def planted(self: ApartStream, share: Share) -> bool:
            return share.topics[0] == self.whole[0] and bool(raise_share(self, share))

        return planted

    with patched(ApartStream, "_raise", make):
        yield


@_mutant(
    "first-part-is-acknowledged",
    "of an acknowledgement of several parts only the first one is sent on",
    ONCE,
    PROGRESS,
)
def _first_part_is_acknowledged() -> Iterator[None]:
    def make(divided: Any) -> Any:
        def planted(acknowledgement: Acknowledgement) -> tuple[Acknowledgement, ...]:
            return tuple(divided(acknowledgement)[:1])

        return planted

    with patched(apart, "divided", make):
        yield


@_mutant("parts-are-made-backwards", "the last part of a subscription is made first", ONCE, PROGRESS)
def _parts_are_made_backwards() -> Iterator[None]:
    def make(pieces: Any) -> Any:
        def planted(self: Apart, request: InParts) -> tuple[InParts, ...]:
            found: tuple[InParts, ...] = pieces(self, request)
            return found[::-1] if isinstance(request, Subscribe) else found

        return planted

    with patched(Apart, "_pieces", make):
        yield

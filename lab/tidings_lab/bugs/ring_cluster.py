"""Planted bugs of a ring of groups: who owns what, what is handed over, and by which ways requests go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from tidings.node.ring import admitting
from tidings.node.ring import engine as engine_module
from tidings.node.ring.engine import RingMember
from tidings.node.ring.leading import Leading
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.commands import Adopt
from tidings.protocols.broker.origins import Adopting
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.events import Received
from tidings.protocols.ring import transfer
from tidings.protocols.ring.commands import Claim, Drop
from tidings.protocols.ring.facts import Fact, Home, Known
from tidings.protocols.ring.handoff_source import HandoffSource
from tidings.protocols.ring.key_ranges import WHOLE, owns, point_of
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import RingPolicy
from tidings.protocols.ring.transfer import AtHome
from tidings.protocols.ring.transfer_facts import Transfer
from tidings.simulator.checkers.noted import NotedAtHome
from tidings.simulator.checkers.ring_cluster import NothingLeftBehind, OneOwner
from tidings.simulator.checkers.rules import FENCED, ONCE, PROGRESS, TWICE
from tidings.simulator.planting import mutant, patched
from tidings_lab.bugs.cluster import CURRENT

ONE_OWNER = OneOwner.RULE
BEHIND = NothingLeftBehind.RULE
NOTED = NotedAtHome.RULE

_mutant = partial(mutant, world="ring-cluster")

# Who owns what.


@_mutant("everybody-founds", "a group that joins claims the circle for itself", ONE_OWNER)
def _everybody_founds() -> Iterator[None]:
    def planted(self: Leading, now_ms: int) -> Iterator[Effect]:
        yield Persist(Claim((WHOLE,)))

    with patched(Leading, "_claim", lambda _: planted):
        yield


@_mutant("accept-after-give", "a source goes on accepting puts for what it has given", ONE_OWNER)
def _accept_after_hand_off() -> Iterator[None]:
    def make(owns_topic: Any) -> Any:
        def planted(self: Ownership, name: str) -> bool:
            given = self.handing_off is not None and owns(self.handing_off.ranges, point_of(name))
            return given or bool(owns_topic(self, name))

        return planted

    with patched(Ownership, "owns_topic", make):
        yield


@_mutant("drop-untaken", "a source forgets what it has given before the target has it", ONE_OWNER)
def _drop_untaken() -> Iterator[None]:
    def make(tick: Any) -> Any:
        def planted(self: HandoffSource, now_ms: int, ring: Ownership, descriptor: GroupDescriptor) -> list[Effect]:
            effects: list[Effect] = tick(self, now_ms, ring, descriptor)
            return [*effects, Persist(Drop(ring.handing_off.number))] if ring.handing_off is not None else effects

        return planted

    with patched(HandoffSource, "tick", make):
        yield


# What is handed over.


@_mutant("take-without-last-facts", "the facts of the last topic of a transfer are left out", BEHIND)
def _take_over_without_last_facts() -> Iterator[None]:
    with patched(Transfer, "topics_from", lambda topics_from: lambda self, name: topics_from(self, name)[:-1]):
        yield


@_mutant("tracks-stay", "what publishers have put is not handed over with a topic", BEHIND)
def _tracks_stay() -> Iterator[None]:
    with patched(Transfer, "_runs", lambda _: lambda *_: iter(())):
        yield


@_mutant("homes-stay", "the epochs of clients are not handed over with their homes", BEHIND)
def _homes_stay() -> Iterator[None]:
    with patched(Transfer, "facts_of_client", lambda _: lambda *_: iter(())):
        yield


# Who may do what.


@_mutant(
    "adopt-older",
    "an owner takes any epoch that a request names, also an older one",
    FENCED,
    TWICE,
    ONCE,
)
def _adopt_older() -> Iterator[None]:
    def make_adopt(adopt: Any) -> Any:
        def planted(machine: Any, ring: Any, known: Known) -> Any:
            client = adopt(machine, ring, known)
            client.epoch = known.epoch
            return client

        return planted

    def make_admit(admit: Any) -> Any:
        def planted(self: RingMember, received: Received, home: AtHome | None = None) -> None:
            message: Any = received.message
            client, epoch = getattr(message, "client", None), getattr(message, "epoch", None)
            known = self.group.state.machine.clients.get(client) if isinstance(client, str) else None
            is_home = known is None or self.ownership is None or self.ownership.owns_home(known.name)
            if known is None or is_home or epoch in (None, known.epoch) or not known.is_noted:
                admit(self, received, home)
            else:
                self.engine.run([Persist(Adopt(known.name, epoch), (), Adopting(received))])

        return planted

    with patched(transfer, "_adopt", make_adopt), patched(RingMember, "admit", make_admit):
        yield


@_mutant("home-notes-nobody", "the home of a name says that it has noted a group, and has not", NOTED, FENCED)
def _home_notes_nobody() -> Iterator[None]:
    with patched(Client, "note", lambda _: lambda *_: None):
        yield


@_mutant("list-stays", "whom to tell of a new session stays behind when a home moves", BEHIND, NOTED, FENCED)
def _list_stays() -> Iterator[None]:
    def make(facts_of_client: Any) -> Any:
        def planted(self: Transfer, name: str) -> Iterator[Fact]:
            for fact in facts_of_client(self, name):
                yield msgspec.structs.replace(fact, noted=()) if isinstance(fact, Home) else fact

        return planted

    with patched(Transfer, "facts_of_client", make):
        yield


@_mutant("home-is-not-asked", "an owner takes requests of a name that its home knows nothing of", NOTED, FENCED)
def _home_is_not_asked() -> Iterator[None]:
    with patched(admitting, "must_be_noted", lambda _: lambda *_: False):
        yield


@_mutant("hello-is-told-to-nobody", "a new session is welcomed before anybody hears that it is there", FENCED)
def _hello_is_told_to_nobody() -> Iterator[None]:
    with patched(RingPolicy, "noted", lambda _: lambda *_: ()):
        yield


# The ways of requests.


@_mutant(
    "answer-for-the-rest",
    "a group answers for all of it what it owns only in part",
    CURRENT,
    PROGRESS,
    ONCE,
)
def _answer_for_the_rest() -> Iterator[None]:
    with patched(engine_module, "without", lambda _: lambda *_: ()):
        yield

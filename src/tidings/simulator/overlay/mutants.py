"""Planted bugs of the overlay protocols: what each does, the scenario that shows it, and the rules that notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tidings.protocols import gossip, gossip_memory, hyparview
from tidings.protocols.gossip import Gossip
from tidings.protocols.hyparview import HyParView
from tidings.protocols.stack import Effect, PeerDown, Send
from tidings.simulator.bugs.planting import patched
from tidings.simulator.overlay.checkers import BOUNDED, CONNECTED, EVERYWHERE, LEAN, MUTUAL, ONCE, UNCHANGED


class OverlayMutant(msgspec.Struct, frozen=True):
    """A planted bug."""

    name: str
    what: str
    scenario: str
    rules: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]


MUTANTS: dict[str, OverlayMutant] = {}


def _mutant(name: str, what: str, scenario: str, *rules: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def register(plant: Callable[[], Iterator[None]]) -> None:
        MUTANTS[name] = OverlayMutant(name, what, scenario, rules, contextmanager(plant))

    return register


def _ignoring(layer: type, *kinds: type) -> AbstractContextManager[None]:
    """A layer that does nothing about some types."""

    def ignore(*_: Any) -> list[Effect]:
        return []

    return patched(layer, "on", lambda on: {**on, **dict.fromkeys(kinds, ignore)})


# Membership.


@_mutant("silent-eviction", "who is put out of an active view is not told", "restless", MUTUAL)
def _silent_eviction() -> Iterator[None]:
    def planted(link: Any) -> Any:
        def silent(self: HyParView, peer: str) -> list[Effect]:
            effects = link(self, peer)
            return [
                effect
                for effect in effects
                if not (isinstance(effect, Send) and isinstance(effect.message, hyparview.Disconnect))
            ]

        return silent

    with patched(HyParView, "_link", planted):
        yield


@_mutant("disconnect-ignored", "a neighbour's notice is ignored", "restless", MUTUAL)
def _disconnect_ignored() -> Iterator[None]:
    with _ignoring(HyParView, hyparview.Disconnect):
        yield


@_mutant("accept-and-forget", "a neighbour is accepted, but not put into the view", "restless", MUTUAL)
def _accept_and_forget() -> Iterator[None]:
    def forgetful(self: HyParView, peer: str, _: hyparview.Neighbor) -> list[Effect]:
        return [Send((peer,), hyparview.NeighborAnswer(accepted=True))]

    with patched(HyParView, "on", lambda on: {**on, hyparview.Neighbor: forgetful}):
        yield


@_mutant("no-replacement", "nobody of the passive view takes a failed neighbour's place", "mass-failure", CONNECTED)
def _no_replacement() -> Iterator[None]:
    def nothing(_: Any) -> Any:
        return lambda self: []

    with patched(HyParView, "_fill", nothing), patched(HyParView, "_ask_anybody", nothing):
        yield


@_mutant("failed-stays", "a failed neighbour stays in the active view", "mass-failure", MUTUAL)
def _failed_stays() -> Iterator[None]:
    with _ignoring(HyParView, PeerDown):
        yield


@_mutant("no-rotation", "content nodes never ask anybody", "cut", CONNECTED)
def _no_rotation() -> Iterator[None]:
    with _ignoring(HyParView, hyparview.RotateDue):
        yield


@_mutant("crowded", "an active view takes everybody who is urgent", "calm", BOUNDED)
def _crowded() -> Iterator[None]:
    def planted(link: Any) -> Any:
        def crowded(self: HyParView, peer: str) -> list[Effect]:
            settings = self._settings
            self._settings = msgspec.structs.replace(settings, active_max=1_000)
            effects: list[Effect] = link(self, peer)
            self._settings = settings
            return effects

        return crowded

    with patched(HyParView, "_link", planted):
        yield


@_mutant("hoarding", "a passive view never lets anybody go", "calm", BOUNDED)
def _hoarding() -> Iterator[None]:
    def planted(_: Any) -> Any:
        def hoard(self: HyParView, node: str, leaving: list[str] | None = None) -> None:
            if node != self._me and node not in self._active:
                self._passive[node] = None

        return hoard

    with patched(HyParView, "_remember", planted):
        yield


@_mutant("self-regard", "a node keeps itself and its neighbours in its passive view", "calm", BOUNDED)
def _self_regard() -> Iterator[None]:
    def planted(_: Any) -> Any:
        def remember(self: HyParView, node: str, leaving: list[str] | None = None) -> None:
            if len(self._passive) < self._settings.passive_max:
                self._passive[node] = None

        return remember

    with patched(HyParView, "_remember", planted):
        yield


# Gossip.


@_mutant("no-memory", "a message that comes again is delivered again", "calm", ONCE)
def _no_memory() -> Iterator[None]:
    with patched(gossip_memory.Memory, "has_seen", lambda _: lambda self, topic, offset: False):
        yield


@_mutant("notices-ignored", "a notice of a message leads to nothing", "lossy-tree", EVERYWHERE)
def _notices_ignored() -> Iterator[None]:
    with _ignoring(Gossip, gossip.IHave):
        yield


@_mutant("graft-unanswered", "a graft changes the tree, but the message is not sent", "lossy-tree", EVERYWHERE)
def _graft_unanswered() -> Iterator[None]:
    def planted(on: Any) -> Any:
        def unanswered(self: Gossip, peer: str, message: gossip.Graft) -> list[Effect]:
            on[gossip.Graft](self, peer, message)
            return []

        return {**on, gossip.Graft: unanswered}

    with patched(Gossip, "on", planted):
        yield


@_mutant("no-prune", "who sends what is known already is not told", "calm", LEAN)
def _no_prune() -> Iterator[None]:
    with patched(Gossip, "_make_lazy", lambda _: lambda self, peer, topic: False):
        yield


@_mutant("no-fetch", "what a digest shows to be missing is not fetched", "cut", EVERYWHERE)
def _no_fetch() -> Iterator[None]:
    with _ignoring(Gossip, gossip.FetchDue):
        yield


@_mutant("loss-untold", "the layer above is not told of what no neighbour has", "small-memory", EVERYWHERE)
def _loss_untold() -> Iterator[None]:
    with _ignoring(Gossip, gossip.Gone):
        yield


@_mutant("gaps-forgotten", "a message makes all before it count as seen", "loss", EVERYWHERE)
def _gaps_forgotten() -> Iterator[None]:
    def planted(add: Any) -> Any:
        def forgetful(self: gossip_memory.Track, offset: int) -> None:
            add(self, offset)
            self.skip(offset + 1)

        return forgetful

    with patched(gossip_memory.Track, "add", planted):
        yield


@_mutant("mixed-up", "another message than the one that was asked for is sent", "cut", UNCHANGED)
def _mixed_up() -> Iterator[None]:
    def planted(kept: Any) -> Any:
        def other(self: gossip_memory.Memory, topic: str, offset: int) -> Any:
            return kept(self, topic, offset + 1)

        return other

    with patched(gossip_memory.Memory, "kept", planted):
        yield

"""Planted bugs of the overlay protocols: what each does, the scenario that shows it, and the rules that notice it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from tidings.protocols import gossip, gossip_memory, hyparview
from tidings.protocols.gossip import Gossip
from tidings.protocols.hyparview import HyParView
from tidings.protocols.stack import Effect, PeerDown, Send
from tidings.simulator.planting import mutant, patched
from tidings_lab.simulated_overlay.checkers import BOUNDED, CONNECTED, EVERYWHERE, LEAN, MUTUAL, ONCE, UNCHANGED


def _ignoring(layer: type, *kinds: type) -> AbstractContextManager[None]:
    """A layer that does nothing about some types."""

    def ignore(*_: Any) -> list[Effect]:
        return []

    return patched(layer, "on", lambda on: {**on, **dict.fromkeys(kinds, ignore)})


# Membership.


@mutant("silent-eviction", "who is put out of an active view is not told", MUTUAL, world="overlay-restless")
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


@mutant("disconnect-ignored", "a neighbour's notice is ignored", MUTUAL, world="overlay-restless")
def _disconnect_ignored() -> Iterator[None]:
    with _ignoring(HyParView, hyparview.Disconnect):
        yield


@mutant("accept-and-forget", "a neighbour is accepted, but not put into the view", MUTUAL, world="overlay-restless")
def _accept_and_forget() -> Iterator[None]:
    def forgetful(self: HyParView, peer: str, _: hyparview.Neighbor) -> list[Effect]:
        return [Send((peer,), hyparview.NeighborAnswer(accepted=True))]

    with patched(HyParView, "on", lambda on: {**on, hyparview.Neighbor: forgetful}):
        yield


@mutant(
    "no-replacement",
    "nobody of the passive view takes a failed neighbour's place",
    CONNECTED,
    world="overlay-mass-failure",
)
def _no_replacement() -> Iterator[None]:
    def nothing(_: Any) -> Any:
        return lambda self: []

    with patched(HyParView, "_fill", nothing), patched(HyParView, "_ask_anybody", nothing):
        yield


@mutant("failed-stays", "a failed neighbour stays in the active view", MUTUAL, world="overlay-mass-failure")
def _failed_stays() -> Iterator[None]:
    with _ignoring(HyParView, PeerDown):
        yield


@mutant("no-rotation", "content nodes never ask anybody", CONNECTED, world="overlay-cut")
def _no_rotation() -> Iterator[None]:
    with _ignoring(HyParView, hyparview.RotateDue):
        yield


@mutant("crowded", "an active view takes everybody who is urgent", BOUNDED, world="overlay-calm")
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


@mutant("hoarding", "a passive view never lets anybody go", BOUNDED, world="overlay-calm")
def _hoarding() -> Iterator[None]:
    def planted(_: Any) -> Any:
        def hoard(self: HyParView, node: str, leaving: list[str] | None = None) -> None:
            if node != self._me and node not in self._active:
                self._passive[node] = None

        return hoard

    with patched(HyParView, "_remember", planted):
        yield


@mutant("self-regard", "a node keeps itself and its neighbours in its passive view", BOUNDED, world="overlay-calm")
def _self_regard() -> Iterator[None]:
    def planted(_: Any) -> Any:
        def remember(self: HyParView, node: str, leaving: list[str] | None = None) -> None:
            if len(self._passive) < self._settings.passive_max:
                self._passive[node] = None

        return remember

    with patched(HyParView, "_remember", planted):
        yield


# Gossip.


@mutant("no-memory", "a message that comes again is delivered again", ONCE, world="overlay-calm")
def _no_memory() -> Iterator[None]:
    with patched(gossip_memory.Memory, "has_seen", lambda _: lambda self, topic, offset: False):
        yield


@mutant("notices-ignored", "a notice of a message leads to nothing", EVERYWHERE, world="overlay-lossy-tree")
def _notices_ignored() -> Iterator[None]:
    with _ignoring(Gossip, gossip.IHave):
        yield


@mutant(
    "graft-unanswered", "a graft changes the tree, but the message is not sent", EVERYWHERE, world="overlay-lossy-tree"
)
def _graft_unanswered() -> Iterator[None]:
    def planted(on: Any) -> Any:
        def unanswered(self: Gossip, peer: str, message: gossip.Graft) -> list[Effect]:
            on[gossip.Graft](self, peer, message)
            return []

        return {**on, gossip.Graft: unanswered}

    with patched(Gossip, "on", planted):
        yield


@mutant("no-prune", "who sends what is known already is not told", LEAN, world="overlay-calm")
def _no_prune() -> Iterator[None]:
    with patched(Gossip, "_make_lazy", lambda _: lambda self, peer, topic: False):
        yield


@mutant("no-fetch", "what a digest shows to be missing is not fetched", EVERYWHERE, world="overlay-cut")
def _no_fetch() -> Iterator[None]:
    with _ignoring(Gossip, gossip.FetchDue):
        yield


@mutant("loss-untold", "the layer above is not told of what no neighbour has", EVERYWHERE, world="overlay-small-memory")
def _loss_untold() -> Iterator[None]:
    with _ignoring(Gossip, gossip.Gone):
        yield


@mutant("gaps-forgotten", "a message makes all before it count as seen", EVERYWHERE, world="overlay-loss")
def _gaps_forgotten() -> Iterator[None]:
    def planted(add: Any) -> Any:
        def forgetful(self: gossip_memory.Track, offset: int) -> None:
            add(self, offset)
            self.skip(offset + 1)

        return forgetful

    with patched(gossip_memory.Track, "add", planted):
        yield


@mutant("mixed-up", "another message than the one that was asked for is sent", UNCHANGED, world="overlay-cut")
def _mixed_up() -> Iterator[None]:
    def planted(kept: Any) -> Any:
        def other(self: gossip_memory.Memory, topic: str, offset: int) -> Any:
            return kept(self, topic, offset + 1)

        return other

    with patched(gossip_memory.Memory, "kept", planted):
        yield

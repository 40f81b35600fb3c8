"""The layers of a node, as its overlay wants them: the same objects as in the simulator."""

from __future__ import annotations

import random
from typing import NamedTuple

from tidings.protocols.chord import Chord
from tidings.protocols.chord.founding import Founding
from tidings.protocols.gossip import Gossip
from tidings.protocols.heartbeat import Heartbeat
from tidings.protocols.hyparview import HyParView
from tidings.protocols.pubsub import OverGossip, OverScribe
from tidings.protocols.scribe import Scribe
from tidings.protocols.stack import Message, NodeId, Stack
from tidings.settings import (
    ChordSettings,
    GossipSettings,
    HeartbeatSettings,
    HyParViewSettings,
    PeerSettings,
    ScribeSettings,
    load,
)


class LayerSettings(NamedTuple):
    """The settings of every protocol; a stack uses those of its own layers."""

    chord: ChordSettings = ChordSettings()
    scribe: ScribeSettings = ScribeSettings()
    hyparview: HyParViewSettings = HyParViewSettings()
    gossip: GossipSettings = GossipSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()


def load_layers() -> LayerSettings:
    """From TIDINGS_* variables and `tidings.toml`, as everything else."""
    return LayerSettings(
        load(ChordSettings),
        load(ScribeSettings),
        load(HyParViewSettings),
        load(GossipSettings),
        load(HeartbeatSettings),
    )


def build_stack(settings: PeerSettings, layers: LayerSettings, node: NodeId, rng: random.Random) -> Stack:
    """The stack of a node that joins by its settings' contacts, or is the first one."""
    contacts = tuple(contact for contact in settings.join if contact != node)
    if settings.overlay == "chord":
        return Stack(
            [
                OverScribe(node),
                Scribe(node, layers.scribe),
                Founding(node, contacts, settings.founders, layers.chord.successors_max),
                Chord(node, layers.chord, rng, contacts=contacts),
            ]
        )
    return Stack(
        [
            OverGossip(node, settings.kept_max, settings.subscriptions_max, layers.gossip.body_bytes_max),
            Gossip(layers.gossip, rng, founding=not contacts),
            HyParView(node, contacts, layers.hyparview, rng),
            Heartbeat(layers.heartbeat),
        ]
    )


def layer_of(kind: type[Message]) -> str:
    """The layer whose messages are of a type.

    >>> from tidings.protocols.scribe.messages import Spread
    >>> layer_of(Spread)
    'scribe'
    """
    return kind.__module__.split(".")[2]

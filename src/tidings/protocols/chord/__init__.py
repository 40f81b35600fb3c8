"""Chord: who is responsible for a key, and how to get there.

Every node and every key is a point on a circle of 2^256 points (SHA-256). A key belongs to the first node at or after
it. Each node knows its predecessor, the next few nodes (its successor list) and some nodes far away (fingers), so
that a message halves its distance with every hop.

The ring is kept by the corrected rules of Zave, "Reasoning about identifier spaces: how to make Chord correct" (2017),
not by those of Stoica et al. (2001), which can break it: see `ring.py`. docs/ring.md explains both.
"""

from __future__ import annotations

from tidings.protocols.chord.chord import Chord
from tidings.protocols.chord.identifiers import identifier, key_of
from tidings.protocols.chord.messages import (
    Consider,
    Delivered,
    FindRoot,
    Isolated,
    NeighboursChanged,
    RootFound,
    RootUnknown,
    Route,
    RouteStep,
    Seek,
    Stepped,
    TakePlace,
)
from tidings.protocols.chord.ring import Links, stable_links
from tidings.settings import ChordSettings

__all__ = [
    "Chord",
    "ChordSettings",
    "Consider",
    "Delivered",
    "FindRoot",
    "Isolated",
    "Links",
    "NeighboursChanged",
    "RootFound",
    "RootUnknown",
    "Route",
    "RouteStep",
    "Seek",
    "Stepped",
    "TakePlace",
    "identifier",
    "key_of",
    "stable_links",
]

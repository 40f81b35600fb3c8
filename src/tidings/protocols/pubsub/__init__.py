"""Publish and subscribe by topics: one set of requests, over Scribe or over gossip.

An application asks for `Subscribe`, `Unsubscribe` and `Publish` and is told `Arrived`; which road the messages take
is decided when the stack is built.
"""

from __future__ import annotations

from tidings.protocols.pubsub.messages import Arrived, Lost, Publish, Rejected, Subscribe, Unsubscribe
from tidings.protocols.pubsub.over_gossip import OverGossip
from tidings.protocols.pubsub.over_scribe import OverScribe

__all__ = ["Arrived", "Lost", "OverGossip", "OverScribe", "Publish", "Rejected", "Subscribe", "Unsubscribe"]

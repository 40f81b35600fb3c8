"""Scribe: one multicast tree for each topic, over Chord (Castro et al. 2002). docs/ring.md explains it."""

from __future__ import annotations

from tidings.protocols.scribe.messages import (
    NOW,
    MessageDelivered,
    MessagesMissed,
    Publish,
    Published,
    PublishRefused,
    Subscribe,
    Unsubscribe,
)
from tidings.protocols.scribe.scribe import Scribe
from tidings.settings import ScribeSettings

__all__ = [
    "NOW",
    "MessageDelivered",
    "MessagesMissed",
    "Publish",
    "PublishRefused",
    "Published",
    "Scribe",
    "ScribeSettings",
    "Subscribe",
    "Unsubscribe",
]

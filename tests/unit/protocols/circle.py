"""Nodes in the order of the circle, for tests of the ring and of its trees."""

from __future__ import annotations

from typing import Any

from tidings.protocols.chord import identifier
from tidings.protocols.chord.identifiers import SIZE, to_key
from tidings.protocols.stack import Effect, Message, NodeId, Notification, Notify, Send, SetTimer

NODES = tuple(sorted((f"n{index}" for index in range(12)), key=identifier))
"""NODES[0] has the smallest identifier."""


def after(name: NodeId, by: int = 1) -> bytes:
    """The key just behind a node."""
    return to_key((identifier(name) + by) % SIZE)


def sent(effects: list[Effect], kind: type[Message] = Message) -> list[tuple[NodeId, Any]]:
    """(receiver, message) for everything that is sent."""
    return [
        (peer, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
        for peer in effect.peers
    ]


def told(effects: list[Effect], kind: type[Notification] = Notification) -> list[Any]:
    """What the layers above are told."""
    return [
        effect.notification
        for effect in effects
        if isinstance(effect, Notify) and isinstance(effect.notification, kind)
    ]


def timers(effects: list[Effect]) -> list[Any]:
    return [effect.timer for effect in effects if isinstance(effect, SetTimer)]

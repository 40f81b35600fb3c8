"""Who may ask for what: one table for every kind of request.

With keys, the name of the key decides. Without them anyone who reaches the address is trusted: there is only the name
that a client gives itself, and the requests of operators do not even have that.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from tidings.errors import Unauthorized
from tidings.protocols.broker import bulk, messages, operators


class Right(Enum):
    """What it takes to be answered."""

    ANYBODY = "anybody"
    """It changes nothing, and speaks of no client's own affairs."""
    CLIENT = "client"
    """It is about the client that it names, which has to be the owner of the key."""
    ADMIN = "admin"
    """It changes the cluster itself: the owner of the key has to be one of `admins`."""


RIGHTS: dict[type, Right] = {
    messages.Hello: Right.CLIENT,
    messages.Put: Right.CLIENT,
    messages.Commit: Right.CLIENT,
    messages.Subscribe: Right.CLIENT,
    messages.Unsubscribe: Right.CLIENT,
    messages.Get: Right.CLIENT,
    messages.Ack: Right.CLIENT,
    messages.Flow: Right.CLIENT,
    messages.Beat: Right.CLIENT,
    messages.Join: Right.CLIENT,
    messages.Leave: Right.CLIENT,
    messages.Work: Right.CLIENT,
    messages.GroupAck: Right.CLIENT,
    messages.GroupNack: Right.CLIENT,
    messages.Extend: Right.CLIENT,
    messages.GroupPause: Right.CLIENT,
    messages.Bye: Right.CLIENT,
    messages.AskSequence: Right.CLIENT,
    messages.AskSubscriptions: Right.CLIENT,
    messages.AskSubscribers: Right.CLIENT,
    messages.AskGroups: Right.ANYBODY,
    messages.AskTopics: Right.ANYBODY,
    messages.AskStatus: Right.ANYBODY,
    messages.Shutdown: Right.ADMIN,
    bulk.Stage: Right.CLIENT,
    bulk.Publish: Right.CLIENT,
    bulk.Discard: Right.CLIENT,
    bulk.Read: Right.ANYBODY,
    bulk.AskOffset: Right.ANYBODY,
    operators.AskMembers: Right.ANYBODY,
    operators.AskRing: Right.ANYBODY,
    operators.AskOwner: Right.ANYBODY,
    operators.AskHeld: Right.ANYBODY,
    operators.AddMember: Right.ADMIN,
    operators.RemoveMember: Right.ADMIN,
    operators.LeaveRing: Right.ADMIN,
    messages.LimitTopic: Right.ADMIN,
}

DEEDS: dict[type, str] = {
    messages.Shutdown: "stop this broker",
    operators.AddMember: "take members into this group",
    operators.RemoveMember: "take members out of this group",
    operators.LeaveRing: "take this group out of the ring",
    messages.LimitTopic: "limit topics",
}


def check_right(admins: Sequence[str], user: str | None, message: Any) -> None:
    """Unauthorized if the owner of the key, or the client that has none, may not ask for this."""
    right = RIGHTS[type(message)]
    if right is Right.CLIENT:
        if user is None:
            return
        client = message.client
        if client != user and not client.startswith(f"{user}/"):
            raise Unauthorized(
                f"The key of {user!r} does not allow the name {client!r}: use {user!r}, or '{user}/...'."
            )
    elif right is Right.ADMIN:
        name = user if user is not None else getattr(message, "client", None)
        if name is not None and name not in admins:
            raise Unauthorized(f"{name!r} may not {DEEDS[type(message)]}: serve it with --admin {name}.")

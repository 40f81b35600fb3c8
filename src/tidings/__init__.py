"""tidings: a reliable publish-subscribe service for Python.

    bus = tidings.connect("tcp://127.0.0.1:7400", client_id="alice")   # a broker: `tidings serve --data DIR`
    bus = tidings.open("data/", client_id="alice")                      # the same, without a server

>>> import tempfile
>>> with open(tempfile.mkdtemp(), client_id="alice") as bus:
...     _ = bus.subscribe("news")
...     _ = bus.put("news", "hello")
...     bus.get("news").text
'hello'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.errors import (
    Fenced,
    InvalidRequest,
    InvalidTopic,
    LimitReached,
    LocalError,
    MessageTooLarge,
    Moved,
    NoSuchTopic,
    NotSubscribed,
    OutOfSequence,
    Overloaded,
    ProtocolError,
    RemoteError,
    StorageDamaged,
    StorageError,
    TidingsError,
    Unauthorized,
    Unavailable,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import Any

    from tidings.client import Opening, aconnect, connect
    from tidings.client.aio import AsyncBus
    from tidings.client.bus import Bus
    from tidings.client.group import AsyncGroupSubscription, GroupSubscription
    from tidings.client.publisher import AsyncPublisher, Publisher
    from tidings.client.ranges import RangeStart, Stored, When
    from tidings.client.rows import Value
    from tidings.client.serving import Handler
    from tidings.client.soon import AsyncSoon, Soon
    from tidings.client.staging import AsyncStage, Stage
    from tidings.client.subscription import AsyncBatches, AsyncMessages, AsyncSubscription, Subscription
    from tidings.client.transaction import AsyncTransaction, Transaction
    from tidings.message import (
        Batch,
        Columns,
        GroupInfo,
        Headers,
        MemberInfo,
        Message,
        Receipt,
        Receipts,
        Share,
        TopicInfo,
    )
    from tidings.protocols.broker.bulk import PublishDone, StageName
    from tidings.protocols.broker.messages import LaneKind, Start
    from tidings.wire.even import Even

__version__ = "0.2.0"

__all__ = [  # Without `open`: `from tidings import *` shadows nothing. Say `tidings.open`.
    "AsyncBatches",
    "AsyncBus",
    "AsyncGroupSubscription",
    "AsyncMessages",
    "AsyncPublisher",
    "AsyncSoon",
    "AsyncStage",
    "AsyncSubscription",
    "AsyncTransaction",
    "Batch",
    "Bus",
    "Columns",
    "Even",
    "Fenced",
    "GroupInfo",
    "GroupSubscription",
    "Handler",
    "Headers",
    "InvalidRequest",
    "InvalidTopic",
    "LaneKind",
    "LimitReached",
    "LocalError",
    "MemberInfo",
    "Message",
    "MessageTooLarge",
    "Moved",
    "NoSuchTopic",
    "NotSubscribed",
    "Opening",
    "OutOfSequence",
    "Overloaded",
    "ProtocolError",
    "PublishDone",
    "Publisher",
    "RangeStart",
    "Receipt",
    "Receipts",
    "RemoteError",
    "Share",
    "Soon",
    "Stage",
    "StageName",
    "Start",
    "StorageDamaged",
    "StorageError",
    "Stored",
    "Subscription",
    "TidingsError",
    "TopicInfo",
    "Transaction",
    "Unauthorized",
    "Unavailable",
    "Value",
    "When",
    "aconnect",
    "aopen",
    "connect",
]


_HOMES = {
    "tidings.client": ("Opening", "aconnect", "connect"),
    "tidings.client.aio": ("AsyncBus",),
    "tidings.client.bus": ("Bus",),
    "tidings.client.group": ("AsyncGroupSubscription", "GroupSubscription"),
    "tidings.client.publisher": ("AsyncPublisher", "Publisher"),
    "tidings.client.ranges": ("RangeStart", "Stored", "When"),
    "tidings.client.rows": ("Value",),
    "tidings.client.serving": ("Handler",),
    "tidings.client.soon": ("AsyncSoon", "Soon"),
    "tidings.client.staging": ("AsyncStage", "Stage"),
    "tidings.client.subscription": ("AsyncBatches", "AsyncMessages", "AsyncSubscription", "Subscription"),
    "tidings.client.transaction": ("AsyncTransaction", "Transaction"),
    "tidings.message": (
        "Batch",
        "Columns",
        "GroupInfo",
        "Headers",
        "MemberInfo",
        "Message",
        "Receipt",
        "Receipts",
        "Share",
        "TopicInfo",
    ),
    "tidings.protocols.broker.bulk": ("PublishDone", "StageName"),
    "tidings.protocols.broker.messages": ("LaneKind", "Start"),
    "tidings.wire.even": ("Even",),
}
"""Modules that are imported when one of their names is first used: errors alone cost no client."""

if not TYPE_CHECKING:  # Or else mypy would take every name for one that is there.

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for home, names in _HOMES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(home), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also what has not been used yet, for completion at a prompt."""
    return sorted({*globals(), *__all__})


def open(  # noqa: A001 - the name is the API
    path: str | os.PathLike[str],
    client_id: str | None = None,
    *,
    clock: Callable[[], int] | None = None,
    **options: Any,
) -> Bus:
    """The bus of a folder, in this process and without a server; the folder is made if it is missing.

    All buses that one process opens on a folder share one broker, and every call is durable when it
    returns. `options` are those of `connect`, and any setting of the broker or the journal by its name. The settings
    are those of the first one that opens it: another one gives the same or none.

    `clock` is for tests: the broker takes the time from it, in milliseconds since 1970 (see `tidings.testing`).

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(folder, client_id="alice") as alice, open(folder, client_id="bob") as bob:
    ...     _ = alice.subscribe("news")
    ...     _ = bob.put("news", "from bob")
    ...     alice.get("news").text
    'from bob'
    """
    from tidings.client import open_bus
    from tidings.client.arguments import check_folder
    from tidings.node.embedded import open_folder

    return open_bus(open_folder(check_folder(path), options, clock), client_id, **options)


def aopen(
    path: str | os.PathLike[str],
    client_id: str | None = None,
    *,
    clock: Callable[[], int] | None = None,
    **options: Any,
) -> Opening:
    """The same as `open`, for asyncio: the broker works in a thread, so that no disk holds up the event loop.

    async with tidings.aopen("data/", client_id="alice") as bus:
        await bus.put("news", "hello")
    """
    from functools import partial

    from tidings.client import aopen_bus
    from tidings.client.arguments import check_folder
    from tidings.node.embedded_watched import make_link

    return aopen_bus(partial(make_link, check_folder(path), clock), client_id, **options)

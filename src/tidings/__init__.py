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

from pathlib import Path
from typing import Any

from tidings.client import aconnect, connect, open_bus
from tidings.client.bus import Bus
from tidings.client.group import GroupSubscription
from tidings.client.subscription import Subscription
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
from tidings.message import Batch, GroupInfo, MemberInfo, Message, Receipt, Receipts, Share, TopicInfo

__version__ = "0.2.0"

__all__ = [
    "Batch",
    "Bus",
    "Fenced",
    "GroupInfo",
    "GroupSubscription",
    "InvalidRequest",
    "InvalidTopic",
    "LimitReached",
    "LocalError",
    "MemberInfo",
    "Message",
    "MessageTooLarge",
    "Moved",
    "NoSuchTopic",
    "NotSubscribed",
    "OutOfSequence",
    "Overloaded",
    "ProtocolError",
    "Receipt",
    "Receipts",
    "RemoteError",
    "Share",
    "StorageDamaged",
    "StorageError",
    "Subscription",
    "TidingsError",
    "TopicInfo",
    "Unauthorized",
    "Unavailable",
    "aconnect",
    "connect",
    "open",
]


def open(path: str | Path, client_id: str | None = None, **options: Any) -> Bus:  # noqa: A001 - the name is the API
    """The bus of a folder, in this process and without a server; the folder is made if it is missing.

    All buses that one process opens on a folder share one broker, and every call is durable when it
    returns. `options` are those of `connect`, and any setting of the broker or the journal by its name.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(folder, client_id="alice") as alice, open(folder, client_id="bob") as bob:
    ...     _ = alice.subscribe("news")
    ...     _ = bob.put("news", "from bob")
    ...     alice.get("news").text
    'from bob'
    """
    from tidings.errors import InvalidRequest
    from tidings.node.embedded import link_to
    from tidings.settings import BrokerSettings, JournalSettings, load

    if "://" in str(path):
        raise InvalidRequest(f"{path} is the address of a broker, and open takes a folder: use tidings.connect.")
    given = {
        kind: {name: options.pop(name) for name in kind.__struct_fields__ if name in options}
        for kind in (BrokerSettings, JournalSettings)
    }
    link = link_to(path, load(BrokerSettings, given[BrokerSettings]), load(JournalSettings, given[JournalSettings]))
    return open_bus(link, client_id, **options)

"""The client: `connect` and `aconnect` lead to a bus."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.client.bus import Bus
from tidings.client.link import Link
from tidings.client.route import split_addresses
from tidings.errors import InvalidRequest
from tidings.message import check_name
from tidings.settings import ClientSettings, NodeSettings, load

if TYPE_CHECKING:
    from tidings.client.aio import AsyncBus
    from tidings.transport.zeromq import DealerLink

__all__ = ["Bus", "Link", "aconnect", "connect", "connect_worker", "open_bus"]


def connect(
    address: str | None = None,
    client_id: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    inbox: str | os.PathLike[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Bus:
    """A bus to the broker at an address (default: TIDINGS_BUS, or tcp://127.0.0.1:7400).

    For a replicated group give the addresses of several members with commas between them, or of one that is up:
    whichever answers knows the others, and the bus finds the leader and follows when that changes.

    `client_id` is who you are; subscriptions and sequence numbers belong to that name, and a newer session of
    the same name takes over from an older one. Without it a name is made up, and its subscriptions are not for
    later. A request is tried `retries` times (3), each for `timeout` seconds (2.5), before it is Unavailable.
    `inbox` is a file in which the client remembers what it was handed, so that not even its crash
    repeats a message. `record` is a folder in which it writes down what it hands out, for `tidings audit`. `keys` is
    the folder made by `tidings keys`. Other settings are those of `ClientSettings`.

    A bus belongs to the process that made it: a process that is forked from that one opens a bus of its own.
    """
    name, anonymous = _name(client_id)
    chosen = _settings(timeout, retries, settings)
    return _started(
        Bus(_link(address, name, keys, server_key), name, chosen, inbox, anonymous=anonymous, record=record)
    )


async def aconnect(
    address: str | None = None,
    client_id: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    inbox: str | os.PathLike[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> AsyncBus:
    """The same as `connect`, for asyncio: the methods of the bus are awaited."""
    from tidings.client.aio import AsyncBus

    name, anonymous = _name(client_id)
    chosen = _settings(timeout, retries, settings)
    bus = AsyncBus(_link(address, name, keys, server_key), name, chosen, inbox, anonymous=anonymous, record=record)
    try:
        await bus.start()
    except BaseException:
        await bus.close()
        raise
    return bus


def open_bus(
    link: Link,
    client_id: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    inbox: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Bus:
    """A bus over a link that is already there; the arguments are those of `connect`."""
    name, anonymous = _name(client_id)
    return _started(Bus(link, name, _settings(timeout, retries, settings), inbox, anonymous=anonymous, record=record))


def connect_worker(
    address: str | None = None,
    user: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str | None = None,
    **settings: Any,
) -> Bus:
    """A bus under a name of its own below the user's, for workers of which many run at once.

    With keys it is the user's key that counts. The name is forgotten when the bus is closed, or a day after the
    worker was last heard of.
    """
    prefix = "worker" if user is None else check_name(user)
    if keys is not None and user is None:
        raise InvalidRequest("With keys the user is needed too: say whose key in the folder is to be used.")
    chosen = _settings(timeout, retries, settings)
    link = _link(address, prefix, keys, server_key)
    return _started(Bus(link, f"{prefix}/{os.urandom(8).hex()}", chosen, anonymous=True))


def _started(bus: Bus) -> Bus:
    try:
        bus.start()
    except BaseException:
        bus.close()
        raise
    return bus


def _name(client_id: str | None) -> tuple[str, bool]:
    if client_id is None:
        return f"anonymous-{os.urandom(8).hex()}", True
    return check_name(client_id), False


def _settings(timeout: float | None, retries: int | None, given: dict[str, Any]) -> ClientSettings:
    if timeout is not None:
        if not 0 < timeout < 1e6:
            raise InvalidRequest(f"The time-out is a number of seconds above 0, and this is {timeout!r}.")
        given = {"timeout_ms": max(1, round(timeout * 1000)), **given}
    if retries is not None:
        given = {"retries": retries, **given}
    return load(ClientSettings, given)


def _link(address: str | None, name: str, keys: str | os.PathLike[str] | None, server_key: str | None) -> DealerLink:
    address = address or os.environ.get("TIDINGS_BUS") or NodeSettings().bind
    if address.startswith("tcp://") and "," in address:
        address = ",".join(split_addresses(address))
    elif not re.fullmatch(r"tcp://[^\s/]+:\d{1,5}|(ipc|inproc)://\S+", address):
        raise InvalidRequest(
            f"The address {address!r} is not one of a broker: write tcp://HOST:PORT, for instance "
            f"{NodeSettings().bind}."
        )
    from tidings.transport.zeromq import DealerLink

    if keys is None:
        if server_key is not None:
            raise InvalidRequest("With server_key the client needs keys too: give the folder made by `tidings keys`.")
        return DealerLink(address)
    from tidings.transport import curve

    return DealerLink(address, curve.client_options(Path(keys), name, server_key))

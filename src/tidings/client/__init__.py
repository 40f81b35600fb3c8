"""The client: `connect` and `aconnect` lead to a bus."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidings.client.arguments import check_path, check_text
from tidings.client.bus import Bus
from tidings.client.link import Link, WatchedLink
from tidings.client.opening import Opening
from tidings.client.route import split_addresses
from tidings.errors import InvalidRequest
from tidings.message import check_name
from tidings.settings import ClientSettings, NodeSettings, load

if TYPE_CHECKING:
    from tidings.client.aio import AsyncBus
    from tidings.transport.zeromq import DealerLink

__all__ = ["Bus", "Link", "Opening", "aconnect", "aopen_bus", "connect", "connect_worker", "open_bus"]


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


def aconnect(
    address: str | None = None,
    client_id: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    inbox: str | os.PathLike[str] | None = None,
    keys: str | os.PathLike[str] | None = None,
    server_key: str | None = None,
    record: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Opening:
    """The same as `connect`, for asyncio: the methods of the bus are awaited.

    async with tidings.aconnect(...) as bus: ...     # or bus = await tidings.aconnect(...), and await bus.close()
    """

    async def make_link(name: str, _: dict[str, Any]) -> WatchedLink:
        return _link(address, name, keys, server_key)

    return aopen_bus(make_link, client_id, timeout, retries, inbox, record, **settings)


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
    try:
        name, anonymous = _name(client_id)
        chosen = _settings(timeout, retries, settings)
    except BaseException:
        link.close()
        raise
    return _started(Bus(link, name, chosen, inbox, anonymous=anonymous, record=record))


def aopen_bus(
    make_link: Callable[[str, dict[str, Any]], Awaitable[WatchedLink]],
    client_id: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    inbox: str | os.PathLike[str] | None = None,
    record: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Opening:
    """The same for asyncio. `make_link` gets the name, and takes what it knows out of the options."""

    async def opened() -> AsyncBus:
        name, anonymous = _name(client_id)
        link = await make_link(name, options)
        try:
            chosen = _settings(timeout, retries, options)
        except BaseException:
            link.close()
            raise
        return await _aopened(link, name, anonymous, chosen, inbox, record)

    return Opening(opened())


async def _aopened(
    link: WatchedLink,
    name: str,
    anonymous: bool,
    chosen: ClientSettings,
    inbox: str | os.PathLike[str] | None,
    record: str | os.PathLike[str] | None,
) -> AsyncBus:
    from tidings.client.aio import AsyncBus

    bus = AsyncBus(link, name, chosen, inbox, anonymous=anonymous, record=record)
    try:
        await bus.start()
    except BaseException:
        await bus.close()
        raise
    return bus


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
        raise InvalidRequest("keys needs a user too: name the client whose key in the folder to use.")
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
        if not (isinstance(timeout, (int, float)) and 0 < timeout < 1e6):
            raise InvalidRequest(f"The time-out must be a number of seconds above 0, not {timeout!r}.")
        given = {"timeout_ms": max(1, round(timeout * 1000)), **given}
    if retries is not None:
        given = {"retries": retries, **given}
    return load(ClientSettings, given)


def _link(address: str | None, name: str, keys: str | os.PathLike[str] | None, server_key: str | None) -> DealerLink:
    address = address or os.environ.get("TIDINGS_BUS") or NodeSettings().bind
    if not isinstance(address, str):
        raise InvalidRequest(f"An address is a text such as {NodeSettings().bind}, and this is {address!r}.")
    if address.startswith("tcp://") and "," in address:
        address = ",".join(split_addresses(address))
    elif not re.fullmatch(r"tcp://[^\s/]+:\d{1,5}|(ipc|inproc)://\S+", address):
        raise InvalidRequest(
            f"The address {address!r} is not a broker's address: write tcp://HOST:PORT, for instance "
            f"{NodeSettings().bind}."
        )
    from tidings.transport.zeromq import DealerLink

    if keys is None:
        if server_key is not None:
            raise InvalidRequest("server_key needs keys too: give the folder made by `tidings keys`.")
        return DealerLink(address)
    if server_key is not None:
        check_text(server_key, "server_key")
    from tidings.transport import curve

    return DealerLink(address, curve.client_options(check_path(keys, "keys"), name, server_key))

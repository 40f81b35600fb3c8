"""The flags that say which bus and as whom, and the bus that they stand for.

An address (tcp://, ipc://) is a broker's; a folder (`data/`, `./data`, `file:data`) is an embedded bus, opened in
this very process. Without --as, commands that only publish or look use a name made up for the moment, which
nobody else's session can meet; those that own subscriptions use `user@host`, so that what one command
subscribed the next one finds.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
from pathlib import Path
from typing import Any

from tidings.cli import quantities
from tidings.client.bus import Bus
from tidings.errors import InvalidRequest
from tidings.settings import NodeSettings

DEFAULT_BUS = NodeSettings().bind


def add_arguments(parser: argparse.ArgumentParser, *, named: bool, timeout: bool = True) -> None:
    """The common flags; `named` says that the command owns subscriptions and so needs a lasting name."""
    group = parser.add_argument_group("the bus")
    default_name = default_identity() if named else "a temporary name"
    group.add_argument(
        "--as",
        dest="client",
        metavar="NAME",
        default=os.environ.get("TIDINGS_AS"),
        help=f"who you are (or TIDINGS_AS; default: {default_name})".replace("%", "%%"),
    )
    group.add_argument(
        "--bus",
        metavar="ADDRESS",
        default=os.environ.get("TIDINGS_BUS") or DEFAULT_BUS,
        help="a broker's address, those of a replica group separated by commas, or a folder for an embedded bus "
        f"(or TIDINGS_BUS; default: {DEFAULT_BUS})",
    )
    if timeout:
        group.add_argument(
            "--timeout", metavar="SECONDS", type=quantities.seconds, help="how long one try may take (default: 2.5)"
        )
    group.add_argument("--retries", metavar="N", type=quantities.count, help="tries before giving up (default: 3)")
    group.add_argument(
        "--keys",
        metavar="DIR",
        default=os.environ.get("TIDINGS_KEYS"),
        help="the folder with NAME.key, made by `tidings keys` (or TIDINGS_KEYS); needs --as",
    )
    group.add_argument(
        "--server-key", metavar="KEY", help="the broker's public key or its file (default: server.pub in --keys)"
    )
    parser.set_defaults(named=named)


def open_bus(arguments: argparse.Namespace, **chosen: Any) -> Bus:
    """The bus that the flags stand for; `chosen` are settings of the client that the command itself has chosen."""
    import tidings

    client = arguments.client or (default_identity() if arguments.named else None)
    options: dict[str, Any] = {"client_id": client, **chosen}
    folder = embedded_folder(arguments.bus)
    if folder is not None:
        return tidings.open(folder, **options)
    if getattr(arguments, "timeout", None) is not None:
        options["timeout"] = arguments.timeout
    if arguments.retries is not None:
        options["retries"] = arguments.retries
    if arguments.keys is not None:
        if arguments.client is None:
            raise InvalidRequest("With --keys the broker knows you by your key: give its name with --as NAME.")
        options["keys"] = arguments.keys
        options["server_key"] = arguments.server_key
    return tidings.connect(arguments.bus, **options)


def default_identity() -> str:
    """`user@host`: the same for every command of one person on one machine."""
    user = os.environ.get("LOGNAME") or os.environ.get("USER")
    if not user:
        import getpass

        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "somebody"
    return f"{user}@{socket.gethostname()}"[:128]


def embedded_folder(bus: str) -> Path | None:
    """The folder that a --bus value names, or None if it is an address; InvalidRequest when it is neither.

    >>> embedded_folder("tcp://127.0.0.1:7400"), str(embedded_folder("file:data")), str(embedded_folder("data/"))
    (None, 'data', 'data')
    """
    if bus.startswith("file:"):
        return Path(bus.removeprefix("file:").removeprefix("//"))
    if "://" in bus:
        return None
    if re.fullmatch(r"[\w.\[\]:*-]*:[\d*]+", bus):
        raise InvalidRequest(f"The bus {bus!r} has no protocol: write tcp://{bus}.")
    if "/" in bus or bus.startswith(".") or (bus and Path(bus).is_dir()):
        return Path(bus)
    raise InvalidRequest(f"The bus {bus!r} is neither an address nor a folder: write tcp://HOST:PORT or ./FOLDER.")

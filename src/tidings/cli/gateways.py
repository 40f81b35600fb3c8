"""The gateways of `tidings serve`: plain sockets, and the web service that spells out numbers.

Plain sockets bring the web service with them, since a subscriber shows numbers in words. It has no state, so where
another server of this machine already has its port, that one is as good.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from tidings import settings
from tidings.cli import extras, quantities
from tidings.errors import InvalidRequest, Unavailable
from tidings.settings.checks import check_door

if TYPE_CHECKING:
    from tidings.gateways.http import WebService
    from tidings.gateways.sockets import SocketDoor

HTTP_PORT = 7480


def add_arguments(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--sockets",
        metavar="[HOST:]PORT",
        type=quantities.place,
        help="also serve editors and subscribers on plain sockets, at this port (of 127.0.0.1, unless HOST is given; "
        "0: any free port), and spell out numbers for them",
    )
    parser.add_argument(
        "--sockets-allow",
        metavar="NETWORKS",
        type=quantities.networks,
        help="whose machines may use --sockets beside this one: 10.0.0.0/24,10.1.0.7; needed with a HOST",
    )
    parser.add_argument(
        "--digits", action="store_true", help="with --sockets: spell out no numbers, leave the digits as they are"
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT",
        type=quantities.place,
        nargs="?",
        const=(None, HTTP_PORT),
        help=f"spell out numbers over HTTP at this port (of 127.0.0.1; default: {HTTP_PORT}; 0: any free port)",
    )
    parser.add_argument(
        "--http-allow", metavar="NETWORKS", type=quantities.networks, help="the same as --sockets-allow, for --http"
    )


def socket_settings(arguments: argparse.Namespace) -> settings.SocketsSettings:
    """What the flags say, and the rest from variables and the file."""
    host, port = arguments.sockets or (None, None)
    given = {"sockets_host": host, "sockets_port": port, "sockets_allow": arguments.sockets_allow}
    return settings.load(settings.SocketsSettings, given)


def socket_doors(sockets: settings.SocketsSettings) -> list[SocketDoor]:
    """The gateway for editors and subscribers, if one was asked for."""
    if sockets.sockets_port is None:
        return []
    from tidings.gateways.sockets import SocketDoor

    return [SocketDoor(sockets)]


def web_service(
    arguments: argparse.Namespace, sockets: settings.SocketsSettings
) -> WebService | contextlib.nullcontext[None]:
    """The web service on its port: the one that was asked for, or that of plain sockets; or nothing."""
    if arguments.http is not None:
        host, port = arguments.http
        allow = arguments.http_allow or ()
        check_door("--http", host or settings.SocketsSettings().sockets_host, allow, "--http-allow")
        with extras.needed("web", "--http"):
            from tidings.gateways.http import WebService
        return WebService(port, host=host, allow=allow)
    if sockets.sockets_port is None or arguments.digits:
        return contextlib.nullcontext()
    try:
        with extras.needed("web", "spelling out numbers"):
            from tidings.gateways.http import WebService
        return WebService(HTTP_PORT, host=sockets.sockets_host, allow=sockets.sockets_allow)
    except (InvalidRequest, Unavailable) as error:
        print(f"tidings: this server does not spell out numbers: {error}", file=sys.stderr)
        return contextlib.nullcontext()

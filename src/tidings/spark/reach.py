"""Whether anybody answers where `--master` points.

Spark itself waits a minute and a half for a master that is not there and then shows a trace of its own; a client of
Spark Connect tries for minutes. A connection says in a moment what is wrong.
"""

from __future__ import annotations

import re
import socket

from tidings.errors import InvalidRequest, Unavailable

CONNECT_PORT = 15002
TRY_S = 5.0
ENDPOINT = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(:(?P<port>\d{1,5}))?")


def endpoints(master: str) -> list[tuple[str, int]]:
    """The hosts and ports that a master's address names; none for local mode, YARN and Kubernetes.

    >>> endpoints("spark://one:7077,two:7077"), endpoints("sc://127.0.0.1/;token=x"), endpoints("local[2]")
    ([('one', 7077), ('two', 7077)], [('127.0.0.1', 15002)], [])
    """
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "sc"):
        return []
    found = []
    for each in rest.split(",") if kind == "spark" else [re.split("[/;]", rest, maxsplit=1)[0]]:
        match = ENDPOINT.fullmatch(each)
        if match is None or (kind == "spark" and match["port"] is None):
            raise InvalidRequest(f"The master {master!r} has no address: write {kind}://HOST:PORT.")
        found.append((match["host"].strip("[]"), int(match["port"] or CONNECT_PORT)))
    return found


def check_reachable(master: str) -> None:
    """Raises Unavailable when no server listens at any of the master's addresses."""
    wanted = endpoints(master)
    for host, port in wanted:
        try:
            with socket.create_connection((host, port), timeout=TRY_S):
                return
        except (OSError, OverflowError):
            continue
    if wanted:
        raise Unavailable(f"Nobody answers at {master}: start that Spark server, or name another with --master.")

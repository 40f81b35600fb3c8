"""`tidings keys`: the keys of brokers and clients. Secrets are written to files and never shown."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidings.cli.output import harmless, print_json
from tidings.errors import InvalidRequest
from tidings.message import check_name
from tidings.transport import curve

HELP = """\
Creates a broker's keys in a folder, or with --client those of a client, and puts the client on the folder's
allow-list. Nothing is ever overwritten. The folder holds

  server.key        the broker's secret (mode 0600)   server.pub        what every client needs of it
  NAME.key          a client's secret (mode 0600)     clients/NAME.pub  who may connect

and each file has one key, as 40 characters of Z85. Give a client its NAME.key and server.pub, nothing else. A client
that creates its own keys sends you only the public one: allow it with --client NAME --public FILE. To lock a client
out from its next connection on, remove clients/NAME.pub; you need not restart the broker.
"""

EXAMPLES = """\
  tidings keys keys/                                   # the broker's pair
  tidings keys keys/ --client alice                    # alice's pair, allowed from now on
  tidings keys keys/ --client bob --public bob.pub     # allow a key that bob made himself
  tidings keys keys/ --list
  tidings serve --data data/ --bind tcp://*:7400 --keys keys/
  tidings topics --bus tcp://broker:7400 --keys keys/ --as alice
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder with the keys, created if missing")
    parser.add_argument("--client", metavar="NAME", help="create keys for this client and allow it")
    parser.add_argument(
        "--public", metavar="KEY", help="with --client: allow this public key (or the one in this file) and create none"
    )
    parser.add_argument("--list", action="store_true", help="show the public keys")
    parser.add_argument("--json", action="store_true", help="print public keys as JSON, one per line")


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if arguments.public is not None and arguments.client is None:
        arguments.usage_error("--public needs --client NAME")
    if arguments.list:
        if arguments.client is not None:
            arguments.usage_error("--list shows all keys and does not go with --client")
        return _list(folder, arguments.json)
    if arguments.client is None:
        _show("broker", None, curve.create_server_keys(folder), folder / "server.key", arguments.json)
        return 0
    name = check_name(arguments.client)
    if arguments.public is not None:
        public = curve.public_key(arguments.public)
        curve.allow(folder, name, public)
        _show("client", name, public, None, arguments.json)
    else:
        _show("client", name, curve.create_client_keys(folder, name), curve.secret_file(folder, name), arguments.json)
    return 0


def _show(kind: str, name: str | None, public: bytes, secret_place: Path | None, as_json: bool) -> None:
    if as_json:
        print_json({"kind": kind, "name": name, "public": public.decode()})
        return
    who = "broker" if name is None else f"client {harmless(name)}"
    print(f"{who}: public key {public.decode()}")
    if secret_place is not None:
        print(f"The secret key is in {secret_place}, readable only by its owner.")


def _list(folder: Path, as_json: bool) -> int:
    if not folder.is_dir():
        raise InvalidRequest(f"There is no folder {folder}: make one with tidings keys {folder}.")
    rows: list[tuple[str, str | None, bytes]] = []
    if (folder / "server.key").exists():
        rows.append(("broker", None, curve.server_keys(folder).public))
    rows += [("client", name, public) for public, name in sorted(curve.allowed(folder).items(), key=lambda p: p[1])]
    width = max((len(harmless(name or "")) for _, name, _ in rows), default=0)
    for kind, name, public in rows:
        if as_json:
            print_json({"kind": kind, "name": name, "public": public.decode()})
        else:
            print(f"{kind:6}  {harmless(name or ''):{width}}  {public.decode()}")
    return 0

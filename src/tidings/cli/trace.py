"""`tidings trace`: one message on its way over a ring, step by step."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

import tidings
from tidings.admin.asking import Asking
from tidings.admin.trace import Trace, trace_put
from tidings.cli import connection
from tidings.cli.columns import Cell, aligned
from tidings.cli.output import print_json
from tidings.client import connect_worker
from tidings.client.bus import Bus
from tidings.transport.curve import client_options

HELP = """\
Publishes one message over a ring (see tidings ring) and shows each step with its time: where the topic lies on the
circle, which group owns it and how that was found (FIND-ROOT), its leader and its replicas, the client's hello, the
agreement of the owner's replicas, and the way to a subscriber at a node of another group.

The message is really published. The subscriber is created for the trace, then removed.
"""

EXAMPLES = """\
  tidings trace put news "hello" --bus tcp://127.0.0.1:7501
  tidings trace put news "hello" --bus tcp://127.0.0.1:7501 --json | jq '.steps[] | {name, ms}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["put"], help="what to follow")
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("text", metavar="TEXT", help="the message")
    parser.add_argument("--json", action="store_true", help="print JSON")
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    if connection.embedded_folder(arguments.bus) is not None:
        arguments.usage_error("an embedded bus is not a ring: give the address of a node with --bus")

    curve = None
    if arguments.keys is not None:
        if arguments.client is None:
            arguments.usage_error("with --keys the nodes know you by your key: give its name with --as NAME")
        curve = client_options(Path(arguments.keys), arguments.client, arguments.server_key)

    def connect(address: str, name: str) -> Bus:
        options = {} if arguments.keys is None else {"keys": arguments.keys, "server_key": arguments.server_key}
        given = {"timeout": arguments.timeout, "retries": arguments.retries}
        options |= {key: value for key, value in given.items() if value is not None}
        if arguments.keys is not None:  # With keys a client has the name of its key, or one below it.
            return connect_worker(address, arguments.client, **options)
        return tidings.connect(address, name, **options)

    trace = trace_put(Asking(arguments.bus.split(","), curve), connect, arguments.topic, arguments.text)
    if arguments.json:
        print_json(msgspec.to_builtins(trace))
    else:
        print(table(trace))
    return 0


def table(trace: Trace) -> str:
    """The steps as an aligned table. Times are in milliseconds."""
    rows: list[list[Cell]] = []
    for step in trace.steps:
        rows.append([step.name, step.at, "" if step.ms is None else f"{step.ms:9.2f}", step.what])
    return aligned(["step", "at", "       ms", "what"], rows)

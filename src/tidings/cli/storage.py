"""`tidings storage`: a storage server, until it is told to stop; or a question to one."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tidings import settings
from tidings.cli import addresses, output, quantities

DEFAULT_ADDRESS = "tcp://127.0.0.1:7410"
QUESTIONS = ("last", "status")
QUEUED_CALLS_MAX = 64

HELP = """\
Runs a storage server: a process that keeps a broker's journal, and a readable text for each topic in DIR/topics. The
broker runs on it with `tidings serve --storage ADDRESS`. `last TOPIC` and `status` query a running server.
"""

EXAMPLES = """\
  tidings storage --data data/                                 # in a terminal of its own
  tidings serve --storage tcp://127.0.0.1:7410                 # a broker on it, in another
  tidings storage last news                                    # the last message of a topic
  tidings storage status
  tidings storage --data data/ --bind tcp://*:7410 --keys keys/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question", metavar="QUESTION", nargs="*", help="last TOPIC, or status: query a server instead of running one"
    )
    serving = parser.add_argument_group("serving")
    serving.add_argument("--data", metavar="DIR", type=addresses.folder, help="the folder of the journal and the texts")
    serving.add_argument("--bind", metavar="ADDRESS", help=f"where to listen (default: {DEFAULT_ADDRESS})")
    serving.add_argument(
        "--ready-file", metavar="PATH", type=Path, help="write the address there once the server answers"
    )
    asking = parser.add_argument_group("asking")
    asking.add_argument(
        "--storage",
        metavar="ADDRESS",
        default=os.environ.get("TIDINGS_STORAGE") or DEFAULT_ADDRESS,
        help=f"the server to query (or TIDINGS_STORAGE; default: {DEFAULT_ADDRESS})",
    )
    asking.add_argument(
        "--as", dest="client", metavar="NAME", default="broker", help="whose key to use (default: broker)"
    )
    asking.add_argument("--timeout", metavar="SECONDS", type=quantities.seconds, default=5.0, help="default: 5")
    asking.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument(
        "--keys",
        metavar="DIR",
        help="encrypt: the folder of keys that may connect, or of the key to query with (see tidings keys)",
    )


def run(arguments: argparse.Namespace) -> int:
    question: list[str] = arguments.question
    if question:
        if question[0] not in QUESTIONS or len(question) != (2 if question[0] == "last" else 1):
            arguments.usage_error("write `last TOPIC` or `status`")
        return _ask(arguments, question)
    if arguments.data is None:
        arguments.usage_error("the following arguments are required: --data")
    return _serve(arguments)


def _serve(arguments: argparse.Namespace) -> int:
    from tidings.storage import server
    from tidings.transport import curve

    bind = addresses.free_port(arguments.bind) or DEFAULT_ADDRESS
    curve.check_bind(bind, arguments.keys)
    # A broker has one call under way on each of its connections, so hardly anything ever waits in a queue.
    door = settings.NodeSettings(bind=bind, keys=arguments.keys, queued_messages_max=QUEUED_CALLS_MAX)
    with addresses.ready_file(arguments.ready_file) as write:

        def on_ready(address: str) -> None:
            write(address + "\n")
            print(f"tidings stores at {address} in {arguments.data}", file=sys.stderr, flush=True)

        server.serve(arguments.data, door, on_ready)
    return 0


def _ask(arguments: argparse.Namespace, question: list[str]) -> int:
    from tidings.storage import questions
    from tidings.transport import curve

    options = curve.client_options(Path(arguments.keys), arguments.client) if arguments.keys is not None else None
    timeout_ms = round(arguments.timeout * 1000)
    if question[0] == "last":
        message = questions.last(arguments.storage, question[1], timeout_ms, options)
        if arguments.json:
            output.print_json(output.message_fields(message))
        else:
            output.print_value(message.value)
        return 0
    status = questions.status(arguments.storage, timeout_ms, options)
    if arguments.json:
        output.print_json(status)
    else:
        print("\n".join(f"{name}: {value}" for name, value in status.items()))
    return 0

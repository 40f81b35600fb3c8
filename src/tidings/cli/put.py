"""`tidings put`: publishes one message, or every line of the input."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from typing import cast

from tidings.cli import connection
from tidings.cli.connection import open_bus
from tidings.cli.counting import counting
from tidings.cli.output import print_json, receipt_fields, receipt_line
from tidings.client.bus import Bus
from tidings.errors import MessageTooLarge
from tidings.message import Receipt, Receipts

HELP = """\
Publishes a message; it is on the broker's disk when the command returns. Without TEXT, standard input is the
message; with --lines, each line of it is one.
"""

EXAMPLES = """\
  tidings put news "hello"
  tidings put news "hello" --also sport --also weather     # all three topics, or none
  tidings put orders '{"n": 1}' --key customer-7 --header kind=json --id order-1
  tidings put pictures < cat.png                           # the whole input is one message
  seq 1000000 | tidings put numbers --lines                # one message per line
"""

READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="where to publish")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the message (default: standard input)")
    parser.add_argument("--also", metavar="TOPIC", action="append", default=[], help="another topic; repeatable")
    parser.add_argument("--key", metavar="TEXT", help="messages with the same key stay in order within a group")
    parser.add_argument(
        "--header", metavar="NAME=TEXT", action="append", default=[], type=header, help="may be repeated"
    )
    parser.add_argument("--id", metavar="TEXT", help="a repeated id within 7 days is ignored")
    parser.add_argument("--lines", action="store_true", help="publish each line of the input as a message")
    parser.add_argument("--json", action="store_true", help="print receipts as JSON, one per line")
    connection.add_arguments(parser, named=False)


def run(arguments: argparse.Namespace) -> int:
    if arguments.lines:
        for flag in ("text", "also", "header", "id"):
            if getattr(arguments, flag):
                arguments.usage_error(f"--lines takes messages from the input and does not go with {flag}")
        with open_bus(arguments) as bus:
            _show_many(_put_lines(bus, arguments.topic, arguments.key), arguments.json)
        return 0
    if arguments.text is None and sys.stdin.isatty():
        arguments.usage_error("give TEXT, or pipe the message in")
    value = sys.stdin.buffer.read() if arguments.text is None else arguments.text
    topics = list(dict.fromkeys([arguments.topic, *arguments.also]))
    headers = dict(arguments.header) or None
    with open_bus(arguments) as bus:
        target = topics if len(topics) > 1 else topics[0]
        answer = bus.put(target, value, key=arguments.key, headers=headers, id=arguments.id)
    for receipt in [answer] if isinstance(answer, Receipt) else answer:
        if arguments.json:
            print_json(receipt_fields(receipt))
        else:
            print(receipt_line(receipt))
    return 0


def header(text: str) -> tuple[str, bytes]:
    """A header from NAME=TEXT.

    >>> header("kind=json")
    ('kind', b'json')
    """
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TEXT")
    return name, value.encode()


def _show_many(receipts: Receipts, as_json: bool) -> None:
    if as_json:
        print_json(receipt_fields(receipts))
        return
    repeated = f", {receipts.duplicates:,} stored before" if receipts.duplicates else ""
    print(f"{receipts.topic}: {receipts.count:,} messages{repeated}")


def _put_lines(bus: Bus, topic: str, key: str | None) -> Receipts:
    """Puts what is there whenever something is there: a slow pipe is not kept waiting for company."""
    first_offset: int | None = None
    count = duplicates = 0
    with counting() as advance:
        for lines in _lines():
            stored = bus.put_many(topic, lines, keys=None if key is None else [key] * len(lines))
            first_offset = stored.first_offset if first_offset is None else first_offset
            count += stored.count
            duplicates += stored.duplicates
            advance(stored.count)
    return Receipts(topic, first_offset, count, duplicates)


def _lines() -> Iterator[list[bytes]]:
    """The lines of the input, without their ends, in lists of what had arrived."""
    rest = b""
    source = cast(io.BufferedIOBase, sys.stdin.buffer)
    while chunk := source.read1(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
        if len(rest) > LINE_BYTES_MAX:
            raise MessageTooLarge(f"A line of the input is above {LINE_BYTES_MAX} bytes: is it text?")
    if rest:
        yield [rest]

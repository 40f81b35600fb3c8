"""`tidings editor`: publishes one text through the door for sockets."""

from __future__ import annotations

import argparse
import sys

from tidings.cli import quantities
from tidings.errors import InvalidRequest, InvalidTopic

HELP = """\
Publishes a text to a topic, over the plain sockets of a broker that was started with --sockets. It returns when the
broker has the text on disk. Topics have up to 128 characters, texts up to 1,024; anything longer is not sent.
"""

EXAMPLES = """\
  tidings editor -h 127.0.0.1 -p 4200 -t news -m "3 ships have come in"
"""

SHORT_HELP = False
"""-h is the host here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", dest="host", metavar="HOST", required=True, help="where the broker is")
    parser.add_argument(
        "-p", dest="port", metavar="PORT", required=True, type=quantities.port, help="its port for plain sockets"
    )
    parser.add_argument("-t", dest="topic", metavar="TOPIC", required=True, help="the topic, up to 128 characters")
    parser.add_argument("-m", dest="text", metavar="TEXT", required=True, help="the text, up to 1,024 characters")


def run(arguments: argparse.Namespace) -> int:
    from tidings.gateways import calls, fields
    from tidings.message import check_topic

    try:
        check_topic(arguments.topic)
        fields.check_text(arguments.text)
    except (InvalidTopic, InvalidRequest) as error:
        print(f"Warning: {error} Nothing was sent.", file=sys.stderr)
        return 1
    calls.publish(arguments.host, arguments.port, arguments.topic, arguments.text)
    return 0

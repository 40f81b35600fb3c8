"""`tidings stop`: an authorised client shuts the broker down."""

from __future__ import annotations

import argparse
import sys

from tidings.cli import connection
from tidings.cli.connection import open_bus

HELP = """\
Stops a broker, if you are one of its administrators (`tidings serve --admin NAME`). Acknowledged messages
are there after the next start.
"""

EXAMPLES = """\
  tidings stop --as alice
  tidings stop --as alice --bus tcp://10.0.0.1:7400 --keys keys/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_arguments(parser, named=True)


def run(arguments: argparse.Namespace) -> int:
    if connection.embedded_folder(arguments.bus) is not None:
        arguments.usage_error("an embedded bus has no broker to stop: give the broker's address with --bus")
    with open_bus(arguments) as bus:
        bus.shutdown()
    print(f"The broker at {arguments.bus} is stopping.", file=sys.stderr)
    return 0

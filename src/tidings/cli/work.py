"""`tidings work`: one of the members of a group, that prints each message or runs a command for it.

A message is acked when it was printed, or when its command has ended with 0; otherwise it is given back. Only one is
worked on at a time, so the order within a lane holds; for more at a time the command is started several times.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Literal

from tidings.cli import connection, quantities
from tidings.cli.connection import open_bus
from tidings.cli.output import message_fields, print_json, print_value
from tidings.cli.subscribe import start
from tidings.client.bus import Bus
from tidings.client.group import GroupSubscription
from tidings.errors import Fenced, InvalidRequest, Unavailable
from tidings.message import Message

HELP = """\
Works on the messages of a topic as a member of a group: each message goes to one member, those with the same key in
order. Without a COMMAND each message is printed and acked. With one, it is run for each message, which it gets on its
standard input; exit code 0 acks the message, any other gives it back, to be tried again.

The command finds TIDINGS_TOPIC, TIDINGS_OFFSET, TIDINGS_ATTEMPT (1, or more if it may have been worked on before) and
TIDINGS_KEY (TIDINGS_KEY_BASE64, if the key cannot be in a variable) in its environment. Start `tidings work` several
times, here or elsewhere, to share the work. SIGTERM and Ctrl-C end it after the current message; a second one also ends
the command. Exit code 3: there was no message within --timeout.
"""

EXAMPLES = """\
  tidings work jobs --group workers                                   # print each message
  tidings work jobs --group workers -- ./handle.sh                    # or run a command for each
  tidings work jobs --group workers --count 100 --timeout 10 --json
  tidings work jobs --group workers --lanes publisher --start now -- python handle.py --fast
"""

TAKES_COMMAND = True
"""What follows `--` is a command."""
NOTHING = 3
EXTEND_SECONDS = 1.0
"""How often the broker hears that a command takes longer: a heartbeat alone does not keep the work."""
LOOK_SECONDS = 0.2
"""How long a signal may wait while no message comes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the topic; a command may follow after --")
    parser.add_argument("--group", metavar="NAME", required=True, help="the group, which is made if it is missing")
    parser.add_argument("--count", metavar="N", type=quantities.count, help="end after so many messages")
    parser.add_argument(
        "--timeout",
        dest="wait",
        metavar="SECONDS",
        type=quantities.seconds,
        help="end when no message came for so long (default: never)",
    )
    parser.add_argument(
        "--retry",
        metavar="SECONDS",
        type=quantities.seconds,
        default=1.0,
        help="how long a message rests that a command has failed on (default: 1)",
    )
    parser.add_argument(
        "--start",
        type=start,
        default="earliest",
        help="where a new group begins: earliest (default), now, last or an offset",
    )
    parser.add_argument(
        "--lanes",
        choices=["key", "publisher"],
        help="what a new group keeps in order: messages of a key (default), or of a publisher and key",
    )
    parser.add_argument(
        "--preset", choices=["channels"], help="channels: --lanes publisher (see serve --preset, and docs/groups.md)"
    )
    parser.add_argument("--json", action="store_true", help="print messages as JSON, one per line")
    connection.add_arguments(parser, named=False, timeout=False)


def run(arguments: argparse.Namespace) -> int:
    command: list[str] = arguments.command
    if command and arguments.json:
        arguments.usage_error("--json prints messages, and does not go with a command")
    if command and shutil.which(command[0]) is None:
        raise InvalidRequest(f"There is no program {command[0]!r} to run: give its path, or make it executable.")
    lanes: Literal["key", "publisher"] = arguments.lanes or ("publisher" if arguments.preset == "channels" else "key")
    # What a member has waiting nobody else gets: while a command is slow that should be little.
    rooms = {"room_messages": 2} if command else {}
    with open_bus(arguments, **rooms) as bus:
        jobs = bus.subscribe(arguments.topic, group=arguments.group, start=arguments.start, lanes=lanes)
        with jobs, listening_to_signals() as ending:
            if command:
                count = run_all(command, jobs, arguments, ending)
            else:
                count = print_all(bus, jobs, arguments, ending)
    return 0 if count or ending.asked else NOTHING


def run_all(command: list[str], jobs: GroupSubscription, arguments: argparse.Namespace, ending: Ending) -> int:
    """Runs the command for one message after the other; for how many."""
    count = 0
    while not ending.asked and (arguments.count is None or count < arguments.count):
        job = ending.wait_for(jobs, arguments.wait)
        if job is None:
            break
        count += 1
        run_for(command, jobs, job, ending, arguments.retry)
    return count


def print_all(bus: Bus, jobs: GroupSubscription, arguments: argparse.Namespace, ending: Ending) -> int:
    """Prints one message after the other; how many. Each is acked once it is printed, without waiting for that."""
    first = ending.wait_for(jobs, arguments.wait)
    if first is None:
        return 0
    show(first, arguments.json)
    answer(jobs, first)
    count = 1

    @bus.on(arguments.topic, group=arguments.group)
    def on_job(job: Message) -> None:
        nonlocal count
        show(job, arguments.json)
        count += 1
        if count == arguments.count:
            bus.stop()

    ending.then = bus.stop
    if not ending.asked and arguments.count != 1:
        bus.run(arguments.wait)
    return count


def show(job: Message, as_json: bool) -> None:
    if as_json:
        print_json(message_fields(job))
    else:
        print_value(job.value)


class Ending:
    """Whether somebody has asked for the end, and what is under way then."""

    def __init__(self) -> None:
        self.asked = False
        self.process: subprocess.Popen[bytes] | None = None
        self.then: Callable[[], None] = lambda: None
        """What ends a loop that is not ours."""

    def wait_for(self, jobs: GroupSubscription, timeout: float | None) -> Message | None:
        """The next message; None at the end, or if there was none in time.

        A signal that raised would break off a call of the bus in the middle, so it is looked for now and then.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self.asked:
            left = until - time.monotonic()
            job = jobs.get(min(LOOK_SECONDS, max(0.0, left)))
            if job is not None or left <= LOOK_SECONDS:
                return job
        return None

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The first one ends the wait for a message, the second one also the command."""
        if self.asked and self.process is not None:
            self.process.terminate()
        self.asked = True
        self.then()


@contextlib.contextmanager
def listening_to_signals() -> Iterator[Ending]:
    """SIGTERM and SIGINT are heard as long as this lasts."""
    ending = Ending()
    before = {number: signal.signal(number, ending.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_for(command: list[str], jobs: GroupSubscription, job: Message, ending: Ending, retry_seconds: float) -> None:
    """Runs the command for one message, and acks it or gives it back."""
    try:
        # In a process group of its own, the command does not hear the Ctrl-C that is meant for us.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(job), process_group=0)
    except OSError as error:
        jobs.nack(job)
        raise InvalidRequest(f"{command[0]} cannot be run ({error.strerror}): is it a program?") from error
    ending.process = process
    feed: bytes | None = job.value
    try:
        while True:
            try:
                process.communicate(feed, timeout=EXTEND_SECONDS)
                break
            except subprocess.TimeoutExpired:
                feed = None  # What is left of it is remembered.
                with contextlib.suppress(Unavailable, Fenced):  # The ack will say so.
                    jobs.extend(job)
    finally:
        ending.process = None
    if process.returncode == 0:
        answer(jobs, job)
        return
    how = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
    print(f"tidings work: message {job.offset} goes back to the group ({how}).", file=sys.stderr, flush=True)
    with contextlib.suppress(Fenced):  # Another member has it by now.
        jobs.nack(job, 0.0 if ending.asked else retry_seconds)


def answer(jobs: GroupSubscription, job: Message) -> None:
    """Acks a message; says so if it had gone to another member, which happens to one that was away for long."""
    try:
        jobs.ack(job)
    except Fenced as error:
        print(f"tidings work: message {job.offset} is worked on a second time: {error}", file=sys.stderr, flush=True)


def environment(job: Message) -> dict[str, str | bytes]:
    """Our own, and what the command may want to know of its message."""
    known: dict[str, str | bytes] = {
        name: value for name, value in os.environ.items() if name not in ("TIDINGS_KEY", "TIDINGS_KEY_BASE64")
    }
    known |= {"TIDINGS_TOPIC": job.topic, "TIDINGS_OFFSET": str(job.offset), "TIDINGS_ATTEMPT": str(job.attempt)}
    if job.key is not None:
        if b"\0" in job.key:
            known["TIDINGS_KEY_BASE64"] = base64.b64encode(job.key)
        else:
            known["TIDINGS_KEY"] = job.key
    return known

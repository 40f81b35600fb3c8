"""`tidings shell`: the operations of the bus at a prompt, with history and completion.

On a terminal prompt_toolkit reads the lines; elsewhere they are read plainly, so that a script can be piped
in. An error is printed and the shell goes on.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidings.cli import connection, watching
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_value, receipt_line
from tidings.cli.prompt import Prompt, prompted_lines, word
from tidings.cli.subscribe import start
from tidings.cli.topics import topic_table
from tidings.client.bus import Bus
from tidings.errors import TidingsError
from tidings.message import Receipt

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer

HELP = """\
Opens a prompt on a bus: put, get, subscribe, unsubscribe, topics, help, quit. Tab completes commands and
topics, and the history is kept. If standard input is not a terminal, its lines are run as commands, and the
exit code is 1 if one of them failed.
"""

EXAMPLES = """\
  tidings shell
  tidings shell --as alice --bus data/
  printf 'subscribe news\\nput news hello\\nget news\\n' | tidings shell --bus data/
"""

COMMANDS = {
    "put": ("TOPIC TEXT", "publish the rest of the line as it is"),
    "get": ("[TOPIC]", "take the next message of a topic, or of each of your topics"),
    "subscribe": ("TOPIC [START]", "START: now, earliest, last or an offset"),
    "unsubscribe": ("TOPIC", "end a subscription"),
    "topics": ("", "list the topics"),
    "help": ("", "this list"),
    "quit": ("", "leave (so does Ctrl-D)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_arguments(parser, named=True)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:
        greeting = f"tidings on {arguments.bus} as {harmless(bus.client_id)}"
        return Shell(bus).serve_all(lambda: prompted_lines("tidings> ", completer(bus)), greeting)


class Shell(Prompt):
    """Runs lines as commands on a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        super().__init__(
            COMMANDS,
            {
                "put": self._put,
                "get": self._get,
                "subscribe": self._subscribe,
                "unsubscribe": self._unsubscribe,
                "topics": self._topics,
            },
        )

    def _put(self, rest: str) -> None:
        topic, text = word(rest)
        if topic is None or not text:
            raise self.usage("put")
        answer = self._bus.put(topic, text[1:])
        for receipt in [answer] if isinstance(answer, Receipt) else answer:
            print(receipt_line(receipt), flush=True)

    def _get(self, rest: str) -> None:
        topic, rest = word(rest)
        if rest.strip():
            raise self.usage("get")
        if topic is not None:
            message = self._bus.get(topic)
            found = [] if message is None else [message]
        else:
            found = list(self._bus.get_all().values())
        for message in found:
            print_value(message.value, f"{harmless(message.topic)}: " if topic is None else "")
        if not found:
            print("(nothing)", flush=True)

    def _subscribe(self, rest: str) -> None:
        topic, rest = word(rest)
        given, rest = word(rest)
        if topic is None or rest.strip():
            raise self.usage("subscribe")
        try:
            where = start(given if given is not None else "now")
        except argparse.ArgumentTypeError as error:
            raise self.usage("subscribe") from error
        self._bus.subscribe(topic, start=where)
        print(f"subscribed to {harmless(topic)}", flush=True)

    def _unsubscribe(self, rest: str) -> None:
        topic = self.topic("unsubscribe", rest)
        self._bus.unsubscribe(topic)
        print(f"no longer subscribed to {harmless(topic)}", flush=True)

    def _topics(self, _rest: str) -> None:
        watching.show(lambda: topic_table(self._bus.topics()), False, "There are no topics yet.")
        sys.stdout.flush()


def completer(bus: Bus) -> Completer:
    """Completes a command in the first place and a topic in the second."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Words(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            before = document.text_before_cursor
            name, rest = word(before)
            if name is None or not rest:
                typed = name or ""
                yield from (Completion(word + " ", -len(typed)) for word in COMMANDS if word.startswith(typed))
                return
            typed = rest.lstrip()
            if name not in ("put", "get", "subscribe", "unsubscribe") or re.search(r"\s", typed.lstrip('"')):
                return
            try:
                names = [info.name for info in bus.topics()]
            except TidingsError:
                return  # Without an answer there is nothing to offer, and typing goes on.
            for topic in names:
                if topic.startswith(typed.lstrip('"')):
                    yield Completion(f'"{topic}"' if " " in topic else topic, -len(typed))

    return Words()

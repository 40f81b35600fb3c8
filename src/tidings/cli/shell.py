"""`tidings shell`: the operations of the bus at a prompt, with history and completion.

On a terminal prompt_toolkit reads the lines; elsewhere they are read plainly, so that a script can be piped
in. An error is printed and the shell goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.cli import connection, watching
from tidings.cli.connection import open_bus
from tidings.cli.output import harmless, print_value, receipt_line
from tidings.cli.subscribe import start
from tidings.cli.topics import topic_table
from tidings.errors import TidingsError
from tidings.message import Receipt

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

    from tidings.client.bus import Bus

HELP = """\
Opens a prompt on a bus: put, get, subscribe, unsubscribe, topics, help, quit. Tab completes commands and
topics; the history is kept. When the input is not a terminal its lines are commands, and the
exit code is 1 if one of them failed.
"""

EXAMPLES = """\
  tidings shell
  tidings shell --as alice --bus data/
  printf 'subscribe news\\nput news hello\\nget news\\n' | tidings shell --bus data/
"""

COMMANDS = {
    "put": ("TOPIC TEXT", "publish the rest of the line as it stands"),
    "get": ("[TOPIC]", "take the next message of a topic, or of each that you subscribed"),
    "subscribe": ("TOPIC [START]", "START: now, earliest, last or an offset"),
    "unsubscribe": ("TOPIC", "end a subscription"),
    "topics": ("", "list the topics"),
    "help": ("", "this list"),
    "quit": ("", "leave (so does Ctrl-D)"),
}

_WORD = re.compile(r'\s*("(?P<quoted>[^"]*)"|(?P<plain>\S+))')


class Quit(Exception):
    """Somebody typed quit."""


class Usage(TidingsError):
    """A line that is no command; its text says how the command is written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    connection.add_arguments(parser, named=True)


def run(arguments: argparse.Namespace) -> int:
    with open_bus(arguments) as bus:
        shell = Shell(bus)
        if sys.stdin.isatty():
            print(f"tidings on {arguments.bus} as {harmless(bus.client_id)}; help lists the commands, quit leaves.")
            shell.serve(_prompted_lines(bus))
            return 0
        shell.serve(line.rstrip("\n") for line in sys.stdin)
        return 1 if shell.failures else 0


class Shell:
    """Runs lines as commands on a bus. `failures` counts those that led to an error."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.failures = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "put": self._put,
            "get": self._get,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "topics": self._topics,
            "help": self._help,
            "quit": self._quit,
            "exit": self._quit,
        }

    def serve(self, lines: Iterator[str]) -> None:
        """Runs line after line until they end or one says quit."""
        for line in lines:
            try:
                self.run(line)
            except Quit:
                return
            except TidingsError as error:
                self.failures += 1
                print(" ".join(str(error).split()), file=sys.stderr, flush=True)

    def run(self, line: str) -> None:
        """Runs one line; an empty one and one that begins with # do nothing."""
        name, rest = word(line)
        if name is None or name.startswith("#"):
            return
        command = self._commands.get(name.lower())
        if command is None:
            raise Usage(f"There is no command {name!r}: help lists them.")
        command(rest)

    def _put(self, rest: str) -> None:
        topic, text = word(rest)
        if topic is None or not text:
            raise _usage("put")
        answer = self._bus.put(topic, text[1:])
        for receipt in [answer] if isinstance(answer, Receipt) else answer:
            print(receipt_line(receipt), flush=True)

    def _get(self, rest: str) -> None:
        topic, rest = word(rest)
        if rest.strip():
            raise _usage("get")
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
            raise _usage("subscribe")
        try:
            where = start(given if given is not None else "now")
        except argparse.ArgumentTypeError as error:
            raise _usage("subscribe") from error
        self._bus.subscribe(topic, start=where)
        print(f"subscribed to {harmless(topic)}", flush=True)

    def _unsubscribe(self, rest: str) -> None:
        topic, rest = word(rest)
        if topic is None or rest.strip():
            raise _usage("unsubscribe")
        self._bus.unsubscribe(topic)
        print(f"no longer subscribed to {harmless(topic)}", flush=True)

    def _topics(self, _rest: str) -> None:
        watching.show(lambda: topic_table(self._bus.topics()), False, "There are no topics yet.")
        sys.stdout.flush()

    def _help(self, _rest: str) -> None:
        width = max(len(f"{name} {form}") for name, (form, _) in COMMANDS.items())
        for name, (form, what) in COMMANDS.items():
            print(f"  {f'{name} {form}':{width}}  {what}")
        print('A topic with spaces is written in quotes: get "my topic".', flush=True)

    def _quit(self, _rest: str) -> None:
        raise Quit


def _usage(name: str) -> Usage:
    return Usage(f"It is written: {name} {COMMANDS[name][0]}.")


def word(text: str) -> tuple[str | None, str]:
    """The first word, which may be quoted, and what follows it.

    >>> word('"my topic" it\\'s here')
    ('my topic', " it's here")
    """
    match = _WORD.match(text)
    if match is None:
        return None, ""
    return match["plain"] if match["quoted"] is None else match["quoted"], text[match.end() :]


def history_file() -> Path | None:
    """Where the history is kept, for its owner only; None when there is no such place."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "tidings" / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return None
    return path


def _prompted_lines(bus: Bus) -> Iterator[str]:
    """Lines from the prompt; Ctrl-C throws the line away, Ctrl-D ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file()
    history: History = InMemoryHistory() if path is None else FileHistory(str(path))
    session: PromptSession[str] = PromptSession(history=history, completer=completer(bus), complete_while_typing=False)
    while True:
        try:
            yield session.prompt("tidings> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


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

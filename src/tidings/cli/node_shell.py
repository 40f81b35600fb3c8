"""The prompt of `tidings nodes shell`: the operations of one node of an overlay.

What has arrived is printed before each prompt. When the input is not a terminal its lines are commands, and the exit
code is 1 if one of them failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidings.cli.output import harmless
from tidings.cli.shell import Quit, Usage, history_file, word
from tidings.errors import TidingsError, Unavailable
from tidings.peer.caller import NodeCaller
from tidings.peer.drive import wait_until

if TYPE_CHECKING:
    from tidings.transport.curve import ClientOptions

EFFECT_SECONDS_MAX = 10.0
"""How long the prompt waits until a subscription is in effect, so that the next message will come."""

COMMANDS = {
    "subscribe": ("TOPIC", "deliver a topic here from now on"),
    "unsubscribe": ("TOPIC", "end that"),
    "publish": ("TOPIC TEXT", "publish the rest of the line as it stands"),
    "received": ("", "print what has arrived since the last time"),
    "status": ("", "what the node sees"),
    "help": ("", "this list"),
    "quit": ("", "leave the prompt; the node runs on (so does Ctrl-D)"),
}


def serve(address: str, keys: ClientOptions | None) -> int:
    """Runs the prompt until its lines end; returns the exit code."""
    with NodeCaller(address, keys) as caller:
        caller.look()  # A node that is not there is said before the first prompt.
        shell = NodeShell(caller)
        if sys.stdin.isatty():
            print(f"a node at {address}; help lists the commands, quit leaves.")
            shell.serve(_prompted_lines(shell))
            return 0
        shell.serve(line.rstrip("\n") for line in sys.stdin)
        return 1 if shell.failures else 0


class NodeShell:
    """Runs lines as commands to a node. `failures` counts those that led to an error."""

    def __init__(self, caller: NodeCaller) -> None:
        self._caller = caller
        self.failures = 0
        self._commands: dict[str, Callable[[str], None]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "publish": self._publish,
            "received": self._received,
            "status": self._status,
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

    def show_arrivals(self) -> int:
        """Prints what has arrived, and says how much it was."""
        texts = self._caller.take()
        for text in texts:
            print(harmless(f"{text.topic}: {text.text} (from {text.publisher})"), flush=True)
        return len(texts)

    def _subscribe(self, rest: str) -> None:
        topic = _topic("subscribe", rest)
        self._caller.subscribe(topic)
        try:
            wait_until(lambda: self._is_in_effect(topic), "it is in effect", EFFECT_SECONDS_MAX)
            print(f"subscribed to {harmless(topic)}", flush=True)
        except Unavailable:
            print(f"subscribed to {harmless(topic)}, once its owner has been found", flush=True)

    def _is_in_effect(self, topic: str) -> bool:
        return self._caller.look().subscriptions.get(topic, True)

    def _unsubscribe(self, rest: str) -> None:
        topic = _topic("unsubscribe", rest)
        self._caller.unsubscribe(topic)
        print(f"no longer subscribed to {harmless(topic)}", flush=True)

    def _publish(self, rest: str) -> None:
        topic, text = word(rest)
        if topic is None or not text:
            raise _usage("publish")
        self._caller.publish(topic, text[1:])
        print(f"published to {harmless(topic)}", flush=True)

    def _received(self, _rest: str) -> None:
        if not self.show_arrivals():
            print("(nothing)", flush=True)

    def _status(self, _rest: str) -> None:
        from tidings.cli.nodes import view_lines

        for title, text in view_lines(self._caller.look()):
            print(f"{title:<14} {harmless(text)}")
        sys.stdout.flush()

    def _help(self, _rest: str) -> None:
        width = max(len(f"{name} {form}") for name, (form, _) in COMMANDS.items())
        for name, (form, what) in COMMANDS.items():
            print(f"  {f'{name} {form}':{width}}  {what}")
        sys.stdout.flush()

    def _quit(self, _rest: str) -> None:
        raise Quit


def _topic(command: str, rest: str) -> str:
    topic, rest = word(rest)
    if topic is None or rest.strip():
        raise _usage(command)
    return topic


def _usage(name: str) -> Usage:
    return Usage(f"It is written: {name} {COMMANDS[name][0]}.")


def _prompted_lines(shell: NodeShell) -> Iterator[str]:
    """Lines from the prompt, with what has arrived before each; Ctrl-C throws the line away, Ctrl-D ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    path = history_file()
    history: History = InMemoryHistory() if path is None else FileHistory(str(path))
    session: PromptSession[str] = PromptSession(history=history, completer=WordCompleter(list(COMMANDS)))
    while True:
        try:
            shell.show_arrivals()
            yield session.prompt("node> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return

"""`tidings subscriber`: a prompt that subscribes through the door for sockets and shows what is delivered.

Three threads: this one reads commands, a mailbox takes deliveries in, and a third has their numbers written out
and shows them, so that a slow web service never keeps a broker waiting. A line on the screen belongs to one of them
at a time. While a command is being answered no message is shown, so that SUBSCRIBE OK comes before the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import ipaddress
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator

from tidings.cli import quantities
from tidings.cli.output import harmless
from tidings.errors import InvalidRequest, InvalidTopic, TidingsError
from tidings.gateways import calls, fields
from tidings.gateways.calls import Mailbox
from tidings.gateways.speller import Speller
from tidings.message import check_topic

HELP = """\
Opens a prompt for subscribing to topics, over the plain sockets of a broker that was started with --sockets:

  SUBSCRIBE <topic>      the topic's last message comes at once, then each new one
  UNSUBSCRIBE <topic>
  QUIT                   ends the subscriptions too

Before a message is shown, a web service that runs with the broker spells out its numbers.
"""

EXAMPLES = """\
  tidings subscriber -s 127.0.0.1 -p 4200
  tidings subscriber -s 127.0.0.1 -p 4200 --lang es
  tidings subscriber -s 10.0.0.1 -p 4200 --listen 10.0.0.5      # a broker on another machine delivers to 10.0.0.5
"""

SHORT_HELP = False
"""As with the editor, only --help is help."""

PROMPT = "c> "
SPELL_PORT = 7480
WAITING_MESSAGES_MAX = 1_000
"""Messages that have come in and are not shown yet; after that, those to come wait at the broker."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", dest="host", metavar="HOST", required=True, help="where the broker is")
    parser.add_argument(
        "-p", dest="port", metavar="PORT", required=True, type=quantities.port, help="its port for plain sockets"
    )
    parser.add_argument(
        "--spell",
        metavar="URL",
        default=os.environ.get("TIDINGS_SPELL"),
        help=f"the web service for numbers (or TIDINGS_SPELL; default: http://HOST:{SPELL_PORT}/spell)",
    )
    parser.add_argument("--lang", metavar="CODE", default="en", help="the language of the numbers (default: en)")
    parser.add_argument("--digits", action="store_true", help="show numbers as they come, and ask no web service")
    parser.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        type=quantities.listening,
        default=(calls.HOST, 0),
        help="the address of this machine at which the broker delivers (default: 127.0.0.1, at any free port)",
    )
    parser.add_argument(
        "--allow",
        metavar="NETWORKS",
        type=quantities.networks,
        help="with --listen: where deliveries may come from (default: the broker's own address)",
    )


def run(arguments: argparse.Namespace) -> int:
    url = arguments.spell or f"http://{arguments.host}:{SPELL_PORT}/spell"
    spell = str if arguments.digits else Speller(url, arguments.lang, _note).spell
    own_host, own_port = arguments.listen
    allow = arguments.allow or _deliverers(arguments.host, own_host)
    with contextlib.ExitStack() as stack:
        screen = Screen(sys.stdin.isatty())
        shown = stack.enter_context(Shown(screen, spell))
        mailbox = stack.enter_context(Mailbox(shown.add, own_host, own_port, allow))
        Subscriber(arguments.host, arguments.port, mailbox, screen).serve(screen.lines())
    return 0


def _deliverers(broker: str, own_host: str) -> tuple[str, ...]:
    """Who delivers to a mailbox there: the broker. One on another machine cannot reach a mailbox on loopback."""
    try:
        address = ipaddress.IPv4Address(socket.gethostbyname(broker))
    except OSError:
        return ()  # The first command says what is wrong with it.
    if address.is_loopback:
        return ()
    if ipaddress.IPv4Address(own_host).is_loopback:
        raise InvalidRequest(
            f"The broker at {broker} is on another machine, and this mailbox is on {own_host}: give --listen with the "
            "address at which that machine reaches this one."
        )
    return (str(address),)


class Screen:
    """The conversation: a prompt, and whole lines that appear above it.

    When the input is no terminal nobody's typing ends the prompt's line, and what is said next does.
    """

    def __init__(self, terminal: bool) -> None:
        self.turn = threading.RLock()
        """Held by anyone who is saying something, for as long as nobody else may."""
        self._terminal = terminal
        self._prompted = False

    def say(self, line: str) -> None:
        """One line of the conversation."""
        with self.turn:
            print(line if self._prompted else PROMPT + line, flush=True)
            self._prompted = False
            self._prompt()

    def lines(self) -> Iterator[str]:
        """What is typed, or what comes through a pipe."""
        if self._terminal:
            yield from _typed_lines()
            return
        self._prompt()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # Bytes that are no text name no topic, and end nothing.
        try:
            for line in sys.stdin:
                yield line.rstrip("\n")
        finally:
            with self.turn:
                print(flush=True)
                self._prompted = False

    def _prompt(self) -> None:
        if not self._terminal:
            print(PROMPT, end="", flush=True)
            self._prompted = True


def _typed_lines() -> Iterator[str]:
    """Lines from a terminal; what is said meanwhile appears above the line that is being typed."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.patch_stdout import patch_stdout

    session: PromptSession[str] = PromptSession()
    with patch_stdout():
        while True:
            try:
                yield session.prompt(PROMPT)
            except KeyboardInterrupt:
                continue
            except EOFError:
                return


class Shown:
    """Messages on their way to the screen."""

    def __init__(self, screen: Screen, spell: Callable[[str], str]) -> None:
        self._screen = screen
        self._spell = spell
        self._waiting: queue.Queue[tuple[str, str] | None] = queue.Queue(WAITING_MESSAGES_MAX)
        self._thread = threading.Thread(target=self._run, name="tidings-screen", daemon=True)
        self._thread.start()

    def add(self, topic: str, text: str) -> None:
        """A message has come; waits while too many do."""
        self._waiting.put((topic, text))

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            topic, text = message
            self._screen.say(f"MESSAGE FROM {_one_line(topic)} : {_one_line(self._spell(text))}")


class Subscriber:
    """The commands."""

    def __init__(self, host: str, port: int, mailbox: Mailbox, screen: Screen) -> None:
        self._broker = (host, port)
        self._mailbox = (mailbox.port, mailbox.host)
        self._screen = screen
        self._topics: dict[str, None] = {}

    def serve(self, lines: Iterator[str]) -> None:
        """Runs command after command until they end or one says QUIT; then ends what was subscribed."""
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            if command.upper() == "QUIT":
                break
            if command:
                with self._screen.turn:
                    self._screen.say(self._answer(command.upper(), rest.strip()))
        # The port is gone with this program: without this the broker would try it for a while.
        with contextlib.suppress(TidingsError):
            for topic in self._topics:
                calls.unsubscribe(*self._broker, topic, *self._mailbox)

    def _answer(self, command: str, topic: str) -> str:
        if command not in ("SUBSCRIBE", "UNSUBSCRIBE") or not topic:
            return "The commands are SUBSCRIBE <topic>, UNSUBSCRIBE <topic> and QUIT."
        try:
            check_topic(topic)
        except InvalidTopic as error:
            return f"WARNING: {_one_line(str(error))} Nothing was done."
        try:
            return self._subscribe(topic) if command == "SUBSCRIBE" else self._unsubscribe(topic)
        except TidingsError as error:
            return _one_line(str(error))

    def _subscribe(self, topic: str) -> str:
        if not calls.subscribe(*self._broker, topic, *self._mailbox):
            return "SUBSCRIBE FAIL"
        self._topics[topic] = None
        return "SUBSCRIBE OK"

    def _unsubscribe(self, topic: str) -> str:
        answer = calls.unsubscribe(*self._broker, topic, *self._mailbox)
        if answer == fields.NO_TOPIC:
            return "UNSUBSCRIBE FAIL"
        self._topics.pop(topic, None)
        return "UNSUBSCRIBE OK" if answer == fields.DONE else "TOPIC NOT SUBSCRIBED"


def _one_line(text: str) -> str:
    """Text that neither commands a terminal nor looks like a line of ours."""
    return harmless(text).replace("\n", "\\n")


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

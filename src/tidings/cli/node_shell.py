"""The prompt of `tidings nodes shell`: the operations of one node of an overlay.

What has arrived is printed before each prompt. When the input is not a terminal its lines are commands, and the exit
code is 1 if one of them failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tidings.cli.node_view import view_lines
from tidings.cli.output import harmless
from tidings.cli.prompt import Prompt, prompted_lines, word
from tidings.errors import Unavailable
from tidings.peer.caller import NodeCaller
from tidings.peer.drive import wait_until
from tidings.transport.curve import ClientOptions

EFFECT_SECONDS_MAX = 10.0
"""How long the prompt waits until a subscription is in effect, so that the next message will come."""

COMMANDS = {
    "subscribe": ("TOPIC", "receive a topic at this node from now on"),
    "unsubscribe": ("TOPIC", "stop receiving it"),
    "publish": ("TOPIC[,TOPIC...] TEXT", "publish the rest of the line as it is, to all of these topics or to none"),
    "received": ("", "print what has arrived since the last time"),
    "status": ("", "what the node sees"),
    "help": ("", "this list"),
    "quit": ("", "leave the prompt (so does Ctrl-D); the node keeps running"),
}


def serve(address: str, keys: ClientOptions | None) -> int:
    """Runs the prompt until its lines end; returns the exit code."""
    with NodeCaller(address, keys) as caller:
        caller.look()  # A node that is not there is said before the first prompt.
        shell = NodeShell(caller)
        return shell.serve_all(shell.prompted_lines, f"a node at {address}")


class NodeShell(Prompt):
    """Runs lines as commands to a node."""

    def __init__(self, caller: NodeCaller) -> None:
        self._caller = caller
        super().__init__(
            COMMANDS,
            {
                "subscribe": self._subscribe,
                "unsubscribe": self._unsubscribe,
                "publish": self._publish,
                "received": self._received,
                "status": self._status,
            },
        )

    def prompted_lines(self) -> Iterator[str]:
        """Lines from the prompt, with what has arrived before each."""
        from prompt_toolkit.completion import WordCompleter

        return prompted_lines("node> ", WordCompleter(list(COMMANDS)), self.show_arrivals)

    def show_arrivals(self) -> int:
        """Prints what has arrived, and says how much it was."""
        texts = self._caller.take()
        for text in texts:
            topics = ", ".join((text.topic, *text.also))
            print(harmless(f"{topics}: {text.text} (from {text.publisher})"), flush=True)
        return len(texts)

    def _subscribe(self, rest: str) -> None:
        topic = self.topic("subscribe", rest)
        self._caller.subscribe(topic)
        try:
            wait_until(lambda: self._is_in_effect(topic), "it is in effect", EFFECT_SECONDS_MAX)
            print(f"subscribed to {harmless(topic)}", flush=True)
        except Unavailable:
            print(f"subscribed to {harmless(topic)}, once its owner has been found", flush=True)

    def _is_in_effect(self, topic: str) -> bool:
        return self._caller.look().subscriptions.get(topic, True)

    def _unsubscribe(self, rest: str) -> None:
        topic = self.topic("unsubscribe", rest)
        self._caller.unsubscribe(topic)
        print(f"no longer subscribed to {harmless(topic)}", flush=True)

    def _publish(self, rest: str) -> None:
        named, text = word(rest)
        if named is None or not text:
            raise self.usage("publish")
        quoted = rest.lstrip().startswith('"')  # A topic in quotes may have a comma.
        topic, *also = [named] if quoted else named.split(",")
        self._caller.publish(topic, text[1:], tuple(also))
        print(f"published to {harmless(', '.join((topic, *also)))}", flush=True)

    def _received(self, _rest: str) -> None:
        if not self.show_arrivals():
            print("(nothing)", flush=True)

    def _status(self, _rest: str) -> None:
        for title, text in view_lines(self._caller.look()):
            print(f"{title:<14} {harmless(text)}")
        sys.stdout.flush()

"""A client of a node: one command at a time, and its answer."""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from tidings.errors import ProtocolError, Unavailable, from_number
from tidings.transport.curve import ClientOptions
from tidings.transport.zeromq import DealerLink
from tidings.wire import door
from tidings.wire.codec import encode
from tidings.wire.door import NodeView
from tidings.wire.peers import check_address

__all__ = ["NodeCaller", "NodeView"]

TIMEOUT_SECONDS = 5.0
TAKE_COUNT = 1_000

Kind = TypeVar("Kind", bound=door.Answer)


def check_listening(address: str, timeout: float) -> None:
    """Unavailable if nobody listens at an address: ZeroMQ would try again for ever, and say nothing."""
    host, _, port = check_address(address).removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        raise Unavailable(f"The node at {address} does not answer ({error}): is it running there?") from error


class NodeCaller:
    """Speaks to one node, from one thread. A command that is not answered is not sent again: it may have been done."""

    def __init__(self, address: str, curve: ClientOptions | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
        check_listening(address, timeout)
        self.address = address
        self._timeout = timeout
        self._link = DealerLink(address, curve)
        self._request = 0
        self._next = 0

    def subscribe(self, topic: str) -> None:
        self._call(door.Subscribe(self._number(), topic), door.Done)

    def unsubscribe(self, topic: str) -> None:
        self._call(door.Unsubscribe(self._number(), topic), door.Done)

    def publish(self, topic: str, text: str, also: tuple[str, ...] = ()) -> None:
        """Hands a message to the node, which brings it to the subscribers of all these topics as long as it runs."""
        self._call(door.Publish(self._number(), topic, text, also), door.Done)

    def look(self) -> NodeView:
        """What the node sees."""
        return self._call(door.Look(self._number()), door.Seen).view

    def take(self) -> list[door.Text]:
        """What has arrived at the node since this was last called."""
        found: list[door.Text] = []
        while True:
            taken = self._call(door.TakeTexts(self._number(), self._next, TAKE_COUNT), door.TakenTexts)
            found += taken.texts
            self._next = taken.first + len(taken.texts)
            if not taken.texts:
                return found

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> NodeCaller:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _number(self) -> int:
        self._request += 1
        return self._request

    def _call(self, command: door.Command, kind: type[Kind]) -> Kind:
        self._link.send([encode(command)])
        deadline = time.monotonic() + self._timeout
        while (left := deadline - time.monotonic()) > 0:
            frames = self._link.receive(max(1, round(left * 1000)))
            if frames is None:
                continue
            answer = door.decode_answer(frames[0])
            if answer.request != command.request:
                continue  # It is the answer to a command that was given up.
            if isinstance(answer, door.Failed):
                raise from_number(answer.error, answer.text)
            if not isinstance(answer, kind):
                raise ProtocolError(f"{self.address} answered something other than was asked: is it of this version?")
            return answer
        self._link.reopen()
        raise Unavailable(f"The node at {self.address} does not answer: is it running, and is that its address?")

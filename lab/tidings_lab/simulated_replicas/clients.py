"""Those who use a group: clients with a list of commands and reads, one at a time, by the rules of the Lazy Pirate.

A client that gets no answer asks again, somebody else, under the same number. An answer to a question that it has given
up is no answer any more.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from tidings.protocols.multipaxos.values import Command
from tidings_lab.simulated_replicas.checkers import Node, Watch

READ_SHARE = 0.3


class Group(Protocol):
    """What clients need of a group, and of the world around it."""

    random: Random
    calm: bool
    watch: Watch

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...

    def pick(self, choice: int) -> Node:
        """A node that is not gone for good: the one that a number chooses, or the leader."""

    def new_token(self, client: Client) -> int:
        """The token of a read that begins."""

    def call(self, target: int, command: Command | None, token: int | None) -> None:
        """Asks a node."""


class Client:
    """One client, with so many things to do; once nothing goes wrong any more it ends with the one in flight."""

    def __init__(self, world: Group, name: str, count: int, pause_ms_max: int, read_share: float = READ_SHARE) -> None:
        self._world = world
        self._read_share = read_share
        self.name = name
        self._left = count
        self._pause_ms_max = pause_ms_max
        self._sequence = 0
        self._command: Command | None = None
        self._token: int | None = None
        self._attempt = 0
        self._target: int | None = None

    @property
    def finished(self) -> bool:
        return self._left == 0

    def start(self) -> None:
        self._world.after(self._world.random.randint(0, self._pause_ms_max), self._begin)

    def _begin(self) -> None:
        if self._world.random.random() < self._read_share:
            self._token = self._world.new_token(self)
            self._world.watch.on_read_begun(self._token)
        else:
            self._sequence += 1
            self._command = Command(self.name, self._sequence, f"{self.name}{self._sequence}".encode())
        self._try()

    def _try(self) -> None:
        world = self._world
        self._attempt += 1
        attempt = self._attempt
        target = self._target if self._target is not None else world.pick(world.random.randrange(16)).number
        world.call(target, self._command, self._token)
        world.after(world.random.randint(200, 800), lambda: self._give_up(attempt))

    def _give_up(self, attempt: int) -> None:
        if attempt == self._attempt and (self._command is not None or self._token is not None):
            self._target = None
            self._try()

    def on_rejected(self, sequence: int, leader: int | None) -> None:
        if self._command is not None and self._command.sequence == sequence:
            self._redirect(leader)

    def on_read_answered(self, token: int, refused: bool, leader: int | None) -> None:
        if self._token != token:
            return
        if refused:
            # A read that is asked again begins again: what was acknowledged since then has to be seen too.
            self._token = self._world.new_token(self)
            self._world.watch.on_read_begun(self._token)
            self._redirect(leader)
        else:
            self._done()

    def on_answered(self, sequence: int) -> None:
        if self._command is not None and self._command.sequence == sequence:
            self._done()

    def _redirect(self, leader: int | None) -> None:
        self._target = leader
        self._attempt += 1  # The one that was refused has ended.
        attempt = self._attempt
        self._world.after(self._world.random.randint(1, 100), lambda: self._retry(attempt))

    def _retry(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    def _done(self) -> None:
        self._command = self._token = None
        self._attempt += 1
        self._left = 0 if self._world.calm else self._left - 1
        if self._left:
            self._world.after(self._world.random.randint(0, self._pause_ms_max), self._begin)

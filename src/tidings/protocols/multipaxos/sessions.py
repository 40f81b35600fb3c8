"""Sessions make a command that was chosen twice applied once.

A leader that loses its place does not know whether its last proposals will be chosen, and a client that gets no answer
sends its command again, to another leader perhaps: so the same command may well stand in two slots. A client has
one command under way at a time and numbers them 1, 2, 3; the last number and its answer are kept for each client, as a
part of the replicated state. A repeated command gets the old answer and changes nothing.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tidings.protocols.multipaxos.values import Command

CLIENTS_MAX = 100_000


class Machine(Protocol):
    """The state that is replicated. It has no clock, no chance and no I/O: the same commands, the same state."""

    def apply(self, body: bytes) -> bytes:
        """Changes the state by a command; what the client is answered."""

    def snapshot(self) -> bytes:
        """All of the state."""

    def restore(self, state: bytes) -> None:
        """Takes the state of a snapshot; empty bytes are the state before any command."""


class Outcome(msgspec.Struct, frozen=True):
    """What came of a command. No result: it was refused, on every replica alike."""

    result: bytes | None
    repeated: bool = False


class _Last(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    result: bytes


class _State(msgspec.Struct, frozen=True, array_like=True):
    lasts: dict[str, _Last]
    state: bytes


class Sessions:
    """A state machine that applies each command of a client once."""

    def __init__(self, machine: Machine, clients_max: int = CLIENTS_MAX) -> None:
        self.machine = machine
        self._clients_max = clients_max
        self._lasts: dict[str, _Last] = {}

    def apply(self, command: Command) -> Outcome:
        last = self._lasts.get(command.client)
        number = last.sequence if last is not None else 0
        if last is not None and command.sequence == number:
            return Outcome(last.result, repeated=True)
        if command.sequence != number + 1 or (last is None and len(self._lasts) >= self._clients_max):
            # Older than the last: nobody waits for it any more. Beyond the next: the client broke its promise.
            return Outcome(None, repeated=command.sequence < number)
        result = self.machine.apply(command.body)
        self._lasts[command.client] = _Last(command.sequence, result)
        return Outcome(result)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(_State(self._lasts, self.machine.snapshot()))

    def restore(self, state: bytes) -> None:
        """Takes a snapshot; empty bytes are the state before any command."""
        whole = msgspec.msgpack.decode(state, type=_State) if state else _State({}, b"")
        self._lasts = whole.lasts
        self.machine.restore(whole.state)

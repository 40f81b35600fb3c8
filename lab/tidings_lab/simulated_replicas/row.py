"""A state that shows every mistake: the row of all commands applied, each once, of which the last lie in the journal.

A leader that loses its place does not know whether its last proposals will be chosen, and a client that gets no answer
sends its command again, to another leader perhaps: so the same command may well stand in two slots. A client has
one command under way at a time and numbers them 1, 2, 3; the last number and its answer are kept for each client. A
repeated command gets the old answer and changes nothing.

Where the last commands lie in the journal is part of it, and checked: an address that is wrong shows itself.
"""

from __future__ import annotations

import msgspec

from tidings.errors import StorageDamaged
from tidings.journal.disk import Buffer
from tidings.journal.journal import Journal
from tidings.protocols.multipaxos.values import Change, Command

IN_JOURNAL_MAX = 12
"""So many of the last commands are to be found in the journal."""
COPIED_BEFORE = 6
"""Of these last ones, so many are not copied forward yet."""


class Last(msgspec.Struct, frozen=True, array_like=True):
    """The last command of a client, and what it was answered."""

    sequence: int
    result: bytes


class RowState(msgspec.Struct, frozen=True, array_like=True):
    lasts: dict[str, Last]
    bodies: list[bytes]
    addresses: list[int]


class Carry(msgspec.Struct, frozen=True, array_like=True):
    """A body has been copied to the journal's end."""

    number: int


class Row:
    """The `State` of a simulated replica. A command is answered by its place in the row."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.bodies: list[bytes] = []
        self._addresses: list[int] = []
        self._lasts: dict[str, Last] = {}

    def apply(self, command: Command, address: int) -> bytes | None:
        last = self._lasts.get(command.client)
        number = last.sequence if last is not None else 0
        if last is not None and command.sequence == number:
            return last.result
        if command.sequence != number + 1:
            # Older than the last: nobody waits for it any more. Beyond the next: the client broke its promise.
            return None
        result = str(self._append(bytes(command.body), address)).encode()
        self._lasts[command.client] = Last(command.sequence, result)
        return result

    def _append(self, body: bytes, address: int) -> int:
        self.bodies.append(body)
        self._addresses.append(address)
        return len(self.bodies) - 1

    def apply_change(self, change: Change) -> None:
        pass

    def apply_local(self, command: bytes, time_ms: int, address: int) -> None:
        self._addresses[msgspec.msgpack.decode(command, type=Carry).number] = address

    def to_copy(self) -> tuple[bytes, bytes] | None:
        """What to copy forward next: the command for it, and the body."""
        if not self.bodies:
            return None
        number = max(0, len(self.bodies) - COPIED_BEFORE)
        return msgspec.msgpack.encode(Carry(number)), self.bodies[number]

    def copies_within(self, start: int, end: int) -> list[bytes]:
        return [
            msgspec.msgpack.encode(Carry(number))
            for number in self.in_journal()
            if start <= self._addresses[number] < end
        ]

    def place_of(self, copy: bytes) -> tuple[int, int] | None:
        number = msgspec.msgpack.decode(copy, type=Carry).number
        return (self._addresses[number], len(self.bodies[number])) if number in self.in_journal() else None

    def in_journal(self) -> range:
        """Which bodies are to be found in the journal."""
        return range(max(0, len(self.bodies) - IN_JOURNAL_MAX), len(self.bodies))

    def address_of(self, number: int) -> int:
        return self._addresses[number]

    def has_whole(self, number: int) -> bool:
        """Whether a body is where the row says that it is."""
        return number in self.in_journal() and self._is_in_place(number)

    def _is_in_place(self, number: int) -> bool:
        body = self.bodies[number]
        return self._stored(self._addresses[number], len(body)) == body

    def buffers(self, body: Buffer) -> tuple[Buffer, ...]:
        return (body[:1], body[1:])

    def seal(self) -> tuple[bytes, bytes]:
        return b"", msgspec.msgpack.encode(RowState(self._lasts, self.bodies, self._addresses))

    def mark_sealed(self) -> None:
        pass

    def restore(self, snapshot: bytes, indexes: list[bytes]) -> None:
        state = msgspec.msgpack.decode(snapshot, type=RowState)
        self._lasts, self.bodies, self._addresses = state.lasts, state.bodies, state.addresses

    def misplaced(self) -> list[bytes]:
        """Commands that are not where the row says that they are."""
        return [self.bodies[number] for number in self.in_journal() if not self._is_in_place(number)]

    def _stored(self, address: int, size: int) -> bytes | None:
        try:
            return bytes(self._journal.read(address, size))
        except StorageDamaged:
            return None

    def move(self, address: int, size_bytes: int, new_address: int) -> None:
        self._addresses = [new_address if each == address else each for each in self._addresses]

    def lowest_address(self, end_address: int) -> int:
        return min(self._addresses[-IN_JOURNAL_MAX:], default=end_address)

"""How a replica that is behind gets what it missed: by values, or by a snapshot when these are gone.

Whoever is behind asks, and asks again when no answer comes; whoever is asked keeps nothing in mind. A snapshot comes
in parts, each asked for by its position, so that a message never grows beyond a bound.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Chosen, Fetch, FetchPart, Part, Send
from tidings.protocols.multipaxos.records import Snapshot, decode_snapshot, encode
from tidings.protocols.multipaxos.values import Value, size_of
from tidings.settings import ReplicaSettings


class Catchup:
    """Both sides of catching up."""

    def __init__(self, log: Log, settings: ReplicaSettings) -> None:
        self._log = log
        self._settings = settings
        self._asked_at_ms: int | None = None
        self._parts = bytearray()
        self._parts_slot = 0
        self._parts_size = 0
        self._served: tuple[Snapshot, bytes] | None = None

    # The one who asks.

    def ask(self, now_ms: int, node: int, decided: int) -> list[Send]:
        """Somebody knows every slot below `decided`; asks for what is missing, unless an answer is still to come."""
        if decided <= self._log.decided:
            return []
        asked_at_ms = self._asked_at_ms
        if asked_at_ms is not None and 0 <= now_ms - asked_at_ms < self._settings.fetch_retry_ms:
            return []
        self._asked_at_ms = now_ms
        return [self._question(node)]

    def go_on(self, now_ms: int, node: int, decided: int) -> list[Send]:
        """An answer has come and is taken in: asks for the rest."""
        self._asked_at_ms = None
        return self.ask(now_ms, node, decided)

    def _question(self, node: int) -> Send:
        if self._parts_slot > self._log.decided:
            return Send((node,), FetchPart(self._parts_slot, len(self._parts), self._log.decided))
        return Send((node,), Fetch(self._log.decided))

    def take_part(self, part: Part) -> bool:
        """A piece of a snapshot; False if it was not the next one, and is no reason to ask for anything."""
        if part.next_slot <= self._log.decided or part.size_bytes > self._settings.snapshot_bytes_max:
            return False
        if part.next_slot != self._parts_slot:
            self._parts, self._parts_slot = bytearray(), part.next_slot
        if part.position != len(self._parts):
            return False
        self._parts += part.data
        self._parts_size = part.size_bytes
        return True

    def take_whole(self) -> Snapshot | None:
        """The snapshot, once all pieces are there."""
        if len(self._parts) < self._parts_size:
            return None
        data, self._parts, self._parts_slot = bytes(self._parts), bytearray(), 0
        try:
            return decode_snapshot(data)
        except msgspec.DecodeError:
            return None  # Pieces that do not belong together: it will be asked for again.

    # The one who is asked.

    def serve(self, node: int, message: Fetch) -> list[Send]:
        """The values from a slot on, as many as fit; or a snapshot, if they are no longer there."""
        log = self._log
        if message.first_slot >= log.decided:
            return []
        if message.first_slot < log.start:
            return self._serve_part(node, 0)
        values: list[Value] = []
        size_bytes = 0
        for slot in range(message.first_slot, log.decided):
            value = log.entries[slot].value
            size_bytes += size_of(value)
            if values and size_bytes > self._settings.batch_bytes_max:
                break
            values.append(value)
            if len(values) == self._settings.batch_values_max:
                break
        return [Send((node,), Chosen(message.first_slot, tuple(values), log.decided))]

    def serve_part(self, node: int, message: FetchPart) -> list[Send]:
        snapshot = self._log.snapshot
        if snapshot is None or snapshot.next_slot != message.next_slot:
            # Another one has taken its place, or it was begun with somebody else: as if nothing had been sent yet.
            return self.serve(node, Fetch(message.first_slot))
        return self._serve_part(node, message.position)

    def _serve_part(self, node: int, position: int) -> list[Send]:
        snapshot = self._log.snapshot
        if snapshot is None:
            return []
        if self._served is None or self._served[0] is not snapshot:
            self._served = (snapshot, encode(snapshot))
        data = self._served[1]
        piece = data[position : position + self._settings.part_bytes_max]
        return [Send((node,), Part(snapshot.next_slot, position, len(data), piece))]

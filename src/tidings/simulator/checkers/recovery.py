"""After every restart the broker is what the durable commands make of it, and nothing else.

A commit that was under way when the process ended may have left its first few records, whole ones; those exist
from then on. Everything before them must be there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tidings.errors import TidingsError
from tidings.journal.disk import Buffer
from tidings.journal.journal import Commit
from tidings.journal.record import Record
from tidings.node.engine import AnyEngine
from tidings.protocols.broker.commands import Command
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.subscriptions import Subscription
from tidings.simulator.checkers.checker import Checker
from tidings.simulator.checkers.ledger import Existing, Ledger


class RecoveryEqualsPrefix(Checker):
    RULE = "recovery equals the acknowledged prefix"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.unfinished: Commit | None = None
        """The commit that is under way, or was when the process ended."""
        self._expected: deque[Existing] = deque()

    def expect(self, existing: Existing) -> Existing:
        """The broker is about to apply this."""
        self._expected.append(existing)
        return existing

    def applied(self, command: Command, result: object, error: TidingsError | None) -> None:
        """The broker has applied a command: it must have come to the same result as the reference."""
        if not self._expected:
            self.broken(f"the broker applied {command} before it was durable")
        expected = self._expected.popleft()
        if expected.command != command:
            self.broken(f"the broker applied {command} where the journal holds {expected.command}")
        if type(error) is not type(expected.error) or (error is None and not _same(result, expected.result)):
            self.broken(
                f"{command} led to {error or result}, and to {expected.error or expected.result} by the journal"
            )

    def survivors(self, engine: AnyEngine) -> list[tuple[Record, Sequence[Buffer]]]:
        """The records of the unfinished commit that turned out to be on disk."""
        unfinished, self.unfinished = self.unfinished, None
        self._expected.clear()
        records = unfinished.records if unfinished is not None else []
        found, least = engine.journal.next_slot, self.ledger.slots
        if not least <= found <= least + len(records):
            self.broken(f"{found} slots are there after a restart, and {least} to {least + len(records)} should be")
        if unfinished is None:
            return []
        bodies: list[Sequence[Buffer]] = [append.bodies for append in unfinished.appends]
        survivors = list(zip(records, bodies, strict=True))[: found - least]
        for record, whole in survivors:
            if bytes(engine.journal.read(record.body_address, record.bodies_size)) != b"".join(whole):
                self.broken(f"slot {record.slot} was torn and is accepted")
        return survivors

    def compare(self, engine: AnyEngine, *but: str) -> None:
        """The recovered state against the reference, but for fields that may differ."""
        found, wanted = picture(engine.broker.machine), picture(self.ledger.reference)
        for part in wanted:
            for name in {**wanted[part], **found[part]}:
                one, other = found[part].get(name), wanted[part].get(name)
                if one is None or other is None:
                    self.broken(f"after a restart the {part} {name} is {one}, and it should be {other}")
                for field, value in other.items():
                    if one[field] != value and field not in but:
                        what = f"{field} of the {part} {name}"
                        self.broken(f"after a restart the {what} are {one[field]}, and they should be {value}")


def picture(machine: Machine) -> dict[str, dict[Any, Any]]:
    """All that a machine knows, as plain values that can be compared."""
    return {
        "topic": {
            topic.name: {
                "edges": (topic.first_offset, topic.next_offset),
                "left": (topic.acked_offset, topic.fully_acked_offset, machine.used_at_ms.get(topic.name)),
                "offsets": list(topic.offsets),
                "addresses": list(topic.addresses),
                "sizes": (topic.size_bytes, list(topic.sizes)),
                "times": list(topic.times),
                "thinned": topic.thinned,
                "shared": topic.shared,
                "ids": (topic.ids, list(topic.id_times)),
            }
            for topic in machine.topics.values()
        },
        "client": {
            client.name: {
                "session": (client.epoch, client.token, client.anonymous),
                "sequences": {topic: places(machine, topic, track) for topic, track in client.tracks.items()},
            }
            for client in machine.clients.values()
        },
        "subscription": {
            key: {
                "cursors": each.cursors,
                "starts": each.starts,
                "reader": (each.reader_epoch, each.reading, each.sent),
            }
            for key, each in machine.subscriptions.items()
        },
        "group": {
            key: {
                "progress": group.progress.encode(),
                "members": group.members,
                "lanes": group.lanes,
                "last acks": group.last_acked,
                "start": group.start,
            }
            for key, group in machine.groups.items()
        },
        "retired": {name: {"next offset": next_offset} for name, next_offset in machine.retired.items()},
        "stage": {
            name: {
                "state": (stage.key, stage.batch, stage.at_ms, stage.last, stage.held, stage.size_bytes),
                "batches": [(each.topic, each.size_bytes, each.count, each.ids) for each in stage.batches],
                "addresses": [each.address for each in stage.batches],
            }
            for name, stage in machine.stages.stages.items()
        },
        "query": {name: {"last batch": query} for name, query in machine.stages.queries.items()},
    }


def places(machine: Machine, topic: str, track: Any) -> list[int | None]:
    """Where the message of each sequence number went, None for what retention has removed."""
    known = machine.topics.get(topic)
    found = (track.find(sequence) for sequence in range(1, track.last + 1))
    return [place if known and place is not None and place >= known.first_offset else None for place in found]


def _same(result: Any, wanted: Any) -> bool:
    """A subscription is given back as the object it is, and the reference's has gone on; the rest is plain values."""
    if isinstance(wanted, Subscription):
        return isinstance(result, Subscription) and result.key == wanted.key
    return bool(result == wanted)

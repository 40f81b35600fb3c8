"""Planted bugs. Each changes one behaviour of the code under test, and a checker has to notice.

A simulator that finds nothing may be good news or may be blind. These say which: `tidings simulate --mutant NAME`
must fail, and with the invariant that belongs to the bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from tidings.client import reading
from tidings.client.outbox import Outbox
from tidings.client.parcels import Entry
from tidings.client.pending import Pending
from tidings.client.stream import Stream
from tidings.client.streams import Streams
from tidings.journal import journal, record, recovery
from tidings.node import engine
from tidings.protocols.broker import commands, messages, subscriptions
from tidings.protocols.broker.clients import Track
from tidings.protocols.broker.delivery import Dispatcher, Served
from tidings.protocols.broker.machine import Machine, SegmentIndex, Snapshot
from tidings.protocols.broker.topics import Topic
from tidings.protocols.events import Persisted
from tidings.simulator.broker import BrokerProcess
from tidings.wire.codec import encode

LOST = "no acknowledged put is lost"
TWICE = "no message is stored twice"
ONCE = "every subscriber is handed each message once and in order"
CURSORS = "cursors never go back and never run ahead"
FENCED = "fenced sessions change nothing"
TOGETHER = "several at once are all or none"
RECOVERY = "recovery equals the acknowledged prefix"
ASSERTIONS = "the code's own assertions hold"


class Mutant(msgspec.Struct, frozen=True):
    """A planted bug: what it does, which invariants may notice it first, and how it is planted."""

    name: str
    what: str
    rules: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]


MUTANTS: dict[str, Mutant] = {}


def _mutant(name: str, what: str, *rules: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def register(plant: Callable[[], Iterator[None]]) -> None:
        MUTANTS[name] = Mutant(name, what, rules, contextmanager(plant))

    return register


@contextmanager
def _patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute by what `make` makes of it, for a while."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


# The journal.


@_mutant("skip-sync", "the disk says that it has synced and has not", RECOVERY, LOST)
def _skip_sync() -> Iterator[None]:
    def make(start: Any) -> Any:
        def planted(self: BrokerProcess) -> None:
            self.disk.skip_syncs = True
            start(self)

        return planted

    with _patched(BrokerProcess, "start", make):
        yield


@_mutant("commit-unsynced", "a commit is written and not synced before the answer", RECOVERY, LOST)
def _commit_unsynced() -> Iterator[None]:
    def make(write: Any) -> Any:
        def planted(self: journal.Journal, commit: journal.Commit) -> None:
            self._syncs, syncs = False, self._syncs
            try:
                write(self, commit)
            finally:
                self._syncs = syncs

        return planted

    with _patched(journal.Journal, "write", make):
        yield


@_mutant("accept-torn", "recovery takes a record whose checksum is wrong", RECOVERY)
def _accept_torn() -> Iterator[None]:
    def make(_crc32: Any) -> Any:
        return lambda data, value=0: 0

    # With the same wrong sum on both sides every record is accepted.
    with _patched(record, "crc32", make):
        yield


@_mutant("cut-too-much", "recovery cuts off the last whole record together with a torn tail", RECOVERY)
def _cut_too_much() -> Iterator[None]:
    def make(scan: Any) -> Any:
        def planted(view: memoryview, *rest: Any) -> Iterator[record.Record]:
            found = list(scan(view, *rest))
            base_address = rest[1]
            torn = found and found[-1].end_address - base_address < len(view)
            yield from found[:-1] if torn else found

        return planted

    with _patched(recovery, "scan", make):
        yield


@_mutant("remove-live-segment", "retention removes every sealed segment", LOST, RECOVERY, ASSERTIONS)
def _remove_live_segment() -> Iterator[None]:
    with _patched(engine, "lowest_address", lambda _: lambda machine, end_address: end_address):
        yield


# The snapshot and the indexes.


def _reseal(change: Callable[[SegmentIndex, Snapshot], tuple[SegmentIndex, Snapshot]]) -> Any:
    """A `seal` that changes what it writes down."""

    def make(seal: Any) -> Any:
        def planted(self: Machine) -> tuple[bytes, bytes]:
            index, snapshot = seal(self)
            changed = change(
                msgspec.msgpack.decode(index, type=SegmentIndex), msgspec.msgpack.decode(snapshot, type=Snapshot)
            )
            return msgspec.msgpack.encode(changed[0]), msgspec.msgpack.encode(changed[1])

        return planted

    return _patched(Machine, "seal", make)


@_mutant("lose-index-piece", "a sealed segment's index of the topics is not written", RECOVERY)
def _lose_index_piece() -> Iterator[None]:
    with _reseal(lambda index, snapshot: (msgspec.structs.replace(index, topics=[]), snapshot)):
        yield


@_mutant("snapshot-without-subscriptions", "the snapshot leaves out the subscriptions", RECOVERY)
def _snapshot_without_subscriptions() -> Iterator[None]:
    with _reseal(lambda index, snapshot: (index, msgspec.structs.replace(snapshot, subscriptions=[]))):
        yield


@_mutant("snapshot-before-last-batch", "the snapshot has each publisher's sequence number before the last", RECOVERY)
def _snapshot_before_last_batch() -> Iterator[None]:
    def change(index: SegmentIndex, snapshot: Snapshot) -> tuple[SegmentIndex, Snapshot]:
        clients = [
            msgspec.structs.replace(each, lasts={topic: last - 1 for topic, last in each.lasts.items()})
            for each in snapshot.clients
        ]
        return index, msgspec.structs.replace(snapshot, clients=clients)

    with _reseal(change):
        yield


@_mutant("forget-sequences", "a restart forgets the publishers' sequence numbers", RECOVERY)
def _forget_sequences() -> Iterator[None]:
    def make(restore: Any) -> Any:
        def planted(self: Machine, *arguments: Any) -> None:
            restore(self, *arguments)
            for client in self.clients.values():
                client.tracks = {}

        return planted

    with _patched(Machine, "restore", make):
        yield


@_mutant("forget-carried", "a batch that was carried forward keeps its old address", RECOVERY, LOST, ASSERTIONS)
def _forget_carried() -> Iterator[None]:
    with _patched(Topic, "_load_carried", lambda _: lambda self, carried: None):
        yield


# The state machine.


@_mutant("apply-before-commit", "commands are applied, answered and delivered before they are durable", RECOVERY)
def _apply_before_commit() -> Iterator[None]:
    def begin(begin_commit: Any) -> Any:
        def planted(self: engine.Engine, now_ms: int) -> journal.Commit:
            commit: journal.Commit = begin_commit(self, now_ms)
            self.journal._remember(commit)
            for persist, each in zip(self._committing, commit.records, strict=True):
                event = Persisted(now_ms, persist.command, each.time_ms, each.body_address, persist.origin)
                self._run(self.broker.handle(event))
            return commit

        return planted

    with _patched(engine.Engine, "begin_commit", begin):
        yield


@_mutant("answer-early", "a put is answered before it is durable", LOST)
def _answer_early() -> Iterator[None]:
    def begin(begin_commit: Any) -> Any:
        def planted(self: engine.Engine, now_ms: int) -> journal.Commit:
            commit: journal.Commit = begin_commit(self, now_ms)
            topics = self.broker.machine.topics
            nexts = {name: topic.next_offset for name, topic in topics.items()}
            for persist in self._committing:
                message = persist.origin.message if persist.origin is not None else None
                if isinstance(message, messages.Put):
                    stored = []
                    for target in message.part.targets:
                        first = nexts.get(target.topic, 0)
                        nexts[target.topic] = first + message.part.count
                        stored.append(messages.Stored(first))
                    answer = messages.PutDone(message.request, tuple(stored))
                    self.outgoing.append((persist.origin.peer, [encode(answer)]))
            return commit

        return planted

    with _patched(engine.Engine, "begin_commit", begin):
        yield


@_mutant("accept-old-epoch", "a fenced session is still served", FENCED)
def _accept_old_epoch() -> Iterator[None]:
    def make(check_session: Any) -> Any:
        def planted(self: Machine, name: str, epoch: int) -> Any:
            client = self.clients.get(name)
            return client if client is not None else check_session(self, name, epoch)

        return planted

    with _patched(Machine, "check_session", make):
        yield


@_mutant("same-epoch", "a new session of a name is given the epoch of the old one", FENCED)
def _same_epoch() -> Iterator[None]:
    def make(on_open: Any) -> Any:
        def planted(self: Machine, command: commands.Open) -> int:
            client = self.clients.get(command.client)
            if client is None:
                return int(on_open(self, command))
            client.token = command.token
            return client.epoch

        return planted

    with _patched(Machine, "_on_open", make):
        yield


@_mutant("store-repetition", "a put that is sent again is stored again", TWICE)
def _store_repetition() -> Iterator[None]:
    def make(plan_one: Any) -> Any:
        def planted(self: Machine, client: Any, batch: Any, target: messages.Target, *rest: Any) -> Any:
            track = client.tracks.get(target.topic)
            if track is not None and target.sequence <= track.last:
                target = messages.Target(target.topic, track.last + 1)
            return plan_one(self, client, batch, target, *rest)

        return planted

    with _patched(Machine, "_plan_one", make):
        yield


@_mutant("ignore-ids", "an id that the topic has already taken is not noticed", TWICE)
def _ignore_ids() -> Iterator[None]:
    with _patched(Topic, "remember_ids", lambda _: lambda self, ids, time_ms: None):
        yield


@_mutant("several-only-first", "a put to several topics is stored in the first one only", TOGETHER)
def _several_only_first() -> Iterator[None]:
    def make(store: Any) -> Any:
        def planted(self: Machine, client: Any, batch: Any, plans: list[Any], *rest: Any) -> Any:
            stored = store(self, client, batch, plans[:1], *rest)
            nothing = messages.Stored(None, tuple((index, None) for index in range(batch.count)))
            return (*stored, *(nothing for _ in plans[1:]))

        return planted

    with _patched(Machine, "_store", make):
        yield


@_mutant("transaction-without-acks", "a transaction's puts happen and its acknowledgements do not", TOGETHER)
def _transaction_without_acks() -> Iterator[None]:
    def make(on_write: Any) -> Any:
        def planted(self: Machine, command: commands.Write, *rest: Any) -> Any:
            if command.batches:
                command = msgspec.structs.replace(command, acknowledgements=())
            return on_write(self, command, *rest)

        return planted

    with _patched(Machine, "_on_write", make):
        yield


@_mutant("cursor-back", "an old acknowledgement that comes late moves the cursor back", CURSORS)
def _cursor_back() -> Iterator[None]:
    def make(on_write: Any) -> Any:
        def planted(self: Machine, command: commands.Write, *rest: Any) -> Any:
            result = on_write(self, command, *rest)
            for each in command.acknowledgements:
                for position in each.positions:
                    self.subscriptions[command.client, each.topics].cursors[position.topic] = position.offset
            return result

        return planted

    with _patched(Machine, "_on_write", make):
        yield


@_mutant("drop-what-is-owed", "retention forgets what a subscription still waits for", ONCE, ASSERTIONS)
def _drop_what_is_owed() -> Iterator[None]:
    with _patched(Machine, "owed_offset", lambda _: lambda self, topic: max(topic.first_offset, topic.next_offset - 1)):
        yield


# Delivery.


@_mutant("cursor-before-ack", "the cursor moves when a message is sent", CURSORS)
def _cursor_before_ack() -> Iterator[None]:
    def make(fill: Any) -> Any:
        def planted(self: Dispatcher, stream: Any, topic: Topic) -> Any:
            delivery = fill(self, stream, topic)
            subscription: subscriptions.Subscription = stream.subscription
            subscription.cursors[topic.name] = max(subscription.cursors[topic.name], stream.positions[topic.name])
            return delivery

        return planted

    with _patched(Dispatcher, "_fill", make):
        yield


@_mutant("never-redelivered", "what an earlier session was given is not marked as redelivered", ONCE)
def _never_redelivered() -> Iterator[None]:
    with _patched(Served, "attempt", lambda _: lambda self, topic, offset: (1, None)):
        yield


@_mutant("several-through-each", "one message to several topics reaches one subscription through each", ONCE)
def _several_through_each() -> Iterator[None]:
    with _patched(Dispatcher, "_seen_elsewhere", lambda _: lambda self, stream, topic, entry: False):
        yield


# The client.


@_mutant("client-keeps-repetitions", "a delivery that comes twice is handed out twice", ONCE)
def _client_keeps_repetitions() -> Iterator[None]:
    def make(deliver: Any) -> Any:
        def planted(self: Stream, delivery: messages.Delivery, bodies: Any) -> bool:
            if delivery.topic in self.received:
                self.received[delivery.topic] = min(self.received[delivery.topic], delivery.since)
            return bool(deliver(self, delivery, bodies))

        return planted

    with _patched(Stream, "deliver", make):
        yield


@_mutant("client-ignores-gaps", "a delivery that leaves a gap is taken", ONCE)
def _client_ignores_gaps() -> Iterator[None]:
    def make(deliver: Any) -> Any:
        def planted(self: Stream, delivery: messages.Delivery, bodies: Any) -> bool:
            if delivery.topic in self.received:
                self.received[delivery.topic] = max(self.received[delivery.topic], delivery.since)
            return bool(deliver(self, delivery, bodies))

        return planted

    with _patched(Stream, "deliver", make):
        yield


@_mutant("resend-renumbered", "a put in doubt is sent again under a new sequence number", TWICE)
def _resend_renumbered() -> Iterator[None]:
    def make(resend: Any) -> Any:
        def planted(self: Outbox, entry: Entry) -> Pending[object]:
            self._doubt = [each for each in self._doubt if entry not in each.entries]
            entry.pending = Pending()
            self.give(entry)
            return entry.pending

        return planted

    with _patched(Outbox, "resend", make):
        yield


@_mutant("get-before-ack", "get hands a message out before its acknowledgement is durable", ONCE)
def _get_before_ack() -> Iterator[None]:
    def make(acknowledge: Any) -> Any:
        def planted(self: Streams, *arguments: Any) -> Pending[Any]:
            acknowledge(self, *arguments)
            at_once: Pending[Any] = Pending()
            at_once.finish(messages.AckDone(0))
            return at_once

        return planted

    with _patched(Streams, "acknowledge", make):
        yield


@_mutant("inbox-without-marks", "the inbox does not write down what was handed out", ONCE)
def _inbox_without_marks() -> Iterator[None]:
    with _patched(reading, "mark", lambda _: lambda core, stream, topic, next_offset: None):
        yield


@_mutant("track-forgets", "the memory of sequence numbers keeps only the last few", LOST)
def _track_forgets() -> Iterator[None]:
    def make(take: Any) -> Any:
        def planted(self: Track, *arguments: Any) -> None:
            take(self, *arguments)
            del self.sequences[:-1], self.offsets[:-1]

        return planted

    with _patched(Track, "take", make):
        yield

"""Planted bugs of the engine, of the state machine and of delivery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidings.journal import journal
from tidings.node.alone import Alone
from tidings.protocols.broker import collecting, commands, machine, messages, subscriptions, writing
from tidings.protocols.broker.clients import Track
from tidings.protocols.broker.delivery import Dispatcher, Served
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.topics import Topic
from tidings.protocols.events import Persisted
from tidings.simulator.checkers.rules import (
    ASSERTIONS,
    CURSORS,
    FENCED,
    LOST,
    ONCE,
    PROGRESS,
    RECOVERY,
    TOGETHER,
    TWICE,
    UNUSED,
)
from tidings.simulator.planting import mutant, patched

# The state machine.


@mutant("apply-before-commit", "commands are applied, answered and delivered before they are durable", RECOVERY)
def _apply_before_commit() -> Iterator[None]:
    def begin(begin_commit: Any) -> Any:
        def planted(self: Alone, now_ms: int) -> journal.Commit:
            commit: journal.Commit = begin_commit(self, now_ms)
            self._engine.journal._remember(commit)
            for persist, each in zip(self._committing, commit.records, strict=True):
                event = Persisted(now_ms, persist.command, each.time_ms, each.body_address, persist.origin)
                self._engine.run(self._engine.broker.handle(event))
            return commit

        return planted

    with patched(Alone, "begin_commit", begin):
        yield


@mutant("answer-early", "a put is answered before it is durable", LOST)
def _answer_early() -> Iterator[None]:
    def begin(begin_commit: Any) -> Any:
        def planted(self: Alone, now_ms: int) -> journal.Commit:
            commit: journal.Commit = begin_commit(self, now_ms)
            topics = self._engine.broker.machine.topics
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
                    self._engine.reply(persist.origin.peer, answer)
            return commit

        return planted

    with patched(Alone, "begin_commit", begin):
        yield


@mutant("accept-old-epoch", "a fenced session is still served", FENCED)
def _accept_old_epoch() -> Iterator[None]:
    def make(check_session: Any) -> Any:
        def planted(self: Machine, name: str, epoch: int) -> Any:
            client = self.clients.get(name)
            return client if client is not None else check_session(self, name, epoch)

        return planted

    with patched(Machine, "check_session", make):
        yield


@mutant("same-epoch", "a new session of a name is given the epoch of the old one", FENCED)
def _same_epoch() -> Iterator[None]:
    def make(on_open: Any) -> Any:
        def planted(self: Machine, command: commands.Open) -> int:
            client = self.clients.get(command.client)
            if client is None:
                return int(on_open(self, command))
            client.token = command.token
            return client.epoch

        return planted

    with patched(Machine, "_on_open", make):
        yield


@mutant("store-repetition", "a put that is sent again is stored again", TWICE)
def _store_repetition() -> Iterator[None]:
    def make(plan_one: Any) -> Any:
        def planted(owner: Machine, client: Any, batch: Any, target: messages.Target, *rest: Any) -> Any:
            track = client.tracks.get(target.topic)
            if track is not None and target.sequence <= track.last:
                target = messages.Target(target.topic, track.last + 1)
            return plan_one(owner, client, batch, target, *rest)

        return planted

    with patched(writing, "_plan_one", make):
        yield


@mutant("ignore-ids", "an id that the topic has already taken is not noticed", TWICE)
def _ignore_ids() -> Iterator[None]:
    with patched(Topic, "remember_ids", lambda _: lambda self, ids, time_ms: None):
        yield


@mutant("collect-unacked", "an unused topic goes although nobody has acked what is in it", UNUSED)
def _collect_unacked() -> Iterator[None]:
    def make(is_unused: Any) -> Any:
        def planted(owner: Machine, topic: Topic, now_ms: int) -> bool:
            idle_ms = owner.settings.topic_idle_ms
            return idle_ms is not None and owner.used_at_ms.get(topic.name, 0) < now_ms - idle_ms

        return planted

    with patched(collecting, "_is_unused", make):
        yield


@mutant("collect-passed-over", "a subscription from now on that ends counts for what was there before it", UNUSED)
def _collect_passed_over() -> Iterator[None]:
    def make(leave: Any) -> Any:
        def planted(self: Topic, start: int | None, cursor: int) -> None:
            leave(self, 0, cursor)

        return planted

    with patched(Topic, "leave", make):
        yield


@mutant("collect-with-ids", "an unused topic goes while its ids may come again", UNUSED, TWICE)
def _collect_with_ids() -> Iterator[None]:
    with patched(collecting, "_remembers_ids", lambda _: lambda owner, topic, now_ms: False):
        yield


@mutant("collect-offsets", "a topic that was collected begins again at offset 0", UNUSED, TWICE)
def _collect_offsets() -> Iterator[None]:
    def make(forget: Any) -> Any:
        def planted(owner: Machine, topic: Topic) -> None:
            forget(owner, topic)
            owner.retired.pop(topic.name, None)

        return planted

    with patched(collecting, "_forget", make):
        yield


@mutant("collect-sequences", "with a topic go the sequence numbers of its publishers", TWICE, LOST, PROGRESS, TOGETHER)
def _collect_sequences() -> Iterator[None]:
    def make(forget: Any) -> Any:
        def planted(owner: Machine, topic: Topic) -> None:
            forget(owner, topic)
            if topic.name not in owner.topics:
                for client in owner.clients.values():
                    client.tracks.pop(topic.name, None)

        return planted

    with patched(collecting, "_forget", make):
        yield


@mutant("several-only-first", "a put to several topics is stored in the first one only", TOGETHER)
def _several_only_first() -> Iterator[None]:
    def make(store: Any) -> Any:
        def planted(self: Machine, client: Any, batch: Any, plans: list[Any], *rest: Any) -> Any:
            stored = store(self, client, batch, plans[:1], *rest)
            nothing = messages.Stored(None, tuple((index, None) for index in range(batch.count)))
            return (*stored, *(nothing for _ in plans[1:]))

        return planted

    with patched(machine, "store", make):
        yield


@mutant("transaction-without-acks", "a transaction's puts happen and its acknowledgements do not", TOGETHER)
def _transaction_without_acks() -> Iterator[None]:
    def make(on_write: Any) -> Any:
        def planted(self: Machine, command: commands.Write, *rest: Any) -> Any:
            if command.batches:
                command = msgspec.structs.replace(command, acknowledgements=())
            return on_write(self, command, *rest)

        return planted

    with patched(Machine, "_on_write", make):
        yield


@mutant("cursor-back", "an old acknowledgement that comes late moves the cursor back", CURSORS)
def _cursor_back() -> Iterator[None]:
    def make(on_write: Any) -> Any:
        def planted(self: Machine, command: commands.Write, *rest: Any) -> Any:
            result = on_write(self, command, *rest)
            for each in command.acknowledgements:
                for position in each.positions:
                    self.subscriptions[command.client, each.topics].cursors[position.topic] = position.offset
            return result

        return planted

    with patched(Machine, "_on_write", make):
        yield


@mutant("drop-what-is-owed", "retention forgets what a subscription still waits for", ONCE, ASSERTIONS)
def _drop_what_is_owed() -> Iterator[None]:
    with patched(Machine, "owed_offset", lambda _: lambda self, topic: max(topic.first_offset, topic.next_offset - 1)):
        yield


# Delivery.


@mutant("cursor-before-ack", "the cursor moves when a message is sent", CURSORS)
def _cursor_before_ack() -> Iterator[None]:
    def make(fill: Any) -> Any:
        def planted(self: Dispatcher, stream: Any, topic: Topic) -> Any:
            delivery = fill(self, stream, topic)
            subscription: subscriptions.Subscription = stream.subscription
            subscription.cursors[topic.name] = max(subscription.cursors[topic.name], stream.positions[topic.name])
            return delivery

        return planted

    with patched(Dispatcher, "_fill", make):
        yield


@mutant("never-redelivered", "what an earlier session was given is not marked as redelivered", ONCE)
def _never_redelivered() -> Iterator[None]:
    with patched(Served, "attempt", lambda _: lambda self, topic, offset: (1, None)):
        yield


@mutant("several-through-each", "one message to several topics reaches one subscription through each", ONCE)
def _several_through_each() -> Iterator[None]:
    def make(own_ranks: Any) -> Any:
        def planted(self: Dispatcher, *arguments: Any) -> list[bool]:
            return [True for _ in own_ranks(self, *arguments)]

        return planted

    with patched(Dispatcher, "_own_ranks", make):
        yield


@mutant("track-forgets", "the memory of sequence numbers keeps only the last few", LOST, RECOVERY)
def _track_forgets() -> Iterator[None]:
    def make(take: Any) -> Any:
        def planted(self: Track, *arguments: Any) -> None:
            take(self, *arguments)
            del self.sequences[:-1], self.offsets[:-1], self.counts[:-1]

        return planted

    with patched(Track, "take", make):
        yield

"""What the commands of commits over several groups do to a group's state; `commits` says why they are as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never, cast

import msgspec

from tidings.errors import Fenced, LimitReached, Moved
from tidings.protocols.broker.bulk import StageName
from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.broker.staged import Query, Stage, sink_key
from tidings.protocols.broker.state import State
from tidings.protocols.broker.subscriptions import key_of
from tidings.protocols.broker.topics import Topic
from tidings.protocols.broker.writing import check_acknowledgement, plan, store
from tidings.protocols.ring.commit_commands import (
    BeginCommit,
    CommitCommand,
    DecideCommit,
    EndCommit,
    HoldPart,
    Publishing,
    ResolvePart,
    StagedPart,
    StoredParts,
)
from tidings.protocols.ring.commits import HeldPart, OpenCommit, bodies_of
from tidings.protocols.ring.key_ranges import finder, home_of, owns, point_of, without
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.transfer import is_anonymous
from tidings.settings import BrokerSettings


class Promised:
    """A broker's tables for a part that was promised: what others have filled up since does not count."""

    def __init__(self, state: State) -> None:
        self.topics: dict[str, Topic] = state.topics
        self.retired = state.retired
        self.settings: BrokerSettings = msgspec.structs.replace(state.settings, ids_max=1 << 62)
        self.used_at_ms = state.used_at_ms
        self.make_topic = state.make_topic

    def backlog_max(self, topic: Topic | None) -> None:
        """There was room when it was promised."""

    def check_puttable(self, name: str) -> None:
        """It was so when it was promised."""

    def check_topics_limit(self, more: int) -> None:
        """There was room when it was promised."""


def apply(machine: State, ring: Ownership, command: CommitCommand, time_ms: int, body_address: int) -> object:
    """Changes the state by one command; a refusal raises and changes nothing."""
    match command:
        case BeginCommit():
            _on_begin(machine, ring, command)
        case DecideCommit():
            return _on_decide(machine, ring, command, time_ms)
        case EndCommit(commit, client):
            known = ring.commits.open.get(client)
            if known is not None and known.commit == commit and known.happens:
                del ring.commits.open[client]
        case HoldPart():
            _on_hold(machine, ring, command, time_ms, body_address)
        case ResolvePart():
            return _on_resolve(machine, ring, command, time_ms)
        case _:
            assert_never(command)
    return None


# The coordinator.


def _check_home(ring: Ownership, client: str) -> None:
    if not owns(ring.ranges, home_of(client)):
        raise Moved(f"The name {client!r} is not looked after here: ask who owns its home.")


def _check_epoch(machine: State, client: str, epoch: int) -> None:
    known = machine.clients.get(client)
    if known is None or known.epoch != epoch:
        raise Fenced(f"A newer session of {client!r} has taken over: let one process at a time use that name.")


def _on_begin(machine: State, ring: Ownership, command: BeginCommit) -> None:
    _check_home(ring, command.client)
    if command.publishing is None:
        _check_epoch(machine, command.client, command.epoch)
    else:
        check_unpublished(machine, command.publishing)
        machine.check_session(command.publishing.client, command.epoch)
        machine.stages.check_queries(machine, command.client[1:])
    known = ring.commits.open.get(command.client)
    if known is not None:
        if known.commit == command.commit:
            return
        raise Moved(f"Another commit of {command.client.strip()!r} is under way: ask again.")
    _check_limit(machine, len(ring.commits.open))
    begun = OpenCommit(command.commit, command.epoch, command.groups, publishing=command.publishing)
    ring.commits.open[command.client] = begun


def check_unpublished(machine: State, publishing: Publishing) -> None:
    """Moved if a batch has been published meanwhile: that is the answer to who asks again."""
    if machine.stages.is_published(publishing.query, publishing.batch, publishing.sink):
        raise Moved(f"Batch {publishing.batch} of {publishing.query!r} has been published: ask again.")


def _check_limit(machine: State, count: int) -> None:
    most = machine.settings.commits_max
    if count >= most:
        raise LimitReached(f"{most} commits over several groups are under way (commits_max): raise the limit.")


def _on_decide(machine: State, ring: Ownership, command: DecideCommit, time_ms: int) -> bool:
    """Whether it happens, whatever this command wanted."""
    _check_home(ring, command.client)
    known = ring.commits.open.get(command.client)
    if known is None or known.commit != command.commit:
        return False
    publishing = known.publishing
    if not known.happens and command.happens:
        if publishing is None:
            _check_epoch(machine, command.client, known.epoch)
        else:
            _check_not_replaced(machine, publishing.client, known.epoch)
            query = Query(publishing.batch, time_ms, publishing.once, command.topics)
            machine.stages.queries[command.client[1:]] = query
        ring.commits.open[command.client] = known = msgspec.structs.replace(known, happens=True)
    elif not known.happens:
        del ring.commits.open[command.client]
    return known.happens


def _check_not_replaced(machine: State, client: str, epoch: int) -> None:
    known = machine.clients.get(client)
    if known is not None and known.epoch > epoch:
        raise Fenced(f"A newer session of {client!r} has taken over: let one process at a time use that name.")


# The owners.


def _on_hold(machine: State, ring: Ownership, command: HoldPart, time_ms: int, body_address: int) -> None:
    held = ring.commits.held.get(command.client)
    if held is not None and held.commit == command.commit:
        return
    ring.commits.check_free(command.client)
    if command.publishing is not None:
        _hold_stages(machine, ring, command, command.publishing, time_ms)
        return
    part = HeldPart(command.commit, command.epoch, command.batches, command.acknowledgements)
    for topic in part.topics:
        if not owns(ring.ranges, point_of(topic)):
            raise Moved(f"The topic {topic!r} is not owned here: ask who owns it.")
    client = machine.clients.get(command.client)
    if owns(ring.ranges, home_of(command.client)):  # Epochs are given here, and to be learned from nobody.
        _check_epoch(machine, command.client, command.epoch)
    else:
        _check_not_replaced(machine, command.client, command.epoch)
    _check_limit(machine, len(ring.commits.held))
    client = client or _new_client(machine, command.client, command.epoch)
    for acknowledgement in part.acknowledgements:
        check_acknowledgement(machine, client, acknowledgement)
    plan(machine, client, part.batches, time_ms)
    machine.clients[client.name] = client
    client.epoch = max(client.epoch, command.epoch)
    ring.commits.held[client.name] = part
    machine.stages.hold(bodies_of(command.commit), time_ms, [each.size_bytes for each in part.batches], body_address)


def _hold_stages(machine: State, ring: Ownership, command: HoldPart, publishing: Publishing, time_ms: int) -> None:
    """What there is of the stages stays as it is; whether that is all of them the coordinator knows."""
    if without(publishing.ranges, ring.ranges):
        raise Moved("Some topics of a batch are not owned here: ask who owns them.")
    _check_not_replaced(machine, publishing.client, command.epoch)
    _check_limit(machine, len(ring.commits.held))
    each = {named.name: _parts_of(machine, publishing, named) for named in publishing.stages}
    machine.stages.check_room(machine, [part for parts in each.values() for part in parts], time_ms)
    staged = []
    for name, parts in each.items():
        for part in parts:
            part.held = True
        count, topics = sum(part.count for part in parts), tuple(part.batches[0].topic for part in parts)
        staged.append(StagedPart(name, count, topics))
    held = HeldPart(command.commit, command.epoch, (), (), publishing, tuple(staged))
    ring.commits.held[command.client] = held


def _parts_of(machine: State, publishing: Publishing, named: StageName) -> list[Stage]:
    is_in = finder(publishing.ranges)
    key = sink_key(publishing.query, publishing.sink)
    return machine.stages.parts_of(named, key, publishing.batch, lambda topic: is_in(point_of(topic)))


def _new_client(machine: State, name: str, epoch: int) -> Client:
    if len(machine.clients) >= machine.settings.clients_max:
        raise LimitReached(f"{machine.settings.clients_max} names are in use (clients_max): raise the limit.")
    return Client(name, b"", is_anonymous(name), epoch)


def _on_resolve(machine: State, ring: Ownership, command: ResolvePart, time_ms: int) -> Grown | None:
    """Where everything went; None if it did not happen, or that is not known any more."""
    part = ring.commits.held.get(command.client)
    if part is None or part.commit != command.commit:
        stored = ring.commits.done.get(command.commit)
        return None if stored is None else Grown((), stored, ring.commits.published.get(command.commit, ()))
    del ring.commits.held[command.client]
    if part.publishing is not None:
        return _resolve_stages(machine, ring, command, part, part.publishing, time_ms)
    addresses = machine.stages.let_go(bodies_of(command.commit))
    if not command.happens:
        return None
    stored = _carry_out(machine, command.client, part, addresses, time_ms)
    ring.commits.remember(command.commit, stored, ())
    return Grown(part.topics, stored)


def _resolve_stages(
    machine: State, ring: Ownership, command: ResolvePart, part: HeldPart, publishing: Publishing, time_ms: int
) -> Grown | None:
    stages = [each for named in publishing.stages for each in _parts_of(machine, publishing, named) if each.held]
    for stage in stages:
        stage.held = False
    if not command.happens:
        return None
    extents = machine.stages.carry_out(cast(State, Promised(machine)), stages, time_ms)
    ring.commits.remember(command.commit, (), extents)
    machine.stages.published(machine, command.client[1:], Query(publishing.batch, time_ms, publishing.once, ()))
    return Grown(part.topics, (), extents)


def _carry_out(machine: State, name: str, part: HeldPart, addresses: Sequence[int], time_ms: int) -> StoredParts:
    client = machine.clients.get(name)
    if client is None:  # Nothing else of it was here, and it was forgotten with what was handed off.
        client = machine.clients[name] = Client(name, b"", is_anonymous(name), part.epoch)
    plans = plan(cast(State, Promised(machine)), client, part.batches, time_ms)
    each = zip(part.batches, plans, addresses, strict=True)
    stored = tuple(
        store(machine, client, batch, targets, time_ms, address, batch.other_topics) for batch, targets, address in each
    )
    for acknowledgement in part.acknowledgements:
        subscription = machine.subscriptions.get(key_of(name, acknowledgement.topics, acknowledgement.whole))
        if subscription is None:
            continue  # It has been ended meanwhile.
        for position in acknowledgement.positions:
            cursors = subscription.cursors
            cursors[position.topic] = max(cursors[position.topic], position.offset)
    return stored

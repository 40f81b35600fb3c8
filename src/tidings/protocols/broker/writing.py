"""Putting batches into topics: first worked out for all of them, then done, so that nothing happens by halves.

A batch may hold messages that a topic already has: by their sequence numbers (the batch, or a part of it, was sent
before) or by their ids. Its body is stored as it came; the index says which of its messages count.
"""

from __future__ import annotations

import msgspec

from tidings.errors import (
    InvalidRequest,
    LimitReached,
    MessageTooLarge,
    NotSubscribed,
    OutOfSequence,
    Overloaded,
    ProtocolError,
)
from tidings.message import Contents, check_topic
from tidings.protocols.broker.clients import Client, Track
from tidings.protocols.broker.commands import BatchWrite
from tidings.protocols.broker.messages import Acknowledgement, Part, Position, Stored, Target
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Topic
from tidings.settings import BrokerSettings


def check_batch(
    settings: BrokerSettings, client: str, count: int, body: bytes | memoryview, contents: Contents
) -> None:
    """Raises what speaks against a batch that a client sent, wherever it is to go."""
    if count != contents.count or not count:
        raise ProtocolError(f"The batch says {count} messages and holds {contents.count}: count again.")
    if count > settings.batch_messages_max or len(body) > settings.batch_bytes_max:
        raise MessageTooLarge(
            f"A batch of {count} messages and {len(body)} bytes is above the limits "
            f"batch_messages_max ({settings.batch_messages_max}) and batch_bytes_max "
            f"({settings.batch_bytes_max}): send smaller ones."
        )
    if contents.publisher != client:
        raise ProtocolError(
            f"The batch names {contents.publisher!r} as its publisher, but {client!r} sent it: give your own name."
        )


def given_ids(contents: Contents) -> tuple[str | None, ...] | None:
    """The callers' own ids in a batch, None when no message has one."""
    if contents.ids is None or all(each is None for each in contents.ids):
        return None
    return tuple(contents.ids)


def check_part(machine: State, client: str, part: Part, body: bytes | memoryview, contents: Contents) -> BatchWrite:
    """A part of a put as a command has it; raises what the applied state already says against it."""
    batch = check_form(machine.settings, client, part, body, contents)
    for target in part.targets:
        if target.topic not in machine.topics:
            machine.check_puttable(target.topic)
    return batch


def check_form(
    settings: BrokerSettings, client: str, part: Part, body: bytes | memoryview, contents: Contents
) -> BatchWrite:
    """A part of a put as a command has it; raises what speaks against it wherever its topics are."""
    targets, count = part.targets, part.count
    if not targets or len(targets) > settings.topics_per_request_max:
        raise LimitReached(
            f"A message goes to 1 to {settings.topics_per_request_max} topics (topics_per_request_max), "
            f"not {len(targets)}: name fewer."
        )
    check_batch(settings, client, count, body, contents)
    for target in targets:
        if target.sequence < 1:
            raise ProtocolError(f"Sequence numbers start at 1, not {target.sequence}.")
        check_topic(target.topic)
    if len(targets) > 1 and len({target.topic for target in targets}) != len(targets):
        raise InvalidRequest("A topic is named twice in one put: name each once.")
    return BatchWrite(targets, count, len(body), given_ids(contents))


NOT_HERE = 0
"""In place of an offset that another owner gave: nobody looks there."""


class Plan(msgspec.Struct):
    """What a batch will do to one topic, worked out before anything is changed."""

    topic: str
    sequence: int
    first_offset: int
    count: int
    kept: tuple[int, ...] | None
    repeated: tuple[tuple[int, int | None], ...]
    ids: list[tuple[str, int]]

    @property
    def stored_count(self) -> int:
        return self.count if self.kept is None else len(self.kept)


def store_next(machine: State, client: Client, batch: BatchWrite, time_ms: int, address: int) -> Stored | None:
    """Stores a batch that does no more than follow its publisher's last one in one topic; None for any other.

    Nearly every batch does, and then there is nothing to be worked out first.
    """
    if len(batch.targets) != 1 or batch.ids is not None or machine.settings.max_backlog is not None:
        return None
    [target] = batch.targets
    name, sequence, count = target.topic, target.sequence, batch.count
    topic = machine.topics.get(name)
    track = client.tracks.get(name)
    if topic is None or track is None or sequence != track.last + 1 or topic.max_backlog:
        return None
    first_offset = topic.next_offset
    topic.append(address, batch.size_bytes, count, None, None, time_ms)
    track.take(sequence, first_offset, count)
    machine.used_at_ms[name] = time_ms
    return Stored(first_offset)


def plan(machine: State, client: Client, batches: tuple[BatchWrite, ...], time_ms: int) -> list[list[Plan]]:
    """What each batch will do to each of its topics; raises if any of it is refused."""
    lasts: dict[str, int] = {}
    nexts: dict[str, int] = {}
    ids: dict[tuple[str, str], int] = {}
    new = {target.topic: None for batch in batches for target in batch.targets if target.topic not in machine.topics}
    machine.check_topics_limit(len(new))
    return [
        [_plan_one(machine, client, batch, target, time_ms, lasts, nexts, ids) for target in batch.targets]
        for batch in batches
    ]


def _plan_one(
    machine: State,
    client: Client,
    batch: BatchWrite,
    target: Target,
    time_ms: int,
    lasts: dict[str, int],
    nexts: dict[str, int],
    fresh: dict[tuple[str, str], int],
) -> Plan:
    """`lasts`, `nexts` and `fresh` are what earlier batches of the same command will have changed."""
    name = target.topic
    machine.check_puttable(name)
    topic = machine.topics.get(name)
    track = client.tracks.get(name)
    last = lasts.get(name, track.last if track else 0)
    if target.sequence > last + 1:
        raise OutOfSequence(
            f"{client.name!r} sent number {target.sequence} to {name!r}, and {last + 1} is the next: "
            "ask for the last sequence number and continue from there."
        )
    first_offset = nexts.get(name, topic.next_offset if topic else machine.retired.get(name, 0))
    taken = min(batch.count, last - target.sequence + 1)
    repeated: list[tuple[int, int | None]] = []
    if taken > 0:
        # Numbers above the track's last were taken by an earlier batch of this very command.
        before = track.last if track else 0
        kept_from = topic.first_offset if topic else machine.retired.get(name, 0)
        repeated = [
            (index, track.find(number, kept_from) if track and number <= before else None)
            for index, number in enumerate(range(target.sequence, target.sequence + taken))
        ]
    kept: tuple[int, ...] | None = tuple(range(taken, batch.count)) if taken > 0 else None
    taken_ids: list[tuple[str, int]] = []
    if batch.ids is not None:
        kept, taken_ids = plan_ids(machine, name, batch.ids, max(taken, 0), first_offset, time_ms, fresh, repeated)
    plan = Plan(name, target.sequence, first_offset, batch.count, kept, tuple(repeated), taken_ids)
    if plan.stored_count:
        check_backlog(machine, name, first_offset + plan.stored_count)
    lasts[name] = max(last, target.sequence + batch.count - 1)
    nexts[name] = first_offset + plan.stored_count
    return plan


def check_acknowledgement(machine: State, client: Client, acknowledgement: Acknowledgement) -> None:
    """Raises what speaks against an acknowledgement that comes with a write."""
    subscription = machine.find_subscription(client.name, acknowledgement.topics, acknowledgement.whole)
    subscription.check_created(acknowledgement.created_epoch)
    for position in acknowledgement.positions:
        if position.topic not in subscription.cursors:
            raise NotSubscribed(f"The subscription has no topic {position.topic!r}: acknowledge its own.")
        if position.offset > machine.topics[position.topic].next_offset:
            raise InvalidRequest(
                f"Offset {position.offset} of {position.topic!r} cannot be acknowledged: it does not exist yet."
            )


def check_backlog(machine: State, name: str, next_offset: int) -> None:
    """Overloaded when more would wait than may; nothing is dropped in silence."""
    topic = machine.topics.get(name)
    backlog_max = machine.backlog_max(topic)
    if not backlog_max:
        return
    waiting = next_offset - (machine.waited_offset(topic) if topic else machine.retired.get(name, 0))
    if waiting > backlog_max:
        raise Overloaded(
            f"{waiting} messages would wait in {name!r}, above its limit of {backlog_max} (max_backlog): "
            "put again when its subscribers have caught up."
        )


def plan_ids(
    machine: State,
    name: str,
    ids: tuple[str | None, ...],
    skip: int,
    first_offset: int,
    time_ms: int,
    fresh: dict[tuple[str, str], int],
    repeated: list[tuple[int, int | None]],
) -> tuple[tuple[int, ...] | None, list[tuple[str, int]]]:
    """Leaves out messages whose id the topic has already taken."""
    known: dict[str, int] = {}
    topic = machine.topics.get(name)
    if topic is not None:
        topic.forget_ids(time_ms - machine.settings.ids_age_ms)
        known = topic.ids
    kept: list[int] = []
    taken: list[tuple[str, int]] = []
    for index in range(skip, len(ids)):
        name_of_message = ids[index]
        if name_of_message is not None:
            earlier = known.get(name_of_message)
            if earlier is None:
                earlier = fresh.get((name, name_of_message))
            if earlier is not None:
                repeated.append((index, earlier))
                continue
            offset = first_offset + len(kept)
            fresh[name, name_of_message] = offset
            taken.append((name_of_message, offset))
        kept.append(index)
    if len(known) + len(taken) > machine.settings.ids_max:
        raise LimitReached(
            f"The topic {name!r} already remembers {machine.settings.ids_max} ids (ids_max): "
            "raise the limit or remember them for a shorter time (ids_age_ms)."
        )
    return (None if len(kept) == len(ids) else tuple(kept)), taken


def store(
    machine: State,
    client: Client,
    batch: BatchWrite,
    plans: list[Plan],
    time_ms: int,
    address: int,
    other_topics: tuple[str, ...] = (),
) -> tuple[Stored, ...]:
    """Does what was planned. `other_topics` are topics of other owners to which the same messages go."""
    shared = None
    if len(plans) > 1 or other_topics:
        places = ((plan.topic, plan.first_offset) for plan in plans if plan.stored_count)
        shared = tuple(Position(*place) for place in (*places, *((name, NOT_HERE) for name in other_topics)))
    stored: list[Stored] = []
    for plan in plans:
        topic = machine.topics.get(plan.topic)
        if topic is None:
            topic = machine.make_topic(plan.topic, time_ms)
        track = client.tracks.get(plan.topic)
        if track is None:
            track = client.tracks[plan.topic] = Track()
        if plan.kept is None:
            topic.append(address, batch.size_bytes, plan.count, None, shared, time_ms)
            track.take(plan.sequence, plan.first_offset, plan.count)
        else:
            _store_thinned(topic, track, plan, batch, address, shared, time_ms)
        if plan.ids:
            topic.remember_ids(plan.ids, time_ms)
        machine.used_at_ms[plan.topic] = time_ms
        stored.append(Stored(plan.first_offset if plan.stored_count else None, plan.repeated))
    return tuple(stored)


def _store_thinned(
    topic: Topic,
    track: Track,
    plan: Plan,
    batch: BatchWrite,
    address: int,
    shared: tuple[Position, ...] | None,
    time_ms: int,
) -> None:
    """Some messages of this batch are repeated: the body stays whole, the index says which ones count."""
    assert plan.kept is not None
    if plan.kept:
        topic.append(address, batch.size_bytes, len(plan.kept), plan.kept, shared, time_ms)
    places: dict[int, int | None] = dict(plan.repeated)
    places.update({index: plan.first_offset + rank for rank, index in enumerate(plan.kept)})
    for index in range(plan.count):
        place = places[index]
        if plan.sequence + index > track.last and place is not None:
            track.take(plan.sequence + index, place, 1)

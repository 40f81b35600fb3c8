"""What the commands of a ring do to a broker's state.

A target's topics grow batch by batch (`Load`), and get the rest of what they are by facts, which have to come in the
order of their list: so that the last one says that all of them are there. Nothing of it is served before `TakeOver`.

**What a group brings.** Its source had no topic where one of its own lies (`HandOff.vacant`), so topics are never
mixed. A client's name may be known on both sides, with epochs that know nothing of each other. The greater one wins
with its session, and the other session is fenced. Of two that are the same nobody can tell the requests apart, so the
next epoch begins, and both are fenced unless they say hello again: that of the ring may, that of the joiner may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from tidings.errors import InvalidRequest, LimitReached, Moved
from tidings.protocols.broker.clients import Client, Track
from tidings.protocols.broker.commands import Adopt
from tidings.protocols.broker.staged import RECORD_BYTES, Stage, StagedBatch, home_name
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Topic
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.commands import (
    Depart,
    Drop,
    Facts,
    HandOff,
    Know,
    Load,
    LoadedTopic,
    Seek,
    TakeOver,
    TransferCommand,
)
from tidings.protocols.ring.facts import (
    END,
    TOPICS,
    Edges,
    Epoch,
    Fact,
    Home,
    Ids,
    Known,
    Mark,
    Published,
    Reader,
    Retired,
    Runs,
    Sharers,
    Staged,
)
from tidings.protocols.ring.key_ranges import KeyRanges, common, finder, home_of, owns, point_of
from tidings.protocols.ring.ownership import Ownership, TakingOver


class AtHome(msgspec.Struct, frozen=True):
    """What the home of a name says of it to another group."""

    epoch: int
    is_noted: bool
    """That group is told of newer epochs."""


ANONYMOUS = "anonymous-"
TOKEN_DIGITS = 16
"""Names that a client makes up end with so many hexadecimal digits."""


def is_anonymous(name: str) -> bool:
    """Whether a client has made up this name for one session: the owner of a topic sees only the name.

    >>> is_anonymous("anonymous-0123456789abcdef"), is_anonymous("worker/0123456789abcdef"), is_anonymous("ann/desk")
    (True, True, False)
    """
    _, slash, digits = name.rpartition("/")
    made_up = len(digits) == TOKEN_DIGITS and all(digit in "0123456789abcdef" for digit in digits)
    return name.startswith(ANONYMOUS) or (slash == "/" and made_up)


def apply(machine: State, ring: Ownership, command: TransferCommand, body_address: int) -> object:
    """Changes the state by one command; a refusal raises and changes nothing."""
    match command:
        case Know(descriptors):
            ring.know(descriptors)
        case Adopt():
            return _on_adopt(machine, ring, command)
        case Depart(wanted):
            ring.departs = wanted
        case Seek():
            _on_seek(machine, ring, command)
        case Load():
            _on_load(machine, ring, command, body_address)
        case Facts():
            _on_facts(machine, ring, command, body_address)
        case TakeOver():
            _on_take_over(ring, command)
        case HandOff():
            _on_hand_off(machine, ring, command)
        case Drop(number):
            if ring.handing_off is not None and ring.handing_off.number == number:
                forget(machine, ring, ring.handing_off.ranges)
                ring.drop()
        case _:
            assert_never(command)
    return None


def _on_adopt(machine: State, ring: Ownership, command: Adopt) -> int | AtHome:
    client = machine.clients.get(command.client)
    if command.group:
        return _on_note(ring, client, command)
    if ring.owns_home(command.client):
        return client.epoch if client is not None else 0  # Epochs are given here, and to be learned from nobody.
    if client is None and len(machine.clients) >= machine.settings.clients_max:
        raise LimitReached(f"{machine.settings.clients_max} names are in use (clients_max): raise the limit.")
    client = _adopt(machine, ring, Known(command.client, command.epoch, is_anonymous(command.client)))
    client.is_noted = client.is_noted or command.is_noted
    return client.epoch


def _on_note(ring: Ownership, client: Client | None, command: Adopt) -> AtHome:
    """A group that meets a name is told of its epochs from now on, and of the one of this moment.

    Not of names without a session here, or which may be forgotten with the list: there the group has to ask each time.
    """
    if not owns(ring.ranges, home_of(command.client)):
        raise Moved(f"The name {command.client!r} has its home in another group: ask that one.")
    if client is None or not client.token or client.anonymous:
        return AtHome(client.epoch if client is not None else 0, False)
    client.note((command.group,))
    return AtHome(client.epoch, True)


def _adopt(machine: State, ring: Ownership, known: Known) -> Client:
    """The client, with the epoch that is known of it unless a higher one is known here."""
    client = machine.clients.get(known.name)
    if client is None:
        client = machine.clients[known.name] = Client(known.name, b"", known.anonymous, known.epoch)
    if known.epoch > client.epoch and client.token and home_of(known.name) in ring.strays:
        client.past_tokens.append(client.token)  # The session of that epoch is another one, so this one is over.
        client.token = b""
    client.epoch = max(client.epoch, known.epoch)
    return client


# Giving.


def points_of(machine: State) -> list[Key]:
    """Where anything lies that a broker has or remembers: its topics, and the homes of its clients."""
    homes = (home_of(client.name) for client in machine.clients.values() if client.token)
    return sorted(dict.fromkeys((*map(point_of, _names(machine)), *homes)))


def topics_in(machine: State, ranges: KeyRanges) -> Iterator[str]:
    """The topics in some ranges, also those that were collected and are remembered for their offsets or publishers, for
    which something is staged, or of whose names are queries, or their sinks, of which is known what they published.
    """
    is_in = finder(ranges)
    return (name for name in _names(machine) if is_in(point_of(name)))


def _names(machine: State) -> dict[str, None]:
    put_to = (name for client in machine.clients.values() for name in client.tracks)
    published = map(home_name, machine.stages.queries)
    return dict.fromkeys((*machine.topics, *machine.retired, *put_to, *machine.stages.topics(), *published))


def _on_hand_off(machine: State, ring: Ownership, command: HandOff) -> None:
    if ring.handing_off is not None:
        raise InvalidRequest("Something else is being given: one transfer after the other.")
    ranges = common(ring.ranges, command.ranges)
    if not ranges:
        raise Moved("Nothing of that is owned here: it cannot be given.")
    name = next(topics_in(machine, common(ranges, command.vacant)), None) if command.vacant else None
    if name is not None:
        raise InvalidRequest(f"The topic {name!r} is here, where the target has one of its own: it cannot be given.")
    if ring.commits.is_busy(ranges):
        raise InvalidRequest("A commit over several groups concerns these ranges: they are given when it is decided.")
    ring.hand_off(ranges, command.target)


def forget(machine: State, ring: Ownership, ranges: KeyRanges) -> None:
    """All topics in some ranges go, with all that belongs to them, and so do homes of clients."""
    for name in [name for name in machine.topics if owns(ranges, point_of(name))]:
        del machine.topics[name]
        machine.used_at_ms.pop(name, None)
    for name in [name for name in machine.retired if owns(ranges, point_of(name))]:
        del machine.retired[name]
    machine.stages.forget(lambda topic: owns(ranges, point_of(topic)))
    idle: dict[str, None] = {}
    for name in [name for name in machine.readers if owns(ranges, point_of(name))]:
        for key in machine.readers.pop(name):
            machine.subscriptions.pop(key, None)
            if machine.owned.get(key[0], {}).pop(key, None) is not None:
                idle[key[0]] = None
    for name in [name for name in machine.groups_of if owns(ranges, point_of(name))]:
        for group_key, group in machine.groups_of.pop(name).items():
            del machine.groups[group_key]
            idle.update(dict.fromkeys(group.members))
    for client in machine.clients.values():
        for name in [name for name in client.tracks if owns(ranges, point_of(name))]:
            del client.tracks[name]
            idle[client.name] = None
        if owns(ranges, home_of(client.name)):
            client.token = b""
            client.past_tokens.clear()
            client.noted = None
            idle[client.name] = None
    _forget_idle(machine, ring, idle)


def _forget_idle(machine: State, ring: Ownership, names: dict[str, None]) -> None:
    """Clients go that have nothing here any more; when they come again, they bring their epoch."""
    members = {name: None for group in machine.groups.values() for name in group.members}
    taking_over = ring.taking_over.ranges if ring.taking_over is not None else ()
    for name in names:
        client = machine.clients.get(name)
        if client is None or client.tracks or machine.owned.get(name) or name in members:
            continue
        if not ring.owns_home(name) and not owns(taking_over, home_of(name)):
            del machine.clients[name]
            machine.owned.pop(name, None)


def is_held(machine: State, ring: Ownership, client: Client) -> bool:
    """Whether something of a client is on its way to another group, or from one, and has to stay as it is."""
    handing_off = ring.handing_off.ranges if ring.handing_off is not None else ()
    taking_over = ring.taking_over.ranges if ring.taking_over is not None and ring.taking_over.number else ()
    held = (*handing_off, *taking_over)
    if not held:
        return False
    return (
        owns(held, home_of(client.name))
        or any(owns(held, point_of(name)) for name in client.tracks)
        or any(owns(held, point_of(each.topics[0])) for each in machine.owned.get(client.name, {}).values())
        or any(client.name in group.members and owns(held, point_of(group.topic)) for group in machine.groups.values())
    )


# Taking.


def _on_seek(machine: State, ring: Ownership, command: Seek) -> None:
    taking_over = ring.taking_over
    if taking_over is not None and taking_over.number:
        if (taking_over.source, taking_over.number) == (command.source, command.number):
            return
        raise InvalidRequest("A transfer is being taken: one after the other.")
    if not command.ranges:
        ring.taking_over = None
        _forget_loaded(machine, ring)
        return
    if command.number and ring.taken_over.get(command.source, 0) >= command.number:
        return
    if common(command.ranges, (*ring.ranges, *(ring.handing_off.ranges if ring.handing_off else ()))):
        raise InvalidRequest("What is owned here, or not yet forgotten, cannot be taken.")
    sought = TakingOver(command.source, command.ranges, command.number)
    if sought != taking_over:
        ring.taking_over = sought
        _forget_loaded(machine, ring)


def _forget_loaded(machine: State, ring: Ownership) -> None:
    """Topics go of which something was loaded that nobody takes any more."""
    kept = (
        *ring.ranges,
        *(ring.handing_off.ranges if ring.handing_off else ()),
        *(ring.taking_over.ranges if ring.taking_over else ()),
    )
    for name in [name for name in machine.topics if not owns(kept, point_of(name)) and not ring.owns_topic(name)]:
        del machine.topics[name]
        machine.used_at_ms.pop(name, None)
    machine.stages.forget(lambda topic: not owns(kept, point_of(topic)) and not ring.owns_topic(topic))


def _on_load(machine: State, ring: Ownership, command: Load, body_address: int) -> None:
    taking_over = ring.taking_over
    if taking_over is None or not all(owns(taking_over.ranges, point_of(each.topic)) for each in command.topics):
        raise Moved("Batches have come of a topic that is not being taken.")
    _check_apart(ring, (each.topic for each in command.topics))
    ends = [_check_load(machine.topics.get(each.topic), each) for each in command.topics]
    address = body_address
    for loaded, end in zip(command.topics, ends, strict=True):
        finished = Mark(TOPICS, loaded.topic, 0) < taking_over.mark
        for batch in loaded.batches:
            if batch.first_offset >= end and not finished:
                topic = machine.topics.get(loaded.topic)
                if topic is None or topic.next_offset < batch.first_offset:
                    topic = machine.topics[loaded.topic] = Topic(loaded.topic, end, end)
                topic.append(address, batch.size_bytes, batch.count, batch.kept, batch.shared, batch.time_ms)
            address += batch.size_bytes


def _check_apart(ring: Ownership, names: Iterator[str]) -> None:
    """Nothing of another group is put to what this one brings."""
    name = next((name for name in names if point_of(name) in ring.strays), None)
    if name is not None:
        raise InvalidRequest(f"The topic {name!r} has come from where this group has one of its own.")


def _check_load(topic: Topic | None, loaded: LoadedTopic) -> int:
    """From which offset on the batches are new; raises if something between is missing.

    What the source has let go is not missed: it may be more than all that was loaded before.
    """
    end = loaded.first_offset if topic is None else max(topic.next_offset, loaded.first_offset)
    following = end
    for batch in loaded.batches:
        if batch.first_offset >= end:
            if batch.first_offset != following:
                raise InvalidRequest(f"Of {loaded.topic!r} the offsets from {following} on are missing.")
            following += batch.count
        elif batch.first_offset + batch.count > end:
            raise InvalidRequest(f"A batch of {loaded.topic!r} begins at {batch.first_offset} and was cut at {end}.")
    return end


def _on_facts(machine: State, ring: Ownership, command: Facts, body_address: int) -> None:
    taking_over = ring.taking_over
    if (
        taking_over is None
        or not taking_over.number
        or (taking_over.source, taking_over.number) != (command.source, command.number)
    ):
        raise InvalidRequest("Facts have come of a transfer that is not being taken.")
    if command.end <= taking_over.mark:
        return
    if command.start != taking_over.mark:
        raise InvalidRequest("Some facts before these are missing.")
    _check_apart(ring, (fact.topic for fact in command.facts if isinstance(fact, Edges | Retired | Ids | Runs)))
    for fact in command.facts:
        if isinstance(fact, Edges) and fact.first_offset < fact.next_offset:
            topic = machine.topics.get(fact.topic)
            if topic is None or topic.next_offset != fact.next_offset:
                raise InvalidRequest(f"Not all of {fact.topic!r} is here: load it first.")
    address = body_address
    for fact in command.facts:
        if isinstance(fact, Staged):
            _apply_staged(machine, fact, address)
            address += fact.size_bytes
        else:
            _apply_fact(machine, ring, fact)
    ring.taking_over = msgspec.structs.replace(taking_over, mark=command.end)


def _apply_staged(machine: State, fact: Staged, address: int) -> None:
    empty = Stage(fact.name, fact.query, fact.batch, fact.at_ms, 0, [], fact.sink, fact.last)
    stage = machine.stages.load(empty)
    assert len(stage.batches) == fact.index, "facts come in their order"
    stage.batches.append(StagedBatch(fact.topic, address, fact.size_bytes, fact.count, fact.ids))
    stage.size_bytes += fact.size_bytes + RECORD_BYTES


def _apply_published(machine: State, fact: Published) -> None:
    known = machine.stages.queries.get(fact.key)
    if known is None or known.batch <= fact.query.batch:
        machine.stages.queries[fact.key] = fact.query


def _apply_fact(machine: State, ring: Ownership, fact: Fact) -> None:
    match fact:
        case Published():
            _apply_published(machine, fact)
        case Staged():
            raise AssertionError("What is staged has a body.")
        case Edges():
            _apply_edges(machine, fact)
        case Retired(name, next_offset):
            machine.topics.pop(name, None)
            machine.used_at_ms.pop(name, None)
            if next_offset:
                machine.retired[name] = next_offset
        case Ids(name, ids):
            for at_ms, each, offset in ids:
                machine.topics[name].remember_ids([(each, offset)], at_ms)
        case Runs():
            _apply_runs(machine, ring, fact)
        case Reader(known, subscription):
            _adopt(machine, ring, known)
            copied = msgspec.structs.replace(
                subscription,
                cursors=dict(subscription.cursors),
                starts=dict(subscription.starts),
                sent=dict(subscription.sent),
            )
            machine.remember_subscription(copied)
        case Sharers(group, clients):
            for known in clients:
                _adopt(machine, ring, known)
            machine.remember_group(group.restore())
        case Epoch(known):
            _adopt(machine, ring, known)
        case Home():
            _apply_home(machine, ring, fact)
        case _:
            assert_never(fact)


def _apply_edges(machine: State, fact: Edges) -> None:
    name = fact.topic
    if fact.first_offset == fact.next_offset:
        topic = machine.topics[name] = Topic(name, fact.next_offset, fact.next_offset)
    else:
        topic = machine.topics[name]
        topic.trim(fact.first_offset)
    assert (topic.first_offset, topic.next_offset) == (fact.first_offset, fact.next_offset)
    topic.acked_offset, topic.fully_acked_offset = fact.acked_offset, fact.fully_acked_offset
    topic.max_backlog = fact.max_backlog
    machine.used_at_ms[name] = fact.used_at_ms
    machine.retired.pop(name, None)


def _apply_home(machine: State, ring: Ownership, fact: Home) -> None:
    known, own = fact.client, machine.clients.get(fact.client.name)
    if own is None or not own.token or home_of(own.name) not in ring.strays:
        client = _adopt(machine, ring, known)
        client.token, client.anonymous = fact.token, known.anonymous
        client.past_tokens.clear()
        client.past_tokens.extend(fact.past_tokens)
        client.noted = fact.noted
        return
    own.note(fact.noted)
    own.anonymous = own.anonymous and known.anonymous
    if own.token == fact.token:
        own.epoch = max(own.epoch, known.epoch)
    elif own.epoch > known.epoch:
        own.past_tokens.extend((*fact.past_tokens, fact.token))
    else:
        own.epoch = known.epoch if known.epoch > own.epoch else own.epoch + 1
        own.past_tokens.extend((*fact.past_tokens, own.token))
        own.token = fact.token


def _apply_runs(machine: State, ring: Ownership, fact: Runs) -> None:
    tracks = _adopt(machine, ring, fact.client).tracks
    if not fact.continued:
        tracks[fact.topic] = Track(fact.last)
    track = tracks[fact.topic]
    track.sequences.frombytes(fact.sequences)
    track.offsets.frombytes(fact.offsets)
    track.counts.frombytes(fact.counts)


def _on_take_over(ring: Ownership, command: TakeOver) -> None:
    if ring.taken_over.get(command.source, 0) >= command.number:
        return
    taking_over = ring.taking_over
    if taking_over is None or (taking_over.source, taking_over.number) != (command.source, command.number):
        raise InvalidRequest("That transfer is not being taken.")
    if taking_over.mark != END:
        raise InvalidRequest("Not all of the transfer is here.")
    ring.take_over()

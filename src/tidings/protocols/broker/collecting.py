"""Groups without members and topics that nobody uses go after a while.

Only the leader decides, by its settings; the decision is a journaled `Collect`, so that every replica forgets the same.
What somebody may still wait for never goes:

- A group goes once everything in its topic is acked.
- A topic goes if it has no subscription, no group and no limit of its own, nothing was put to it for a while, and it
  is empty. With `topic_idle_ms`, it also goes with messages in it, if each was acked by those it was meant for, or is
  older than `retain_age_ms`. What nobody was ever subscribed to is not acked.
- While a topic remembers ids, it stays: a put that comes again with one of them must find it.

Of a topic that has gone, its next offset and its publishers' sequence numbers are kept for good. So offsets go on where
they had stopped, and a put that is sent again is still a duplicate.
"""

from __future__ import annotations

from tidings.protocols.broker.commands import Collect
from tidings.protocols.broker.consumer_groups.groups import Group
from tidings.protocols.broker.messages import Position
from tidings.protocols.broker.state import State
from tidings.protocols.broker.topics import Topic


def collect_due(machine: State, now_ms: int) -> Collect | None:
    """The command that forgets groups without members and topics that nobody uses, None when there are none."""
    before_ms = now_ms - machine.settings.collect_after_ms
    groups = tuple(
        key
        for key, group in machine.groups.items()
        if machine.owns(group.topic) and group.empty_since_ms < before_ms and _is_done(machine, group)
    )
    topics: list[str] = []
    unused: list[Position] = []
    for name, topic in machine.topics.items():
        if _is_wanted(machine, topic) or not machine.owns(name) or _remembers_ids(machine, topic, now_ms):
            continue
        if _used_before(machine, name, before_ms) and _may_go_acked(machine, topic):
            topics.append(name)
        elif _is_unused(machine, topic, now_ms):
            unused.append(Position(name, topic.next_offset))
    return Collect(groups, tuple(topics), tuple(unused)) if groups or topics or unused else None


def collect(machine: State, command: Collect, time_ms: int) -> None:
    """Forgets what a command names, as far as nobody has begun to use it since the command was made."""
    for key in command.groups:
        group = machine.groups.get(key)
        if group is not None and machine.owns(group.topic) and _is_done(machine, group):
            del machine.groups[key]
            del machine.groups_of[group.topic][key]
            machine.topics[group.topic].leave(group.start, group.progress.low)
            machine.used_at_ms[group.topic] = time_ms
    for name in command.topics:
        topic = machine.topics.get(name)
        if topic is not None and _may_go_acked(machine, topic):
            _forget(machine, topic)
    for position in command.unused:
        topic = machine.topics.get(position.topic)
        if topic is not None and topic.next_offset == position.offset:
            _forget(machine, topic)


def _forget(machine: State, topic: Topic) -> None:
    name = topic.name
    if _is_wanted(machine, topic) or not machine.owns(name):
        return
    if topic.next_offset:
        machine.retired[name] = topic.next_offset
        for client in machine.clients.values():
            if name in client.tracks:
                client.tracks[name].trim(topic.next_offset)
    del machine.topics[name]
    machine.used_at_ms.pop(name, None)


def _is_wanted(machine: State, topic: Topic) -> bool:
    """Whether somebody reads it, or has given it a limit of its own, which is kept with it."""
    name = topic.name
    return bool(machine.readers.get(name) or machine.groups_of.get(name)) or topic.max_backlog is not None


def _is_done(machine: State, group: Group) -> bool:
    return not group.members and group.progress.low == machine.topics[group.topic].next_offset


def _used_before(machine: State, name: str, before_ms: int) -> bool:
    return machine.used_at_ms.get(name, 0) < before_ms


def _may_go_acked(machine: State, topic: Topic) -> bool:
    """Whether it holds nothing, or only what readers have acked and the settings let go."""
    return not topic.offsets or (machine.settings.drop_acknowledged and topic.acked_offset == topic.next_offset)


def _remembers_ids(machine: State, topic: Topic, now_ms: int) -> bool:
    return bool(topic.id_times) and topic.id_times[-1][0] >= now_ms - machine.settings.ids_age_ms


def _is_unused(machine: State, topic: Topic, now_ms: int) -> bool:
    """Whether a topic may go with all its messages."""
    settings = machine.settings
    if settings.topic_idle_ms is None or not _used_before(machine, topic.name, now_ms - settings.topic_idle_ms):
        return False
    if topic.fully_acked_offset >= topic.next_offset:
        return True
    stored_at_ms = topic.times[-1] if topic.times else 0
    return settings.retain_age_ms is not None and 0 < stored_at_ms < now_ms - settings.retain_age_ms

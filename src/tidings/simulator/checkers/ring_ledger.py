"""The ledger of a ring: what each group must know, and where each topic is.

Every group has a reference machine of its own, which is fed with what that group has decided. A topic is held by the
group that owns it, and from `HandOff` to `TakeOver` still by the one that gave it; what the checkers of one broker ask
of "the reference" is asked of the holder's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.staged import HELD, home_name
from tidings.protocols.ring.key_ranges import KeyRanges, home_of, joined, owns, point_of, without
from tidings.protocols.ring.policy import RingPolicy
from tidings.settings import BrokerSettings
from tidings.simulator.checkers.ledger import Ledger
from tidings.simulator.checkers.recovery import places


class _Found:
    """A dictionary of a machine, looked up at the one that has the key."""

    def __init__(self, table_of: Callable[[Any], dict[Any, Any]]) -> None:
        self._table_of = table_of

    def get(self, key: Any, otherwise: Any = None) -> Any:
        return self._table_of(key).get(key, otherwise)

    def __getitem__(self, key: Any) -> Any:
        return self._table_of(key)[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._table_of(key)


class _Holders:
    """What the checkers ask a reference machine for, as the holders of the topics know it."""

    def __init__(self, machine_of: Callable[[str], Machine]) -> None:
        self.topics = _Found(lambda topic: machine_of(topic).topics)
        self.retired = _Found(lambda topic: machine_of(topic).retired)
        self.subscriptions = _Found(lambda key: machine_of(key[1][0]).subscriptions)
        self.groups = _Found(lambda key: machine_of(key[1]).groups)


class RingLedger(Ledger):
    """The topics of all groups as they must be."""

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._nobody = Machine(settings)
        self.reference = cast(Machine, _Holders(self.machine_of))
        self.of: dict[str, Ledger] = {}
        """What each group has decided."""
        self.names: dict[bytes, str] = {}
        """How the world calls a group that others know by its mark."""
        self.held: dict[str, KeyRanges] = {}
        """group -> what it owns, and what it has given and nobody has taken."""

    def add_group(self, group: str, mark: bytes) -> None:
        self.of[group] = ledger = Ledger(self._settings, RingPolicy())
        ledger.staged, ledger.is_all = self.staged, False  # What is staged moves with its topics.
        self.names[mark] = group
        self.held[group] = ()

    def hold(self, group: str, ranges: KeyRanges) -> None:
        """These ranges are a group's now, no matter who had them before."""
        for other, held in self.held.items():
            self.held[other] = joined((*held, *ranges)) if other == group else without(held, ranges)

    def holder_of(self, topic: str) -> str | None:
        """The group that has a topic."""
        point = point_of(topic)
        return next((group for group, ranges in self.held.items() if owns(ranges, point)), None)

    def machine_of(self, topic: str) -> Machine:
        """The reference of the group that has a topic."""
        holder = self.holder_of(topic)
        return self._nobody if holder is None else self.of[holder].reference


def contents(machine: Machine, ranges: KeyRanges) -> dict[tuple[Any, ...], Any]:
    """All that a machine knows of what lies in some ranges, but for where and in which batches it is stored."""
    found: dict[tuple[Any, ...], Any] = {}
    for name, topic in machine.topics.items():
        if owns(ranges, point_of(name)):
            edges = (
                topic.first_offset,
                topic.next_offset,
                topic.acked_offset,
                topic.fully_acked_offset,
                topic.max_backlog,
            )
            found["topic", name] = (*edges, machine.used_at_ms.get(name, 0), topic.ids, list(topic.id_times))
    for name, next_offset in machine.retired.items():
        if owns(ranges, point_of(name)):
            found["retired", name] = next_offset
    for client in machine.clients.values():
        for name, track in client.tracks.items():
            if owns(ranges, point_of(name)):
                found["track", client.name, name] = places(machine, name, track)
        if client.token and owns(ranges, home_of(client.name)):
            found["home", client.name] = (
                client.epoch,
                client.token,
                client.anonymous,
                list(client.past_tokens),
                client.noted,
            )
    for key, each in machine.subscriptions.items():
        if owns(ranges, point_of(key[1][0])):
            found["subscription", *key] = (
                *(each.cursors, each.starts, each.made),
                *(each.reader_epoch, each.reading, each.sent),
            )
    for group_key, group in machine.groups.items():
        if owns(ranges, point_of(group.topic)):
            found["group", *group_key] = (group.progress.encode(), group.members, group.lanes, group.last_acked)
    for stage in machine.stages.stages.values():
        if stage.batch != HELD and owns(ranges, point_of(stage.batches[0].topic)):
            batches = [(each.size_bytes, each.count, each.ids) for each in stage.batches]
            found["stage", stage.name] = (stage.key, stage.batch, stage.at_ms, stage.last, stage.size_bytes, batches)
    for query, last in machine.stages.queries.items():
        if owns(ranges, point_of(home_name(query))):
            found["query", query] = last
    return found

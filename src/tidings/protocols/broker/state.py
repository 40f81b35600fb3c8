"""The tables of a broker, as those see them who work on them for the machine.

Writing, stages, snapshots and an ownership policy each do a part of what `Machine.apply` promises. They know it by this
role and not by its class, so nobody has to know who else works on the same tables.
"""

from __future__ import annotations

from typing import Protocol

from tidings.protocols.broker.clients import Client
from tidings.protocols.broker.groups import Group, GroupKey
from tidings.protocols.broker.subscriptions import Subscription, SubscriptionKey
from tidings.protocols.broker.topics import Topic
from tidings.settings import BrokerSettings


class State(Protocol):
    """Topics, clients, subscriptions and groups; what they are found by, and the steps that keep them together."""

    settings: BrokerSettings
    topics: dict[str, Topic]
    clients: dict[str, Client]
    subscriptions: dict[SubscriptionKey, Subscription]
    readers: dict[str, dict[SubscriptionKey, Subscription]]
    """topic -> its subscriptions."""
    owned: dict[str, dict[SubscriptionKey, Subscription]]
    """client -> its subscriptions."""
    groups: dict[GroupKey, Group]
    groups_of: dict[str, dict[GroupKey, Group]]
    """topic -> its groups."""
    used_at_ms: dict[str, int]
    """topic -> when it was made or last put to."""
    retired: dict[str, int]
    """Collected topics that had held messages -> the offset after their last."""

    # Each is explained at the machine, whose they are.

    def check_puttable(self, name: str) -> None: ...
    def check_topics_limit(self, more: int) -> None: ...
    def make_topic(self, name: str, time_ms: int) -> Topic: ...
    def find_subscription(self, client: str, topics: tuple[str, ...]) -> Subscription: ...
    def waited_offset(self, topic: Topic) -> int: ...
    def remember_subscription(self, subscription: Subscription) -> None: ...
    def remember_group(self, group: Group) -> None: ...

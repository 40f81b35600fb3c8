"""What the blocking bus has, the awaiting bus has, with the same parameters."""

from __future__ import annotations

import inspect

import pytest

from tidings.client.aio import AsyncBus
from tidings.client.bus import Bus
from tidings.client.group import AsyncGroupSubscription, GroupSubscription
from tidings.client.publisher import AsyncPublisher, Publisher
from tidings.client.soon import AsyncSoon, Soon
from tidings.client.staging import AsyncStage, Stage
from tidings.client.subscription import AsyncSubscription, Subscription
from tidings.client.transaction import AsyncTransaction, Transaction

PAIRS: list[tuple[type, type]] = [
    (Bus, AsyncBus),
    (Subscription, AsyncSubscription),
    (GroupSubscription, AsyncGroupSubscription),
    (Publisher, AsyncPublisher),
    (Transaction, AsyncTransaction),
    (Stage, AsyncStage),
    (Soon, AsyncSoon),
]
IDS = [blocking.__name__ for blocking, _ in PAIRS]

AWAITED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> dict[str, object]:
    return {each.name: each.default for each in inspect.signature(getattr(kind, name)).parameters.values()}


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS, ids=IDS)
def test_the_same_methods(blocking: type, awaiting: type) -> None:
    assert members(blocking) == members(awaiting)
    for name, awaited in AWAITED.items():
        assert hasattr(blocking, name) == hasattr(awaiting, awaited), name


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS, ids=IDS)
def test_the_same_parameters(blocking: type, awaiting: type) -> None:
    called = {name for name in members(blocking) & members(awaiting) if callable(getattr(blocking, name))}
    assert [name for name in sorted(called) if parameters(blocking, name) != parameters(awaiting, name)] == []

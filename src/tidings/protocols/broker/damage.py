"""What becomes of an effect whose stored batches cannot all be read.

A reader of a range gets what comes before the damage, and the error when it asks for that itself. A stream goes back to
where it can be read, and stops there; so does a group. A message that was to be copied stays where it is.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tidings.errors import StorageDamaged
from tidings.protocols.broker.bulk import ReadDone
from tidings.protocols.broker.consumer_groups.coordinators import Claim, DeadLettering, Next
from tidings.protocols.broker.consumer_groups.sharing import Sharing
from tidings.protocols.broker.delivery import Dispatcher
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.messages import Article, Delivery, Failed
from tidings.protocols.broker.withheld import Withheld, unreadable
from tidings.protocols.effects import Effect, Examine, Forward, PersistCopy, Send, Share
from tidings.protocols.events import Damaged


class Broker(Protocol):
    """What has to know of it."""

    machine: Machine
    withheld: Withheld
    dispatcher: Dispatcher
    sharing: Sharing


def on_damaged(broker: Broker, event: Damaged) -> list[Effect]:
    """What is done instead."""
    match event.effect:
        case Forward(peer, ReadDone() as done):
            return [_shorter(event.effect, peer, done, event)]
        case Forward(peer, Article(request, _, offset)):
            return [_failed(peer, request, unreadable(offset, offset + 1, event.reason or ""))]
        case Forward(_, Delivery() as delivery, places):
            broker.withheld.note(places[event.readable].address, event.reason)
            return _step_back(broker, event.effect, delivery, event.readable)
        case Share(_, _, picks):  # The member does not get it, and its lease ends.
            broker.withheld.note(picks[event.readable][0].address, event.reason)
            return []
        case Examine(places, origin):
            broker.withheld.note(places[event.readable].address, event.reason)
            return _examine_less(broker, event, places, origin)
        case PersistCopy(_, _, DeadLettering() as dead_lettering):
            return broker.sharing.on_refused(event.now_ms, dead_lettering)
    return []


def _failed(peer: object, request: int, error: StorageDamaged) -> Send:
    return Send(peer, Failed(request, error.number, str(error)))


def _shorter(forward: Forward, peer: object, done: ReadDone, event: Damaged) -> Effect:
    count = event.readable
    if count:
        shorter = msgspec.structs.replace(done, batches=done.batches[:count])
        return msgspec.structs.replace(forward, message=shorter, places=forward.places[:count])
    first = done.batches[0]
    return _failed(
        peer, done.request, unreadable(first.first_offset, first.first_offset + first.count, event.reason or "")
    )


def _step_back(broker: Broker, forward: Forward, delivery: Delivery, readable: int) -> list[Effect]:
    """Sends what can be read of a delivery, and has its stream stand behind that."""
    topic = broker.machine.topics[delivery.topic]
    offset = topic.offsets[topic.find(delivery.first_offset) + readable]
    stream = next(
        (
            each
            for each in broker.dispatcher.streams.values()
            if each.number == delivery.stream and each.peer == forward.peer
        ),
        None,
    )
    if stream is not None and delivery.topic in stream.positions:
        stream.positions[delivery.topic] = min(stream.positions[delivery.topic], max(offset, delivery.since))
    if not readable:
        return []
    shorter = msgspec.structs.replace(delivery, next_offset=offset)
    return [msgspec.structs.replace(forward, message=shorter, places=forward.places[:readable])]


def _examine_less(broker: Broker, event: Damaged, places: tuple[object, ...], origin: Next | Claim) -> list[Effect]:
    count = event.readable
    match origin:
        case Next(key, position, ends):
            readable = Next(key, position, ends[:count])
            if count:
                return [Examine(places[:count], readable)]
            return broker.sharing.on_examined(event.now_ms, (), readable)
        case Claim(key, peer, message, entries):  # Nobody can say which lanes these messages belong to.
            left = Claim(key, peer, message, entries[:count] + entries[count + 1 :])
            return [Examine(places[:count] + places[count + 1 :], left)]

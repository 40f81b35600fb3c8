"""The requests of writers in bulk: what can be judged at once is, the rest becomes a command for the journal."""

from __future__ import annotations

from typing import Any

from tidings.errors import LimitReached, ProtocolError
from tidings.message import check_name, check_topic
from tidings.protocols.broker import bulk, commands
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.writing import check_batch, given_ids
from tidings.protocols.effects import Effect, Peer, Persist, Send
from tidings.protocols.events import Received


def on_stage(machine: Machine, event: Received, message: bulk.Stage, origin: Any) -> list[Effect]:
    """A batch for a stage; nothing is written if its query's batch has been published already."""
    if len(event.bodies) != 1:
        raise ProtocolError(f"1 batch came with {len(event.bodies)} bodies: send one for each.")
    [body], [contents] = event.bodies, event.batches
    check_batch(machine.settings, message.client, message.count, body, contents)
    check_name(message.query)
    check_name(message.stage)
    if message.sink:
        check_topic(message.sink)
    if message.number < 1 or message.batch < 0:
        raise ProtocolError("A stage's batches are numbered from 1, and a query's from 0: count again.")
    machine.check_puttable(check_topic(message.topic))
    if machine.stages.is_published(message.query, message.batch, message.sink):
        return [Send(event.peer, bulk.StageDone(message.request, published=True))]
    fields = (message.query, message.batch, message.stage, message.number, message.topic, message.count)
    more = (len(body), given_ids(contents), message.sink, message.after)
    command = commands.Stage(message.client, message.epoch, *fields, *more)
    return [Persist(command, event.bodies, origin)]


def on_publish(machine: Machine, peer: Peer, message: bulk.Publish | bulk.Discard, origin: Any) -> list[Effect]:
    """Stages become visible, or are dropped."""
    stages_max = machine.settings.stages_max
    if len(message.stages) > stages_max:
        raise LimitReached(f"One request may name {stages_max} stages (stages_max): name fewer.")
    if isinstance(message, bulk.Discard):
        return [Persist(commands.Discard(message.stages), origin=origin)]
    check_batch_of_query(message)
    if machine.stages.is_published(message.query, message.batch, message.sink):
        return [Send(peer, repeated(machine, message))]
    stages = message.stages
    if not machine.ownership.shares_stages():
        stages = tuple(bulk.StageName(named.name, named.count) for named in stages)  # All topics are here.
    fields = (message.query, message.batch, stages, message.once, message.sink)
    return [Persist(commands.Publish(message.client, message.epoch, *fields), origin=origin)]


def check_batch_of_query(message: bulk.Publish) -> None:
    """Whether the query, its sink and its batch can be such."""
    check_name(message.query)
    if message.sink:
        check_topic(message.sink)
    if message.batch < 0:
        raise ProtocolError("A query's batches are numbered from 0: count again.")


def repeated(machine: Machine, message: bulk.Publish) -> bulk.PublishDone:
    """The answer to one who publishes what is published."""
    topics = machine.stages.topics_of(message.query, message.batch, message.sink)
    return bulk.PublishDone(message.request, repeated=True, topics=topics)


def answer(machine: Machine, message: bulk.Stage | bulk.Publish | bulk.Discard, result: Any) -> bulk.BulkAnswer:
    """What became of such a request once it was durable."""
    match message:
        case bulk.Stage(request):
            return bulk.StageDone(request, result)
        case bulk.Publish() if result is None:
            return repeated(machine, message)
        case bulk.Publish(request):
            return bulk.PublishDone(request, False, result)
        case bulk.Discard(request):
            return bulk.DiscardDone(request, len(result), result if machine.ownership.shares_stages() else ())

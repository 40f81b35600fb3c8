"""Which topics a client's request or a write is about: their owner answers it."""

from __future__ import annotations

from typing import Any

from tidings.protocols.broker import messages
from tidings.protocols.broker.commands import Write


def topics_of(message: Any) -> tuple[str, ...]:
    """Every topic that a request names, perhaps more than once; none if it is about none in particular.

    >>> topics_of(messages.Get(1, "ann", 1, "news")), topics_of(messages.AskTopics(1))
    (('news',), ())
    """
    match message:
        case messages.Put(part=part):
            return tuple(target.topic for target in part.targets)
        case messages.Commit(parts=parts, acknowledgements=acknowledgements):
            put = (target.topic for part in parts for target in part.targets)
            return (*put, *(topic for each in acknowledgements for topic in each.topics))
        case messages.Ack(acknowledgement=acknowledgement):
            return acknowledgement.topics
    topics = getattr(message, "topics", None)
    if isinstance(topics, tuple):
        return topics
    topic = getattr(message, "topic", None)
    return (topic,) if isinstance(topic, str) else ()


def topics_written(command: Write) -> list[str]:
    """The topics of all parts of a write, perhaps repeated."""
    names = [target.topic for batch in command.batches for target in batch.targets]
    for each in command.acknowledgements:
        names += each.topics
    return names

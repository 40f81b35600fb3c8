"""The answers of all groups to one question, put together as if one broker had answered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tidings.errors import NoSuchTopic, NotSubscribed
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.messages import AnyRequest

ABSENT = (NotSubscribed.number, NoSuchTopic.number)
"""What an owner says that has no part of a subscription."""


def together(question: AnyRequest, answers: Sequence[Any]) -> Any:
    """One answer out of several; a refusal of one is the refusal of all.

    >>> together(messages.AskStatus(7), [messages.Status(1, {"topics": 2}), messages.Status(2, {"topics": 3})])
    Status(request=7, numbers={'topics': 5}, damaged=())
    """
    request = question.request
    for answer in answers:
        if isinstance(answer, messages.Failed) and not isinstance(question, messages.Unsubscribe):
            return messages.Failed(request, answer.number, answer.text)
    match question:
        case messages.Subscribe() | messages.Unsubscribe() | messages.Flow() | messages.Ack():
            return _of_parts(question, answers)
        case bulk.Discard():
            dropped = {name for answer in answers for name in answer.stages}
            return bulk.DiscardDone(request, len(dropped))
        case messages.Bye():
            return messages.ByeDone(request)
        case messages.AskTopics():
            topics = {topic.name: topic for answer in answers for topic in answer.topics}
            return messages.Topics(request, tuple(topics[name] for name in sorted(topics)))
        case messages.AskGroups():
            groups = {(group.topic, group.name): group for answer in answers for group in answer.groups}
            return messages.Groups(request, tuple(groups[key] for key in sorted(groups)))
        case messages.AskSubscriptions():
            owned = {each for answer in answers for each in answer.subscriptions}
            return messages.Subscriptions(request, tuple(sorted(owned)))
        case messages.AskSubscribers():
            names: dict[str, dict[tuple[str, ...], None]] = {}
            for answer in answers:
                for name, subscriptions in answer.subscribers.items():
                    names.setdefault(name, {}).update(dict.fromkeys(subscriptions))
            return messages.Subscribers(request, {name: tuple(sorted(names[name])) for name in sorted(names)})
    numbers: Counter[str] = Counter()
    for answer in answers:
        numbers.update(answer.numbers)
    damaged = tuple(place for answer in answers for place in answer.damaged)
    return messages.Status(request, dict(numbers), damaged)


def _of_parts(question: Any, answers: Sequence[Any]) -> Any:
    """What the owners of a subscription's parts have said, in the words of one owner."""
    request = question.request
    match question:
        case messages.Subscribe():
            positions = sorted((position for answer in answers for position in answer.positions), key=_topic_of)
            return messages.SubscribeDone(request, tuple(positions), any(answer.created for answer in answers))
        case messages.Unsubscribe():
            # A part that is not there is one that was ended when this was sent before, or that was never made.
            failed = [answer for answer in answers if isinstance(answer, messages.Failed)]
            grave = [answer for answer in failed if answer.number not in ABSENT]
            if grave or len(failed) == len(answers):
                worst = (grave or failed)[0]
                return messages.Failed(request, worst.number, worst.text)
            return messages.UnsubscribeDone(request)
        case messages.Flow(stream=stream):
            sent = sorted((position for answer in answers for position in answer.sent), key=_topic_of)
            epochs = {answer.created_epoch for answer in answers}
            # Where a later session made the rest of the parts, no epoch fits all of them; none fits any.
            return messages.Flowing(request, stream, tuple(sent), epochs.pop() if len(epochs) == 1 else 0)
    return messages.AckDone(request)


def _topic_of(position: messages.Position) -> str:
    return position.topic

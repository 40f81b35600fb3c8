"""The answers of all groups to one question, put together as if one broker had answered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tidings.protocols.broker import messages
from tidings.protocols.broker.messages import AnyRequest


def together(question: AnyRequest, answers: Sequence[Any]) -> Any:
    """One answer out of several; a refusal of one is the refusal of all.

    >>> together(messages.AskStatus(7), [messages.Status(1, {"topics": 2}), messages.Status(2, {"topics": 3})])
    Status(request=7, numbers={'topics': 5}, damaged=())
    """
    request = question.request
    for answer in answers:
        if isinstance(answer, messages.Failed):
            return messages.Failed(request, answer.number, answer.text)
    match question:
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

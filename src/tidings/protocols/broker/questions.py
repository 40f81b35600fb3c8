"""What may be asked of a broker and changes nothing: answered from the applied state at once."""

from __future__ import annotations

from typing import Any

from tidings.errors import InvalidRequest, ProtocolError
from tidings.message import TopicInfo, check_topic
from tidings.protocols.broker import bulk, messages, operators, ranges
from tidings.protocols.broker.consumer_groups.sharing import Sharing
from tidings.protocols.broker.delivery import Dispatcher
from tidings.protocols.broker.envelope import Answer
from tidings.protocols.broker.machine import Machine


def answer(
    machine: Machine, sharing: Sharing, dispatcher: Dispatcher, damaged: tuple[str, ...], message: Any
) -> Answer:
    """The answer to a question; raises for what is no question, or not one for a broker."""
    match message:
        case messages.AskSequence(request, client, epoch, topic):
            track = machine.check_session(client, epoch).tracks.get(check_topic(topic))
            return messages.Sequence(request, track.last if track else 0)
        case messages.AskSubscriptions(request, client, epoch):
            machine.check_session(client, epoch)
            return messages.Subscriptions(request, _subscribed_topics(machine, client))
        case messages.AskSubscribers(request, client, epoch):
            machine.check_session(client, epoch)
            named = [name for name in machine.owned if name.startswith(f"{client}/")]
            found = {name: topics for name in named if (topics := _subscribed_topics(machine, name))}
            return messages.Subscribers(request, found)
        case messages.AskTopics(request, None):
            names = sorted(filter(machine.owns, machine.topics))
            return messages.Topics(request, tuple(topic_info(machine, name) for name in names))
        case messages.AskTopics(request, str(topic)):
            machine.find_topic(check_topic(topic))
            return messages.Topics(request, (topic_info(machine, topic),))
        case bulk.AskOffset():
            return ranges.find_offset(machine, message)
        case messages.AskGroups(request, topic):
            return messages.Groups(request, sharing.describe(topic))
        case messages.AskStatus(request):
            counts = _counts(machine, streams=len(dispatcher.streams), damaged=len(damaged))
            return messages.Status(request, counts, damaged[: messages.DAMAGED_MAX])
        case operators.AskMembers() | operators.AddMember() | operators.RemoveMember():
            raise InvalidRequest(
                "This is a single broker without members: `tidings cluster add` turns it into a group."
            )
        case operators.AskRing() | operators.AskOwner() | operators.AskHeld() | operators.LeaveRing():
            raise InvalidRequest("This broker is not in a ring: start it with --ring or --join.")
    raise ProtocolError(f"The request {type(message).__name__} is not known here.")


def _subscribed_topics(machine: Machine, client: str) -> tuple[tuple[str, ...], ...]:
    owned = (each for each in machine.owned.get(client, {}).values() if machine.owns(each.topics[0]))
    return tuple(dict.fromkeys(each.all_topics for each in owned))


def topic_info(machine: Machine, name: str) -> TopicInfo:
    """What a topic looks like from outside."""
    topic = machine.topics[name]
    readers = machine.readers.get(name, {})
    return TopicInfo(name, topic.first_offset, topic.next_offset, len(readers), topic.size_bytes, topic.max_backlog)


def _counts(machine: Machine, streams: int, damaged: int) -> dict[str, int]:
    topics = [topic for topic in machine.topics.values() if machine.owns(topic.name)]
    return {
        "topics": len(topics),
        "clients": sum(map(machine.ownership.owns_home, machine.clients)),
        "subscriptions": sum(machine.owns(each.topics[0]) for each in machine.subscriptions.values()),
        "groups": sum(machine.owns(topic) for _, topic in machine.groups),
        "streams": streams,
        "messages": sum(topic.next_offset - topic.first_offset for topic in topics),
        "size_bytes": sum(topic.size_bytes for topic in topics),
        "stages": machine.stages.count,
        "damaged": damaged,
        "staged_bytes": sum(stage.size_bytes for stage in machine.stages.stages.values()),
    }

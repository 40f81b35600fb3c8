"""The options of Spark's Kafka source and sink: what each is here, or why it is not.

Programs that come from there keep their options. docs/spark.md has the same table for readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidings.errors import InvalidRequest

ALIASES = {
    "kafka.bootstrap.servers": "bus",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "maxrecordsperpartition": "maxMessagesPerTask",
    "minpartitions": "tasks",
}
"""Kafka's names, in lower case, and ours."""

_TRIES = "how long the broker is waited for is the option timeout, in seconds"
_GROUP = "a query reads by offsets of its own and joins no group: leave it out"
REFUSED = {
    "assign": "topics have no partitions: name the topics with the option topic",
    "startingoffsetsbytimestampstrategy": "a time after the last message means the topic's end, as Kafka's strategy "
    "latest does: leave it out",
    "kafkaconsumer.polltimeoutms": _TRIES,
    "fetchoffset.numretries": _TRIES,
    "fetchoffset.retryintervalms": _TRIES,
    "groupidprefix": _GROUP,
    "kafka.group.id": _GROUP,
}
"""Kafka's names, in lower case, for what there is no need of."""

KAFKA_EARLIEST, KAFKA_LATEST = -2, -1


def refuse(name: str, value: str) -> None:
    """Raises InvalidRequest for an option that only Kafka has."""
    name = name.lower()
    if name == "startingoffsetsbytimestampstrategy" and value.lower() == "latest":
        return
    if name in REFUSED:
        raise InvalidRequest(f"The option {name!r} is Kafka's: {REFUSED[name]}.")
    if name.startswith("kafka."):
        raise InvalidRequest(
            f"The option {name!r} is a setting of Kafka's client, which is not used here: leave it out."
        )


def offset_of(topic: str, place: object, shown: str) -> object:
    """The place that an option gives for a topic, in Kafka's notation or ours.

    >>> offset_of("news", {"0": 23}, "startingOffsets"), offset_of("news", -2, "startingOffsets")
    (23, 'earliest')
    """
    if isinstance(place, Mapping):
        if list(place) != ["0"]:
            raise InvalidRequest(
                f"The option {shown} names the partitions {', '.join(place) or 'of nothing'} of {topic!r}, and a topic "
                f"has none: write {json.dumps({topic: 17})}."
            )
        place = place["0"]
    if isinstance(place, int) and not isinstance(place, bool):
        return {KAFKA_EARLIEST: "earliest", KAFKA_LATEST: "latest"}.get(place, place)
    return place

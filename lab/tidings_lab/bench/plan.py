"""How much of everything a run does: in full, quick, or scaled down to see only that it works."""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest


class Plan(msgspec.Struct, frozen=True):
    """The counts of a run. `rounds` is how often scenario and limit take turns."""

    rounds: int = 5
    value_bytes: int = 100
    publish_messages: int = 2_000_000
    consume_messages: int = 2_000_000
    put_messages: int = 400
    many_publishers: int = 32
    many_seconds: float = 2.0
    fanout_subscriptions: int = 100
    fanout_messages: int = 100_000
    group_messages: int = 1_000_000
    group_members: int = 8
    group_seconds: float = 9.0
    socket_messages: int = 4_000
    backlog_messages: int = 10_000_000
    backlog_few_messages: int = 10_000
    backlog_probe_messages: int = 200_000
    topics_many: int = 10_000
    topics_few: int = 10
    topics_probe_messages: int = 300
    overlay_nodes: int = 10_000
    spark_messages: int = 5_000_000
    spark_batch_messages: int = 1_000_000
    spark_micro_batches: int = 40
    spark_rows_few: int = 1_000_000
    spark_rows_many: int = 50_000_000
    spark_row_bytes: int = 20


QUICK = Plan(
    rounds=3,
    publish_messages=1_000_000,
    consume_messages=1_000_000,
    put_messages=200,
    many_seconds=1.0,
    fanout_messages=30_000,
    group_messages=200_000,
    group_seconds=6.0,
    socket_messages=1_000,
    backlog_messages=1_000_000,
    backlog_probe_messages=100_000,
    topics_many=1_000,
    topics_probe_messages=200,
    overlay_nodes=1_000,
    spark_messages=3_000_000,
    spark_micro_batches=20,
    spark_rows_many=10_000_000,
)

_LEAST: dict[str, float] = {
    "put_messages": 5,
    "many_publishers": 2,
    "many_seconds": 0.1,
    "fanout_subscriptions": 3,
    "group_members": 8,
    "group_seconds": 6.0,
    "socket_messages": 64,
    "backlog_few_messages": 100,
    "topics_few": 2,
    "topics_many": 20,
    "topics_probe_messages": 20,
    "overlay_nodes": 50,
    "spark_micro_batches": 4,
}
_FIXED = ("rounds", "value_bytes", "spark_row_bytes")


def plan(quick: bool, scale: float) -> Plan:
    """The plan of a run; `scale` makes every count so many times larger, within reason.

    >>> plan(quick=True, scale=0.01).publish_messages
    10000
    """
    if not 0 < scale <= 100:
        raise InvalidRequest(f"The scale must be above 0 and at most 100, and it is {scale:g}.")
    chosen = QUICK if quick else Plan()
    if scale == 1:
        return chosen
    counts = {
        name: max(type(value)(value * scale), type(value)(_LEAST.get(name, 1_000)))
        for name in Plan.__struct_fields__
        if name not in _FIXED
        for value in (getattr(chosen, name),)
    }
    rounds = 1 if scale < 0.1 else chosen.rounds
    return msgspec.structs.replace(chosen, **counts, rounds=rounds)

"""Every field that a server decodes has a bound of its own, whatever the settings say (decision 13)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from tidings.errors import ProtocolError
from tidings.peer.stacks import LayerSettings, build_stack
from tidings.protocols.broker.messages import AnyRequest
from tidings.protocols.fields import NUMBER_MAX
from tidings.protocols.multipaxos.claims import Claim, Extent
from tidings.protocols.multipaxos.messages import Prepare, Remembered
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Ballot
from tidings.protocols.pubsub.messages import Letter
from tidings.protocols.storage import AnyCall
from tidings.settings import BrokerSettings, PeerSettings
from tidings.wire import door, peers, replication, ring

FRAMED = {
    ("Publish", "text"): "a frame of at most 1 MiB, see COMMAND_BYTES_MAX",
    ("Ballot", "number"): "2**64 - 1 says that a value is chosen; larger than a Number it is refused in a message",
}
"""Fields whose bound lies elsewhere, and where."""


def unbounded(wanted: Any) -> list[str]:
    """The fields within a type that the decoder takes at any size."""
    return sorted({f"{struct}.{field}" for struct, field in _unbounded(inspect.type_info(wanted), set(), ("", ""))})


def _unbounded(info: inspect.Type, seen: set[type], where: tuple[str, str]) -> Iterator[tuple[str, str]]:
    match info:
        case inspect.StructType(cls) if cls is BrokerSettings:  # Checked when it is made.
            return
        case inspect.StructType(cls, fields=fields) if cls not in seen:
            seen.add(cls)
            for field in fields:
                yield from _unbounded(field.type, seen, (cls.__name__, field.name))
        case inspect.UnionType(types):
            for each in types:
                yield from _unbounded(each, seen, where)
        case inspect.IntType() if where not in FRAMED and (info.ge is None or info.le is None):
            yield where
        case inspect.StrType() if where not in FRAMED and info.max_length is None:
            yield where
        case inspect.VarTupleType() | inspect.ListType():
            if info.max_length is None:
                yield where
            yield from _unbounded(info.item_type, seen, where)
        case inspect.TupleType(item_types):
            for each in item_types:
                yield from _unbounded(each, seen, where)
        case inspect.DictType():
            if info.max_length is None:
                yield where
            yield from _unbounded(info.key_type, seen, where)
            yield from _unbounded(info.value_type, seen, where)


def test_no_message_of_an_overlay_is_without_a_bound() -> None:
    for settings in (PeerSettings(overlay="chord"), PeerSettings(overlay="hyparview")):
        stack = build_stack(settings, LayerSettings(), "tcp://127.0.0.1:7500", Random(1))
        assert unbounded(reduce(or_, stack.messages)) == []
    assert unbounded(Letter) == []


@pytest.mark.parametrize(
    "wanted",
    [AnyRequest, AnyCall, door.AnyCommand, peers.From, replication.Header, ring.Header, ring.Cast],
    ids=["requests", "storage", "node commands", "node header", "replicas", "ring", "casts"],
)
def test_no_field_is_without_a_bound(wanted: Any) -> None:
    assert unbounded(wanted) == []


def test_the_check_sees_what_has_no_bound() -> None:
    class Loose(msgspec.Struct):
        count: int
        names: tuple[str, ...]

    assert unbounded(Loose) == ["Loose.count", "Loose.names"]


@pytest.mark.parametrize(
    "message",
    [Prepare(CHOSEN, 1), Prepare(Ballot(NUMBER_MAX + 1, 1), 1), Remembered(1, Extent(CHOSEN, 1))],
    ids=["chosen", "large", "remembered"],
)
def test_ballots_after_which_there_is_none_are_refused(message: Prepare | Remembered) -> None:
    with pytest.raises(ProtocolError, match="ballot"):
        replication.decode_message(replication.encode_message(message, b"group", 1, 2))


def test_claims_of_such_ballots_are_refused() -> None:
    claim = Claim(1, Extent(ZERO, 0), Extent(CHOSEN, 0))
    with pytest.raises(ProtocolError, match="ballot"):
        replication.decode_message(replication.encode_message(Prepare(Ballot(1, 1), 1), b"group", 1, 2, claim))

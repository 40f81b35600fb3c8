"""What anybody may ask a storage server: the last message of a topic, and how it is."""

from __future__ import annotations

import msgspec

from tidings.errors import ProtocolError, Unavailable, from_number
from tidings.message import Message, check_topic
from tidings.protocols.storage import AnyCall, AnyStorageAnswer, AskStorage, Failed, Last, LastMessage, StorageStatus
from tidings.transport.caller import Caller, ConnectionLost
from tidings.transport.curve import ClientOptions
from tidings.wire.codec import Frame
from tidings.wire.storage import decode_storage_answer, frames_of


def last(address: str, topic: str, timeout_ms: int = 5_000, curve: ClientOptions | None = None) -> Message:
    """The last message of a topic; NoSuchTopic when the storage server has none."""
    answer, frames = _ask(address, Last(1, check_topic(topic)), timeout_ms, curve)
    if not isinstance(answer, LastMessage) or not frames:
        raise ProtocolError(f"{address} answered something other than a message: update it.")
    published_at = answer.published_us / 1e6
    return Message(topic, answer.offset, bytes(frames[0]), publisher=answer.publisher, published_at=published_at)


def status(address: str, timeout_ms: int = 5_000, curve: ClientOptions | None = None) -> dict[str, int]:
    """The epoch, the journal's size, how many topics there are, and how much their texts lack."""
    answer, _ = _ask(address, AskStorage(1), timeout_ms, curve)
    if not isinstance(answer, StorageStatus):
        raise ProtocolError(f"{address} answered something other than its status: update it.")
    fields: dict[str, int] = msgspec.structs.asdict(answer)
    del fields["call"]
    return fields


def _ask(
    address: str, call: AnyCall, timeout_ms: int, curve: ClientOptions | None
) -> tuple[AnyStorageAnswer, list[Frame]]:
    caller = Caller(address, curve)
    try:
        caller.send(frames_of(call, ()))
        frames = caller.receive(timeout_ms)
    except ConnectionLost:
        frames = None
    finally:
        caller.close()
    if frames is None:
        raise Unavailable(f"No storage server answers at {address}: start it with `tidings storage`.")
    answer = decode_storage_answer(frames[0])
    if isinstance(answer, Failed):
        raise from_number(answer.number, answer.text)
    return answer, frames[1:]

"""A fuzzer over every decoder: whatever comes in is read, or refused with the decoder's own error.

Each decoder gets pure noise, valid bytes with some of them changed, cut off, doubled or mixed with noise. The work is
bounded by a count; `TIDINGS_FUZZ` raises it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tidings.client.inbox import Inbox
from tidings.errors import InvalidRequest, ProtocolError, StorageDamaged, TidingsError
from tidings.journal import record, segment
from tidings.message import Columns
from tidings.protocols import gossip, hyparview, storage
from tidings.protocols.broker import bulk, messages
from tidings.protocols.chord import messages as chord
from tidings.protocols.pubsub.messages import Letter
from tidings.protocols.pubsub.messages import decode as decode_letter
from tidings.protocols.scribe import messages as scribe
from tidings.protocols.stack import Message
from tidings.settings import BrokerSettings, load
from tidings.wire import codec, door, peers
from tidings.wire.storage import decode_call, decode_storage_answer

ROUNDS = int(os.environ.get("TIDINGS_FUZZ", "4000"))
BASE = 1000


class Decoder(NamedTuple):
    name: str
    samples: list[bytes]
    decode: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]


REQUESTS: list[messages.AnyRequest] = [
    messages.Hello(1, 1, "alice", b"token", True),
    messages.Put(2, "alice", 3, messages.Part((messages.Target("news", 1), messages.Target("sport", 9)), 4)),
    messages.Commit(3, "alice", 1, (), (messages.Acknowledgement(("a",), (messages.Position("a", 4),)),)),
    messages.Subscribe(4, "alice", 1, ("news",), 17),
    messages.Unsubscribe(4, "alice", 1, ("news",), ("news", "sport")),
    messages.Flow(5, "alice", 1, ("news",), 2, (messages.Position("news", 3),), 100, 1000),
    messages.Beat(6, "alice", 1, (1, 2, 3)),
    messages.AskTopics(7),
    bulk.Read(8, "news", 1, 9, 100, 1000),
    bulk.Read(8, "news", 1, 9, 100, 1000, "7e8a3d5c"),
    bulk.AskOffset(9, "news", 1_700_000_000_000),
    bulk.Stage(10, "alice", 1, "query", 3, "attempt", 1, "news", 2),
    bulk.Publish(11, "alice", 1, "query", 3, (bulk.StageName("attempt", 2),)),
    bulk.Discard(12, "alice", 1, ("attempt",)),
]
ANSWERS: list[messages.AnyAnswer] = [
    messages.Welcome(1, 1, 1, 100, 1000, 10),
    messages.Welcome(1, 1, 1, 100, 1000, 10, ("tcp://a:7400", "tcp://b:7400")),
    messages.NotLeader(1, "tcp://a:7400", ("tcp://a:7400", "tcp://b:7400")),
    messages.PutDone(2, (messages.Stored(4, ((0, 3), (1, None))),)),
    messages.Delivery(1, "news", 3, 2, 9, 1),
    messages.Failed(3, 6, "a gap"),
    messages.Topics(4, ()),
    messages.Status(5, {"topics": 1}),
    bulk.ReadDone(6, 0, 9, (bulk.StoredBatch(3, 2, 1_700_000_000_000),)),
    bulk.ReadDone(
        6,
        0,
        9,
        (bulk.StoredBatch(3, 2, 1_700_000_000_000), bulk.StoredBatch(5, 4, 1_700_000_000_000)),
        (bulk.LocalFile("/data/00000000000000000000.journal", 66, 1_234),),
        (bulk.LocalBody(0, 64, 100), None),
    ),
    bulk.OffsetFound(7, 3, 0, 9),
    bulk.StageDone(8, True),
    bulk.PublishDone(9, False, (bulk.Extent("news", 0, 2),)),
    bulk.DiscardDone(10, 1),
]
BATCHES = [
    Columns(1, "alice", [b"one", b"two"]),
    Columns(1, "alice", [b"x"], [b"k"], [{"h": b"v"}], ["id"], [1]),
]


CALLS: list[storage.AnyCall] = [
    storage.Open(1, 1, b"token", False, BrokerSettings(topics="on-publish", admins=("root",))),
    storage.Append(2, 7, "00000000000000000000.journal", 28, True),
    storage.Truncate(3, 7, "00000000000000000000.journal", 28),
    storage.Remove(4, 7, ("00000000000000000000.index",)),
    storage.Read(5, 1, "00000000000000000000.journal", 0, 100),
    storage.Last(6, "news"),
]
STORAGE_ANSWERS: list[storage.AnyStorageAnswer] = [
    storage.Opened(1, 1, 7, 0, {"00000000000000000000.journal": 28}),
    storage.Done(2),
    storage.Failed(3, storage.FULL, "no room"),
    storage.LastMessage(4, "news", 3, "alice", 1_700_000_000_000_000),
]


NODE = "tcp://127.0.0.1:7500"
PEER_MESSAGES: list[Message] = [
    chord.TellLinks(3, None, (NODE, NODE)),
    chord.Hop(1, chord.STEP, bytes(32), NODE, 0, 2, True, b"payload"),
    scribe.Spread("news", NODE, 7, (b"one", b"two")),
    scribe.TreeBeat((("news", NODE, 3), ("sport", None, 0))),
    scribe.Replicate("news", 1, 2, 3, (scribe.Entry(1, NODE, 5, 6, b"body"),), 4, 0, (("a", 1),)),
    gossip.Payload("news", 1, 2, b"body"),
    gossip.Digest((("news", 1, 2),)),
    hyparview.Shuffle(NODE, 3, (NODE,)),
]
COMMANDS: list[door.AnyCommand] = [
    door.Subscribe(1, "news"),
    door.Publish(2, "news", "hello"),
    door.TakeTexts(3, 0, 100),
    door.Look(4),
]
VIEW = door.NodeView(NODE, 1, "chord", True, 1, {"news": True}, 0, 0, 0, 0, 0, {"chord": {"Hop": 1}}, {}, {})
DOOR_ANSWERS: list[door.AnyAnswer] = [
    door.Done(1),
    door.Failed(2, 9, "no"),
    door.TakenTexts(3, 0, (door.Text("news", NODE, 1, 0, "hello"),)),
    door.Seen(4, VIEW),
]
PEER_DECODER = peers.MessageDecoder({type(message) for message in PEER_MESSAGES})


def a_record() -> bytes:
    append = record.Append(1, b"command", (b"body" * 5,), 99)
    described = record.Record(7, 1, 99, 0, 0, b"command", BASE + record.HEADER_SIZE + 7, 20)
    buffers: list[record.Buffer] = []
    record.encode(append, described, BASE, buffers)
    return b"".join(bytes(buffer) for buffer in buffers)


def an_envelope(encode: Callable[[segment.Envelope], list[record.Buffer]], sums: bytes = b"") -> bytes:
    envelope = segment.Envelope(9, segment.Segment(0, 0, 500, 77), b"content", sums)
    return b"".join(bytes(buffer) for buffer in encode(envelope))


DECODERS = [
    Decoder("request", [codec.encode(each) for each in REQUESTS], codec.decode_request, (ProtocolError,)),
    Decoder("answer", [codec.encode(each) for each in ANSWERS], codec.decode_answer, (ProtocolError,)),
    Decoder("batch", [codec.encode(each) for each in BATCHES], codec.decode_columns, (ProtocolError,)),
    Decoder("call", [codec.encode(each) for each in CALLS], lambda data: decode_call([data]), (ProtocolError,)),
    Decoder(
        "storage answer", [codec.encode(each) for each in STORAGE_ANSWERS], decode_storage_answer, (ProtocolError,)
    ),
    Decoder("node header", [peers.encode_header(NODE, 99)], peers.decode_header, (ProtocolError,)),
    Decoder("node message", [codec.encode(each) for each in PEER_MESSAGES], PEER_DECODER.decode, (ProtocolError,)),
    Decoder("node command", [codec.encode(each) for each in COMMANDS], door.decode_command, (ProtocolError,)),
    Decoder("node answer", [codec.encode(each) for each in DOOR_ANSWERS], door.decode_answer, (ProtocolError,)),
    Decoder("routed", [codec.encode(scribe.JoinTree("news"))], scribe.decode, (ProtocolError,)),
    Decoder("letter", [codec.encode(Letter("news", NODE, 1, 2, b"body"))], decode_letter, (ProtocolError,)),
    Decoder("guess", [codec.encode(each) for each in REQUESTS], codec.guess_request, ()),
    Decoder("record", [a_record()], lambda data: record.decode(memoryview(data), 0, BASE), ()),
    Decoder(
        "records",
        [a_record() * 2],
        lambda data: list(record.scan(memoryview(data), 0, BASE, 7, "file")),
        (StorageDamaged,),
    ),
    Decoder(
        "segment header",
        [segment.encode_header(5, 700)],
        lambda data: segment.decode_header(memoryview(data), "file"),
        (StorageDamaged,),
    ),
    Decoder(
        "index",
        [an_envelope(segment.encode_index, b"sums")],
        lambda data: segment.decode_index(memoryview(data), "file"),
        (StorageDamaged,),
    ),
    Decoder(
        "snapshot",
        [an_envelope(segment.encode_snapshot)],
        lambda data: segment.decode_snapshot(memoryview(data), "file"),
        (StorageDamaged,),
    ),
]


def mangled(rng: random.Random, sample: bytes) -> bytes:
    data = bytearray(sample)
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(0, 120))
        case 1:
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 2:
            del data[rng.randrange(len(data)) :]
        case 3:
            data += data[: rng.randrange(len(data))]
        case _:
            where = rng.randrange(len(data))
            data[where:where] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_a_decoder_reads_or_refuses(decoder: Decoder) -> None:
    rng = random.Random(decoder.name)
    for sample in decoder.samples:
        decoder.decode(sample)
    for _ in range(ROUNDS):
        data = mangled(rng, rng.choice(decoder.samples))
        try:
            decoder.decode(data)
        except decoder.refusals as refusal:
            assert isinstance(refusal, TidingsError)
            assert len(str(refusal)) > 20, "a refusal says what was wrong"


def test_an_inbox_reads_or_refuses(tmp_path: Path) -> None:
    path = tmp_path / "inbox"
    inbox = Inbox(path, "alice")
    for offset in range(1, 4):
        inbox.mark(("news",), "news", offset)
    inbox.close()
    sample = path.read_bytes()
    rng = random.Random(3)
    for _ in range(ROUNDS // 10):
        path.write_bytes(mangled(rng, sample))
        try:
            Inbox(path, "alice").close()
        except (StorageDamaged, InvalidRequest) as refusal:
            assert str(path) in str(refusal)


def test_settings_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "tidings.toml"
    sample = b'[broker]\ntopics = "auto"\ntopics_max = 12\nadmins = ["root"]\n'
    rng = random.Random(4)
    for _ in range(ROUNDS // 10):
        path.write_bytes(mangled(rng, sample))
        try:
            load(BrokerSettings, file=path)
        except InvalidRequest as refusal:
            assert len(str(refusal)) > 20

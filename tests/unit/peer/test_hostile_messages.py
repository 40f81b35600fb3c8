"""Whatever a peer says in a well-formed message, a node goes on: it obeys, ignores or refuses (P12).

Messages of all types are made up field by field, with names, offsets and epochs from a small set, so that they meet
the state of the stack; routed payloads and letters likewise. A layer may raise its own errors, which the node counts;
a broken invariant would end the process, and a peer must not be able to bring that about.
"""

from __future__ import annotations

import os
import random
import typing
from typing import Any

import pytest

from tidings.errors import ProtocolError, TidingsError
from tidings.peer.stacks import LayerSettings, build_stack
from tidings.protocols import pubsub
from tidings.protocols.chord import TakePlace, key_of
from tidings.protocols.chord.messages import JOIN, LOOKUP, ROUTE, STEP, Hop
from tidings.protocols.pubsub.messages import Letter
from tidings.protocols.scribe import Scribe
from tidings.protocols.scribe import messages as scribe
from tidings.protocols.stack import (
    CancelTimer,
    Effect,
    Message,
    PeerDown,
    Received,
    Requested,
    SetTimer,
    Stack,
    Timer,
    TimerFired,
)
from tidings.settings import PeerSettings, ScribeSettings
from tidings.wire.codec import encode
from tidings.wire.peers import MessageDecoder

ROUNDS = int(os.environ.get("TIDINGS_FUZZ", "4000"))
ME = "tcp://127.0.0.1:7500"
PEERS = [f"tcp://127.0.0.1:{port}" for port in range(7501, 7508)]
TOPICS = ["news", "sport", f"{ME} 0", f"{PEERS[0]} 0", ""]
NUMBERS = [-(2**40), -2, -1, 0, 1, 2, 3, 5, 64, 4_097, 2**32, 2**33 + 1, 2**63 - 1]


class Stranger:
    """Makes up messages, and plays the runtime of a stack that is told them."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.rng = random.Random(seed)
        self.decoder = MessageDecoder(stack.messages)
        self.timers: dict[Timer, None] = {}
        self.now_ms = 0
        self.refusals = 0
        self.apply(stack.start(0))

    def value(self, kind: Any) -> Any:
        rng = self.rng
        if kind is int:
            return rng.choice(NUMBERS)
        if kind is bool:
            return rng.random() < 0.5
        if kind is str:
            return rng.choice([ME, *PEERS, *TOPICS, "nonsense"])
        if kind is bytes:
            return self.payload()
        if kind is type(None):
            return None
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) is tuple:
            if arguments[-1] is ...:
                return tuple(self.value(arguments[0]) for _ in range(rng.choice((0, 1, 1, 2, 5))))
            return tuple(self.value(argument) for argument in arguments)
        if arguments:
            return self.value(rng.choice(arguments))
        return self.made_up(kind)

    def made_up(self, kind: type) -> Any:
        if kind is Hop:  # By lot alone hardly any would get past the decoder.
            rng = self.rng
            key, hop_kind = key_of(rng.choice(TOPICS)), rng.choice((ROUTE, STEP, LOOKUP, JOIN))
            origin, flags = rng.choice(PEERS), rng.random() < 0.5
            return Hop(self.value(int), hop_kind, key, origin, self.value(int), 0, flags, self.payload())
        hints = typing.get_type_hints(kind)
        return kind(*(self.value(hints[name]) for name in kind.__struct_fields__))  # type: ignore[attr-defined]

    def payload(self) -> bytes:
        rng = self.rng
        match rng.randrange(5):
            case 0:
                return key_of(rng.choice(TOPICS))
            case 1:
                return encode(self.made_up(Letter))
            case 2 | 3:
                return encode(self.made_up(rng.choice((scribe.JoinTree, scribe.Submit, scribe.Fetch))))
            case _:
                return rng.randbytes(rng.randrange(40))

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SetTimer):
                self.timers[effect.timer] = None
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.timer, None)

    def step(self) -> None:
        rng = self.rng
        self.now_ms += rng.choice((0, 1, 300, 2_500))
        if rng.random() < 0.15 and self.timers:
            timer = rng.choice(list(self.timers))
            del self.timers[timer]
            self.apply(self.stack.handle(TimerFired(self.now_ms, timer)))
        elif rng.random() < 0.03:
            self.apply(self.stack.handle(PeerDown(self.now_ms, rng.choice(PEERS))))
        else:
            message = self.made_up(rng.choice(self.stack.messages))
            try:
                decoded: Message = self.decoder.decode(encode(message))
            except ProtocolError:
                return
            try:
                self.apply(self.stack.handle(Received(self.now_ms, rng.choice(PEERS), decoded)))
            except TidingsError:
                self.refusals += 1


def a_stack(overlay: typing.Literal["chord", "hyparview"], seed: int) -> Stack:
    layers = LayerSettings(scribe=ScribeSettings(log_messages_max=8))
    return build_stack(PeerSettings(overlay=overlay, join=(PEERS[0],)), layers, ME, random.Random(seed))


@pytest.mark.parametrize("seed", range(8))
def test_no_message_breaks_a_ring_node(seed: int) -> None:
    stack = a_stack("chord", seed)
    stranger = Stranger(stack, seed)
    if seed % 2:
        stranger.apply(stack.handle(Requested(0, TakePlace(PEERS[0], tuple(sorted(PEERS[1:4]))))))
    for topic in TOPICS[:2]:
        stranger.apply(stack.handle(Requested(0, pubsub.Subscribe(topic))))
        stranger.apply(stack.handle(Requested(0, pubsub.Publish(topic, b"hello"))))
    for step in range(ROUNDS):  # By lot some strangers are polite for long.
        if step >= ROUNDS // 4 and stack.layer(Scribe).malformed:
            break
        stranger.step()
    assert stack.layer(Scribe).malformed, "nothing was malformed: the stranger is too polite to prove anything"


@pytest.mark.parametrize("seed", range(8))
def test_no_message_breaks_a_gossiping_node(seed: int) -> None:
    stack = a_stack("hyparview", seed)
    stranger = Stranger(stack, seed)
    for topic in TOPICS[:2]:
        stranger.apply(stack.handle(Requested(0, pubsub.Subscribe(topic))))
        stranger.apply(stack.handle(Requested(0, pubsub.Publish(topic, b"hello"))))
    for _ in range(ROUNDS // 4):
        stranger.step()

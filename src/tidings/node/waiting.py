"""Answers of a member that wait: for the word that it still leads, or for what is damaged on its disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tidings.journal.checked import DamagedPlace
from tidings.node.engine import AnyEngine, places_of, say_damaged, with_places
from tidings.node.replica import ReplicaEngine
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.topics import Place
from tidings.protocols.effects import Effect, Forward, Persist, Send
from tidings.protocols.events import Received
from tidings.protocols.multipaxos.messages import Read
from tidings.protocols.stack import Requested

REPAIR_MS_MAX = 5_000
"""Anyone who waits for what is damaged is told so after this long, if it has not come from another member."""

QUESTIONS = (
    messages.Hello,
    messages.Get,
    messages.AskGroups,
    messages.AskSequence,
    messages.AskSubscriptions,
    messages.AskSubscribers,
    messages.AskTopics,
    messages.AskStatus,
    bulk.Read,
    bulk.AskOffset,
)
"""Requests that may be answered from the state alone; that has to be the state of the group."""


class _Unconfirmed(NamedTuple):
    request: Received
    effects: list[Effect]


class _Mending(NamedTuple):
    until_ms: int
    effect: Effect
    damage: DamagedPlace
    is_stream: bool
    """A stream stands at what is damaged, and goes on by itself."""


class WaitingAnswers:
    """What is let out later, or not at all."""

    def __init__(self, engine: AnyEngine, replica: ReplicaEngine) -> None:
        self._engine = engine
        self._replica = replica
        self._unconfirmed: dict[int, _Unconfirmed] = {}
        self._last_token = 0
        self._mending: list[_Mending] = []

    def let_out(self, received: Received, effects: list[Effect]) -> None:
        """Does what a request leads to. An answer from the state alone has to be confirmed first."""
        if isinstance(received.message, QUESTIONS) or any(map(_is_refusal, effects)):
            self.confirm(received, effects)
        else:
            self._engine.run(effects)

    def confirm(self, received: Received, effects: list[Effect]) -> None:
        """Lets answers out once it is certain that we led when they were made."""
        commanded = [effect for effect in effects if not isinstance(effect, Persist)]
        self._engine.run([effect for effect in effects if isinstance(effect, Persist)])
        if commanded:
            self._last_token += 1
            self._unconfirmed[self._last_token] = _Unconfirmed(received, commanded)
            self._replica.handle(Requested(received.now_ms, Read(self._last_token)))

    def on_confirmed(self, token: int) -> None:
        """We led when this was asked."""
        held = self._unconfirmed.pop(token, None)
        if held is not None:
            self._engine.run(held.effects)

    def on_refused(self, token: int, not_leader: Callable[[int], messages.NotLeader]) -> None:
        """We may not have led any more."""
        held = self._unconfirmed.pop(token, None)
        if held is not None:
            self._engine.reply(held.request.peer, not_leader(held.request.message.request))

    def on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        """What is damaged here comes from another member, if one has it: anyone who wants it has to wait that long."""
        engine, until_ms = self._engine, self._engine.now_ms + REPAIR_MS_MAX
        if not self._replica.mend(damage.span):
            engine.withhold(effect, damage, say_damaged(damage))
        elif not places_of(effect):
            pass  # A message between nodes that gets lost: anyone who waits for it asks again.
        elif isinstance(effect, Forward) and isinstance(effect.message, messages.Delivery):
            engine.withhold(effect, damage, None)  # The stream stops there, so that nothing overtakes it.
            self._mending.append(_Mending(until_ms, effect, damage, True))
        else:
            self._mending.append(_Mending(until_ms, effect, damage, False))

    def on_mended(self) -> None:
        """Something has come: all that waits for it is tried again, and the rest reads it where it lies now."""
        moves, self._replica.repairs.moves = self._replica.repairs.moves, []
        mending, self._mending = self._mending, []
        self._engine.broker.mended()

        def follow(place: Place) -> Place:
            address = place.address
            for move in moves:
                address = move.follow(address)
            return msgspec.structs.replace(place, address=address)

        for token, held in self._unconfirmed.items():
            self._unconfirmed[token] = held._replace(effects=[with_places(each, follow) for each in held.effects])
        self._engine.run([with_places(each.effect, follow) for each in mending if not each.is_stream])

    def give_up(self, now_ms: int) -> None:
        """Tells those who have waited long enough for what is damaged."""
        late = [each for each in self._mending if now_ms >= each.until_ms]
        self._mending = [each for each in self._mending if now_ms < each.until_ms]
        for each in late:
            self._engine.withhold(each.effect, each.damage, say_damaged(each.damage))

    def turn_away(self, not_leader: Callable[[int], messages.NotLeader]) -> None:
        """We lead no longer: nothing of it is let out here."""
        for token in list(self._unconfirmed):
            self.on_refused(token, not_leader)
        self._mending.clear()


def _is_refusal(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, messages.Failed)

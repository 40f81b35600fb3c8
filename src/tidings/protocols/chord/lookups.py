"""Lookups: who owns a key? (FIND-ROOT; also how fingers are found)"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tidings.protocols.chord.identifiers import Key
from tidings.protocols.chord.messages import LOOKUP, LookupDue, RootFound, RootUnknown
from tidings.protocols.stack import CancelTimer, Effect, NodeId, Notify, SetTimer
from tidings.settings import ChordSettings

Begin = Callable[[int, Key, int], list[Effect]]
"""Sends a message of a kind on its way to a key, with a token."""


class Lookup(msgspec.Struct):
    key: Key
    finger: int | None
    """The finger that it is for; None if the layer above asked."""
    tries: int = 1


class Lookups:
    """The questions of one node, asked again until they are answered or given up."""

    def __init__(self, settings: ChordSettings, begin: Begin, on_finger: Callable[[int, NodeId], None]) -> None:
        self._settings = settings
        self._begin = begin
        self._on_finger = on_finger
        self._waiting: dict[int, Lookup] = {}
        self._token = 0
        self._finger_token: int | None = None

    def find(self, key: Key) -> list[Effect]:
        if len(self._waiting) >= self._settings.pending_max:
            return [Notify(RootUnknown(key))]
        return self._ask(Lookup(key, None))

    def find_finger(self, k: int, key: Key) -> list[Effect]:
        """Looks one finger up; the one before is given up if it has not been found, for its turn will come again."""
        if self._finger_token is not None:
            self._waiting.pop(self._finger_token, None)
        effects = self._ask(Lookup(key, k, tries=self._settings.lookup_tries))
        self._finger_token = self._token if self._token in self._waiting else None
        return effects

    def on_found(self, peer: NodeId, token: int, hops: int) -> list[Effect]:
        lookup = self._waiting.pop(token, None)
        if lookup is None:
            return []
        cancel = CancelTimer(LookupDue(token))
        if lookup.finger is None:
            return [cancel, Notify(RootFound(lookup.key, peer, hops))]
        self._on_finger(lookup.finger, peer)
        return [cancel]

    def on_due(self, token: int) -> list[Effect]:
        lookup = self._waiting.pop(token, None)
        if lookup is None or lookup.finger is not None:
            return []
        if lookup.tries >= self._settings.lookup_tries:
            return [Notify(RootUnknown(lookup.key))]
        lookup.tries += 1
        return self._ask(lookup)

    def _ask(self, lookup: Lookup) -> list[Effect]:
        self._token += 1
        token = self._token
        self._waiting[token] = lookup
        effects = self._begin(LOOKUP, lookup.key, token)
        if token not in self._waiting:
            return effects  # The key is our own.
        return [SetTimer(LookupDue(token), self._settings.lookup_ms), *effects]

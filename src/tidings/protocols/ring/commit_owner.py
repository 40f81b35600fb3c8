"""Parts of commits over several groups, at the leader of a group that owns some of their topics.

A part is held, and carried out or dropped, by journaled commands alone (`commits`). Each is answered for once it is
durable, so what we say is what our group has agreed on. Who has held a part for a while asks the owner of the client's
home what was decided, and goes on asking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidings.errors import Moved, TidingsError
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.origins import Reporting
from tidings.protocols.broker.ownership import Grown
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Effect, Persist
from tidings.protocols.fields import NAME_CHARACTERS_MAX
from tidings.protocols.ring.commit_commands import CommitId, HoldPart, ResolvePart
from tidings.protocols.ring.commit_messages import (
    AskDecision,
    Decision,
    PartDone,
    PartPrepared,
    PartRefused,
    PreparePart,
)
from tidings.protocols.ring.commits import Commits
from tidings.protocols.ring.directory import Directory
from tidings.protocols.ring.handoff_messages import ToGroup
from tidings.protocols.ring.key_ranges import home_of
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.policy import ring_of

ASK_AFTER_MS = 300
PERSIST_AGAIN_MS = 2_000


class Held(NamedTuple):
    """Wants to hear whether a part is held."""

    sender: GroupDescriptor
    commit: CommitId
    client: str


class Resolved(NamedTuple):
    """Wants to hear that a part has been carried out, or dropped."""

    sender: GroupDescriptor
    commit: CommitId
    client: str
    happens: bool


class CommitOwner:
    """Holds parts for coordinators, and asks them."""

    def __init__(self, machine: Machine, directory: Directory, want: Callable[[int, Key], None]) -> None:
        self._machine = machine
        self._directory = directory
        self._want = want
        self._asked_for_ms: dict[tuple[CommitId, str], int] = {}
        """Commands that are on their way, and since when."""
        self._asked_ms: dict[CommitId, int] = {}
        """Parts that are held, and when their coordinator was last asked, or when they were first seen."""
        self._asked: dict[CommitId, bytes] = {}
        """Of which group that was asked."""

    @property
    def _commits(self) -> Commits:
        ring = ring_of(self._machine)
        assert ring is not None
        return ring.commits

    def reset(self) -> None:
        """What was on its way is on its way no longer."""
        self._asked_for_ms.clear()
        self._asked_ms.clear()
        self._asked.clear()

    def _is_under_way(self, now_ms: int, commit: CommitId, what: str) -> bool:
        """Whether a command for this is on its way; if not, it is now."""
        since_ms = self._asked_for_ms.get((commit, what))
        if since_ms is not None and now_ms - since_ms < PERSIST_AGAIN_MS:
            return True
        self._asked_for_ms[commit, what] = now_ms
        return False

    def on_prepare(
        self, now_ms: int, own: GroupDescriptor, message: PreparePart, bodies: tuple[bytes | memoryview, ...]
    ) -> list[Effect]:
        """Holds a part, unless another one of the same client is still held: that is asked about."""
        held = self._commits.held.get(message.client)
        if held is not None and held.commit == message.commit:
            prepared = PartPrepared(own.group, message.commit, message.client, held.staged)
            return [ToGroup(message.sender, prepared)]
        if [len(body) for body in bodies] != [batch.size_bytes for batch in message.batches]:
            return []
        if held is not None:
            self._asked_ms[held.commit] = now_ms
            return self._ask(now_ms, own, message.client, held.commit)
        if self._is_under_way(now_ms, message.commit, "hold"):
            return []
        part = (message.batches, message.acknowledgements, message.publishing)
        command = HoldPart(message.commit, message.client, message.epoch, *part)
        about = Held(message.sender, message.commit, message.client)
        return [Persist(command, bodies, Reporting(about))]

    def on_held(self, own: GroupDescriptor, about: Held, error: Exception | None) -> list[Effect]:
        """Says that it is held, or why not."""
        self._asked_for_ms.pop((about.commit, "hold"), None)
        if error is None:
            held = self._commits.held.get(about.client)
            staged = held.staged if held is not None and held.commit == about.commit else ()
            return [ToGroup(about.sender, PartPrepared(own.group, about.commit, about.client, staged))]
        if not isinstance(error, TidingsError) or (isinstance(error, Moved) and about.client in self._commits.held):
            return []  # Another part of the same client came in between: we are asked again.
        refused = PartRefused(own.group, about.commit, about.client, error.number, str(error)[:NAME_CHARACTERS_MAX])
        return [ToGroup(about.sender, refused)]

    def on_decision(self, now_ms: int, message: Decision) -> list[Effect]:
        """Carries a part out, or drops it. Also what is not here any more is answered by our journal."""
        held = self._commits.held.get(message.client)
        if not message.happens and (held is None or held.commit != message.commit):
            return []
        if self._is_under_way(now_ms, message.commit, "resolve"):
            return []
        about = Resolved(message.sender, message.commit, message.client, message.happens)
        return [Persist(ResolvePart(message.commit, message.client, message.happens), origin=Reporting(about))]

    def on_resolved(
        self, own: GroupDescriptor, about: Resolved, result: object, error: Exception | None
    ) -> list[Effect]:
        """Tells the coordinator where everything went."""
        self._asked_for_ms.pop((about.commit, "resolve"), None)
        if error is not None or not about.happens:
            return []
        stored, extents = (result.stored, result.extents) if isinstance(result, Grown) else (None, ())
        return [ToGroup(about.sender, PartDone(own.group, about.commit, about.client, stored, extents))]

    def awaited(self) -> Iterator[bytes]:
        """Groups that have been asked what became of a part. One that has left, and is switched off, never says so."""
        held = (part.commit for part in self._commits.held.values())
        return (self._asked[commit] for commit in held if commit in self._asked)

    def tick(self, now_ms: int, own: GroupDescriptor) -> list[Effect]:
        """Asks what became of parts that have been held for a while."""
        held = self._commits.held
        self._asked_ms = {each.commit: self._asked_ms.get(each.commit, now_ms) for each in held.values()}
        self._asked = {commit: group for commit, group in self._asked.items() if commit in self._asked_ms}
        self._asked_for_ms = {
            key: at_ms for key, at_ms in self._asked_for_ms.items() if now_ms - at_ms < PERSIST_AGAIN_MS
        }
        effects: list[Effect] = []
        for client, part in held.items():
            if now_ms - self._asked_ms[part.commit] >= ASK_AFTER_MS:
                self._asked_ms[part.commit] = now_ms
                effects += self._ask(now_ms, own, client, part.commit)
        return effects

    def _ask(self, now_ms: int, own: GroupDescriptor, client: str, commit: CommitId) -> list[Effect]:
        home = home_of(client)
        owner = self._directory.find(home)
        if owner is None:
            self._want(now_ms, home)
            return []
        self._asked[commit] = owner.group
        return [ToGroup(owner, AskDecision(own, commit, client))]

"""Commits over several groups, as each group's own journal knows them.

A client's puts and acknowledgements may concern topics of several groups. The group that owns the *home* of the client
coordinates:

    coordinator   BeginCommit                DecideCommit                 EndCommit
    each owner                 HoldPart                      ResolvePart

`BeginCommit` comes before anybody is asked for a part. So the decision about a commit that is not among the
coordinator's open ones is known: either it was carried out everywhere, or it never happens. An owner that still has a
part of such a commit drops it. The coordinator decides once: that it happens, when all parts are held and the client
has no newer session; that it does not, when one was refused, or when the leader that began it is gone.

An owner *holds* its part: it has checked that it can be carried out, and nothing that is agreed on later may change
that. It serves nothing else of this client meanwhile, so sequence numbers and cursors stay as they were; limits that
others may reach in the meantime do not count. It never drops a part by itself.

A commit may also publish what is staged with several owners (`Publishing`). Then the query's sink takes the place of
the client: its home remembers which batches were published (`Stages.queries`), and the decision that one happens is
the record that remembers it.

Neither a point that a held part is about, nor the home of a client with an open commit, is handed off (`is_busy`).
"""

from __future__ import annotations

import msgspec

from tidings.errors import Moved
from tidings.protocols.broker.bulk import Extent
from tidings.protocols.broker.messages import Acknowledgement
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.commit_commands import CommitId, PartWrite, Publishing, StagedPart, StoredParts
from tidings.protocols.ring.key_ranges import KeyRanges, common, finder, home_of, point_of
from tidings.protocols.ring.messages import GroupDescriptor

DONE_MAX = 1_000
"""Parts of which it is remembered where their messages went: the coordinator may not have heard it."""


class OpenCommit(msgspec.Struct, frozen=True, array_like=True):
    """A commit that has begun here, with the groups that have a part of it."""

    commit: CommitId
    epoch: int
    groups: tuple[GroupDescriptor, ...]
    happens: bool = False
    """Whether that is decided; before, nothing is."""
    publishing: Publishing | None = None


class HeldPart(msgspec.Struct, frozen=True, array_like=True):
    """What a commit is to change here. The bodies are held under its name; what is staged stays so."""

    commit: CommitId
    epoch: int
    batches: tuple[PartWrite, ...]
    acknowledgements: tuple[Acknowledgement, ...]
    publishing: Publishing | None = None
    staged: tuple[StagedPart, ...] = ()
    """What there is here of the stages that are to be published."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Everything that it is about."""
        put = (target.topic for batch in self.batches for target in batch.targets)
        acknowledged = (topic for each in self.acknowledgements for topic in each.topics)
        return tuple(dict.fromkeys((*put, *acknowledged, *(topic for each in self.staged for topic in each.topics))))


class CommitsState(msgspec.Struct, frozen=True, array_like=True):
    """All of it, as a snapshot holds it."""

    open: dict[str, OpenCommit] = {}
    held: dict[str, HeldPart] = {}
    done: dict[bytes, StoredParts] = {}
    published: dict[bytes, tuple[Extent, ...]] = {}


class Commits:
    """The open commits that a group coordinates, and the parts that it holds."""

    def __init__(self, state: CommitsState | None = None) -> None:
        state = state or CommitsState()
        self.open = dict(state.open)
        """client -> its commit; it has one at a time."""
        self.held = dict(state.held)
        """client -> a part of its commit."""
        self.done = dict(state.done)
        """Parts that were carried out, the newest last."""
        self.published = dict(state.published)
        """The same, of those that have published stages."""

    def state(self) -> CommitsState:
        """Everything, for a snapshot."""
        return CommitsState(dict(self.open), dict(self.held), dict(self.done), dict(self.published))

    def remember(self, commit: CommitId, stored: StoredParts, extents: tuple[Extent, ...]) -> None:
        """Where the messages of a part went, which was carried out."""
        self.done[commit] = stored
        if extents:
            self.published[commit] = extents
        while len(self.done) > DONE_MAX:
            oldest = next(iter(self.done))
            del self.done[oldest]
            self.published.pop(oldest, None)

    def check_free(self, client: str) -> None:
        """Moved if a part of this client's commit is held: what else it wants has to come later."""
        if client in self.held:
            raise Moved(f"A commit of {client.strip()!r} is about to be decided: ask again.")

    def is_busy(self, ranges: KeyRanges) -> bool:
        """Whether something in these ranges has to stay until a commit has come to its end."""
        if not self.open and not self.held:
            return False
        is_in = finder(ranges)
        points: list[Key] = [home_of(client) for client in self.open]
        points += [point_of(topic) for part in self.held.values() for topic in part.topics]
        published = (part.publishing.ranges for part in self.held.values() if part.publishing is not None)
        # Also where nothing was staged: the coordinator waits for an answer from everybody whom it has asked.
        return any(map(is_in, points)) or any(common(ranges, each) for each in published)


def bodies_of(commit: CommitId) -> str:
    """The name under which the bodies of a part are held. No stage has such a name: it is not printable.

    >>> bodies_of(bytes(16))[:5]
    '\\n0000'
    """
    return f"\n{commit.hex()}"

"""A replica on a journal: joins `protocols.multipaxos` and `journal`, and does no I/O of its own.

    bytes -> wire -> replica -> records staged -> begin_commit -> (the journal writes) -> finish_commit
          -> answers in `outgoing` -> bytes

Whoever drives it brings the bytes and the timers, runs `journal.write` on what `begin_commit` returned, calls
`finish_commit`, sends what is in `outgoing`, and looks at `notifications`. All records that came while one commit was
being written go into the next: that is the group commit. What the replica wants said only when it is durable leaves
only then, in the order in which it was wanted.

The records have numbers of their own in the journal, beside the slots that they speak of. A full segment is sealed with
all that is still of use (`Whole`) as its snapshot, and removed at once.

A full disk ends the process, as a failed sync does: an acceptor that cannot write cannot answer, and the others go on.
"""

from __future__ import annotations

from random import Random

from tidings.errors import InvalidRequest
from tidings.journal.journal import Commit, Journal
from tidings.journal.record import COMMAND, Append
from tidings.protocols.multipaxos.membership import Membership, Term
from tidings.protocols.multipaxos.messages import Persist, Received, Send
from tidings.protocols.multipaxos.records import (
    Installed,
    Named,
    Record,
    Snapshot,
    Stored,
    decode_record,
    decode_whole,
    encode,
)
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.sessions import Machine
from tidings.protocols.stack import CancelTimer, Effect, Event, Notification, Notify, SetTimer
from tidings.settings import ReplicaSettings
from tidings.wire.replication import encode_message

FIRST_SLOT = 1
"""A node that has nothing at all stands at slot 0, and so always gets a snapshot first."""


def founding(voters: tuple[int, ...], window: int) -> Snapshot:
    """What every founder of a group begins with; `window` is how many slots may ever be open at once."""
    if len(set(voters)) != len(voters) or not voters or min(voters) < 1 or window < 1:
        raise InvalidRequest("A group needs voters with different numbers from 1 on, and a window of at least 1.")
    membership = Membership(tuple(sorted(voters)), newest=max(voters))
    return Snapshot(FIRST_SLOT, window, (Term(FIRST_SLOT, membership),), b"")


class ReplicaEngine:
    """One replica on one journal."""

    def __init__(
        self, node: int, settings: ReplicaSettings, machine: Machine, journal: Journal, random: Random
    ) -> None:
        self.replica = Replica(node, settings, machine, random)
        self.journal = journal
        self.outgoing: list[tuple[tuple[int, ...], bytes]] = []
        """Messages to send, in order; the driver takes them out."""
        self.timers: list[SetTimer | CancelTimer] = []
        self.notifications: list[Notification] = []
        self._staged: list[Persist] = []
        self._committing: list[Persist] = []
        self._commit: Commit | None = None
        self._sealed_address: int | None = None

    def recover(self, now_ms: int, founded: Snapshot | None = None) -> int:
        """Rebuilds the replica from its journal and starts it; the number of records that were replayed.

        `founded` is what a founder of a new group begins with; a node that joins one begins with nothing. Neither
        matters once the journal holds anything.
        """
        node, recovery = self.replica.node, self.journal.recover()
        whole = decode_whole(recovery.snapshot) if recovery.snapshot is not None else None
        records = [decode_record(record.command) for record in recovery.records]
        owner = next((record.node for record in records if isinstance(record, Named)), whole.node if whole else None)
        if owner is None:
            named: list[Record] = [Named(node)]
            if founded is not None:
                named.append(Installed(founded))
            self._staged.append(Persist(tuple(named)))
            records = named
        elif owner != node:
            raise InvalidRequest(f"This folder belongs to node {owner}, not to {node}: give each node a folder.")
        self.replica.restore(whole, records)
        self._run(now_ms, self.replica.start())
        return len(records)

    def handle(self, event: Event) -> None:
        """A message, a timer or a request."""
        self._run(event.now_ms, self.replica.handle(event))

    # The group commit.

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    @property
    def committing(self) -> bool:
        return self._commit is not None

    @property
    def commit(self) -> Commit | None:
        """What is on its way to the disk."""
        return self._commit

    def begin_commit(self, now_ms: int) -> Commit:
        """What has been staged, for `journal.write`; one commit at a time."""
        assert self._staged and self._commit is None
        if self.journal.full:
            self._sealed_address = self.journal.end_address
            self.journal.roll_next(b"", encode(self.replica.whole()))
        self._committing, self._staged = self._staged, []
        appends = [_append(record, now_ms) for persist in self._committing for record in persist.records]
        self._commit = self.journal.begin(appends)
        return self._commit

    def finish_commit(self, now_ms: int) -> None:
        """The commit is durable: what was to be said then is said now."""
        assert self._commit is not None
        self.journal.finish(self._commit)
        if self._sealed_address is not None:
            self.journal.remove_through(self._sealed_address)
        # Answers leave in their order: what is staged while they do comes after all of them.
        for persist in self._committing:
            self._run(now_ms, list(persist.answers))
        self._commit, self._committing, self._sealed_address = None, [], None
        self._answer_recordless(now_ms)

    def _answer_recordless(self, now_ms: int) -> None:
        """Answers at the head of the queue that need nothing more on disk."""
        while self._commit is None and self._staged and not self._staged[0].records:
            self._run(now_ms, list(self._staged.pop(0).answers))

    # What comes out.

    def _run(self, now_ms: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self._staged.append(effect)
                case Send(nodes, message):
                    others = tuple(node for node in nodes if node != self.replica.node)
                    if others:
                        self.outgoing.append((others, encode_message(message)))
                    if len(others) < len(nodes):
                        self._run(now_ms, self.replica.handle(Received(now_ms, self.replica.node, message)))
                case SetTimer() | CancelTimer():
                    self.timers.append(effect)
                case Notify(notification):
                    self.notifications.append(notification)
                case _:
                    raise AssertionError(f"A replica does not ask for {effect!r}.")
        self._answer_recordless(now_ms)


def _append(record: Record, now_ms: int) -> Append:
    if isinstance(record, Stored):
        ballot = record.entry.ballot
        return Append(COMMAND, encode(record), (), now_ms, ballot.number, ballot.node)
    return Append(COMMAND, encode(record), (), now_ms)

"""A replica on a journal: joins `protocols.multipaxos` and `journal`, and does no I/O of its own.

    frames -> wire -> replica -> records staged -> begin_commit -> (the journal writes) -> finish_commit
           -> answers in `outgoing` -> frames
           -> what is decided and on this disk is applied to the state

Anyone who drives it brings the messages and the timers, runs `journal.write` on what `begin_commit` returned, calls
`finish_commit`, sends what is in `outgoing`, and looks at `notifications`. All records that came while one commit was
being written go into the next: that is the group commit. What the replica wants said only when it is durable leaves
only then, in the order in which it was wanted.

**One file.** The accept log is the journal of the state: a command is written once, as the body of the record that says
under which ballot it was accepted, and stays there. When its slot is decided and the record is on this disk, the state
is given the command and its address here. (Records have numbers of their own in the journal, beside the slots that
they speak of: a slot that is accepted again under a higher ballot has two.) A full segment is sealed with the state and
a `SnapshotHeader` as its snapshot, and stays as long as the state refers to it.

Those who are behind are sent the values, read from the journal; if these are gone, the files (`node.file_copy`).

**A node that was alone.** Its journal begins with what a broker alone writes: plain commands, and segments sealed with
the broker's own snapshot. They are part of the state before the first slot. The segment that it was writing is sealed
at once, so that others can be given it; until then, damage to it stops the start, as it does for a broker alone.

A full disk ends the process, as a failed sync does: an acceptor that cannot write cannot answer, and the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from tidings.errors import InvalidRequest, StorageDamaged
from tidings.journal.disk import Buffer, LocalDisk
from tidings.journal.journal import Commit, Journal
from tidings.journal.record import COMMAND, HEADER_SIZE, LOCAL, REPLICA, Append
from tidings.journal.record import Record as JournalRecord
from tidings.journal.recovery import Span
from tidings.journal.remedies import REJOIN, advising
from tidings.node.bodies import Kept, Local, put_together, read_copy, read_values, take_apart
from tidings.node.damage import Damage
from tidings.node.file_copy import FileCopy
from tidings.node.places import Places
from tidings.node.repairs import ASKED_MAX, Move, Repairs
from tidings.node.snapshot_header import Held, SnapshotHeader, decode_piece, decode_snapshot_header, encode
from tidings.node.state import Applied, State, StateExchanged
from tidings.protocols.multipaxos import records
from tidings.protocols.multipaxos.membership import History
from tidings.protocols.multipaxos.messages import (
    AnyMessage,
    Chosen,
    Copied,
    Decided,
    ElectionDue,
    Fetch,
    FetchCopy,
    FetchFile,
    Offer,
    Persist,
    ReadReady,
    Received,
    Send,
)
from tidings.protocols.multipaxos.messages import Piece as FilePiece
from tidings.protocols.multipaxos.records import Installed, Known, Lost, Named, Promised, Record, Snapshot, Stored
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import CHOSEN, Add, Command, Entry, Promote, Remove
from tidings.protocols.multipaxos.witness import Witness
from tidings.protocols.stack import CancelTimer, Effect, Event, Notification, Notify, SetTimer, TimerFired
from tidings.settings import ReplicaSettings


class ReplicaEngine:
    """One replica on one journal."""

    def __init__(
        self,
        node: int,
        settings: ReplicaSettings,
        make_state: Callable[[], State],
        journal: Journal,
        disk: LocalDisk,
        random: Random,
    ) -> None:
        self.replica = Replica(node, settings, random)
        self.journal = journal
        self.state = make_state()
        self.applied = 0
        """The first slot that is not applied."""
        self.history = History(window=1, terms=())
        """Who decides, as far as is applied."""
        self.outgoing: list[tuple[tuple[int, ...], AnyMessage]] = []
        """Messages to send, in order; the driver takes them out."""
        self.timers: list[SetTimer | CancelTimer] = []
        self.notifications: list[Notification] = []
        self._settings = settings
        self._make_state = make_state
        life = random.getrandbits(32)
        self._file_copy = FileCopy(disk, journal, settings, life)
        self.witness = Witness(node, life, self.replica.log, settings)
        self._staged: list[Persist | Local] = []
        self._committing: list[Persist | Local] = []
        self._commit: Commit | None = None
        self._roll_wanted = False
        self._decided: deque[Decided] = deque()
        """Decided, and not yet applied because it is still on its way to this disk."""
        self._applying = False
        self._kept: dict[int, Kept] = {}
        self._reads: deque[ReadReady] = deque()
        self.places = Places()
        self.repairs = Repairs(self.places)
        self._alone_until = 0

    # From the disk.

    def recover(self, now_ms: int, founded: Snapshot | None = None, alone_until: int = 0, *formerly: int) -> int:
        """Rebuilds the replica from its journal and starts it; the number of records that were replayed.

        `founded` is what a founder of a new group begins with; a node that joins one begins with nothing. Neither
        matters once the journal holds anything. Below the address `alone_until` the node was a broker alone. `formerly`
        are the numbers that it had before it was removed and taken back.
        """
        self._alone_until = alone_until
        with advising(REJOIN):
            self._file_copy.finish()
            header, whole, replayed, count, damaged = self._rebuild()
        node = self.replica.node
        owner = next((record.node for record in replayed if isinstance(record, Named)), header.node if header else None)
        if owner not in (None, node, *formerly):
            raise InvalidRequest(f"This folder belongs to node {owner}, not to {node}: give each node a folder.")
        begun: list[Record] = [] if owner == node else [Named(node)]
        # A power cut in the very first commit may have left the node's name alone.
        if founded is not None and header is None and all(isinstance(record, Named) for record in replayed):
            begun.append(Installed(founded))
            self._stand_at(founded)
        if begun:
            self._stage(Persist(tuple(begun)))
            replayed += begun
        log = self.replica.log
        self.replica.restore(whole, replayed, damaged)
        self._kept = {slot: kept for slot, kept in self._kept.items() if slot in log.entries}
        ready = next((slot for slot in range(self.applied, log.decided) if slot not in self._kept), log.decided)
        self._apply_through(ready)  # What came along when files were exchanged waits until it has an address.
        self._decided.extend(Decided(slot, log.entries[slot].value) for slot in range(self.applied, log.decided))
        log.forget_below(self.applied)
        self.notifications.clear()  # All of that has happened in an earlier life.
        taken = tuple(Stored(entry) for entry in (header.taken if header is not None else ()) if self._lacks(entry))
        if taken:  # Out of the head and into the journal, so that they have addresses.
            self._stage(Persist(taken))
        reach, memories = (header.reach, header.memories) if header is not None else (0, ())
        self._run(now_ms, self.witness.begin(self.replica.acceptor.promised, reach, memories, replayed))
        self._run(now_ms, self.replica.start())
        if header is None and alone_until > self.journal.segment_address:
            self.roll()
        return count

    def _lacks(self, entry: Entry) -> bool:
        return entry.slot in self.replica.log.entries and entry.slot not in self._kept

    def _rebuild(self) -> tuple[SnapshotHeader | None, records.Whole | None, list[Record | Lost], int, bool]:
        """Reads the journal, brings the state to where it says that it has come; and whether something is missing."""
        recovery = self.journal.recover(skips_damage=True)
        self.state = self._make_state()
        self._kept.clear()
        self._decided.clear()
        header = decode_snapshot_header(recovery.snapshot) if recovery.snapshot is not None else None
        whole = None
        if recovery.snapshot is not None and header is None:
            self.state.restore(recovery.snapshot, recovery.indexes)
        if header is not None:
            pieces = [decode_piece(index) for index in recovery.indexes]
            self.state.restore(header.state, [piece.state for piece in pieces])
            self.applied = 0
            self.places.load(pieces, header.snapshot.next_slot)
            self._forget_places()
            self._stand_at(header.snapshot)
        replayed: list[Record | Lost] = []
        damage = Damage(recovery.damaged, header.known if header is not None else 0)
        known = count = 0
        for found in recovery.records:
            if header is not None and whole is None:
                whole = self._load_held(header, damage)
            count += 1
            if damage.see(found):
                replayed.append(Lost())
            if found.kind in (LOCAL, COMMAND):
                # Behind damage it may speak of what is not applied; the old copies are still there.
                if not damage.found:
                    self._apply_through(known)
                    self.state.apply_local(found.command, found.time_ms, found.body_address)
                continue
            record = put_together(found, self.journal)
            replayed.append(record)
            match record:
                case Stored(entry):
                    self._keep(entry, found)
                case Known(decided):
                    known = max(known, decided)
                    damage.see_decided(decided)
                case Installed(snapshot):
                    self._stand_at(snapshot)
        if header is not None and whole is None:
            whole = self._load_held(header, damage)
        if damage.found:
            if header is None and any(span.start < self._alone_until for span in recovery.damaged):
                raise StorageDamaged("The journal is damaged where it was written before this node had a group.")
            damage.check([slot for slot in damage.lost_slots if slot not in self._kept], self.history)
            replayed = [Named(self.replica.node), *replayed, Promised(damage.promised)]
        return header, whole, replayed, count, damage.found or (header is not None and header.known > 0)

    def _load_held(self, header: SnapshotHeader, damage: Damage) -> records.Whole:
        for held in header.held:
            found = self.journal.record_at(held.address)
            record = put_together(found[0], self.journal) if found is not None else None
            if found is not None and isinstance(record, Stored):
                entry = record.entry
                self._keep(Entry(entry.slot, CHOSEN, entry.value) if held.chosen else entry, found[0])
            else:
                damage.lost_slots.append(held.slot)
        kept = (each.entry for each in self._kept.values())
        return records.Whole(header.promised, header.snapshot, (*header.taken, *kept), header.known)

    def _keep(self, entry: Entry, record: JournalRecord) -> None:
        older = self._kept.get(entry.slot)
        if entry.slot < self.applied:
            if entry.ballot == CHOSEN and entry.slot in self.places:
                self._move(entry, record)
        elif older is None or older.entry.ballot <= entry.ballot:
            self._kept[entry.slot] = Kept(entry, record.address, record.body_address)

    def _move(self, entry: Entry, record: JournalRecord) -> None:
        """What is applied already has come again: from another, because it is damaged where it lies."""
        move = Move(self.places.body_address(entry.slot), record.bodies_size, record.body_address)
        if isinstance(entry.value, Command):
            self.state.move(*move)
        self.places.move(entry.slot, record)
        self.repairs.came(entry.slot, move)

    def _stand_at(self, snapshot: Snapshot) -> None:
        """The state is the one before the snapshot's next slot."""
        if snapshot.next_slot > self.applied:
            self.applied = snapshot.next_slot
            self.history = History(snapshot.window, snapshot.terms)
            if not self.places:
                self.places.begin_at(self.applied)

    # What comes in.

    def handle(self, event: Event) -> None:
        """A message, a timer or a request."""
        now_ms = event.now_ms
        self._run(now_ms, self.witness.tend(now_ms))
        match event:
            case Received() if not self._admits(event):
                pass
            case Received(_, node, Fetch(first_slot)):
                self._serve(node, first_slot)
            case Received(_, node, FetchCopy(copy)):
                self.outgoing += [((node,), each) for each in read_copy(self.journal, self.state, copy)]
            case Received(message=Copied(copy, body)):
                if self.repairs.wants(copy, body, self.state):
                    self.stage_local(copy, (body,))
            case Received(_, node, FetchFile() as wanted):
                self._serve_file(node, wanted)
            case Received(_, node, Offer() as offer):
                if offer.next_slot > self.applied:
                    self._file_copy.take_offer(now_ms, node, offer)
                    self._go_on_exchanging(now_ms)
            case Received(message=Chosen(first_slot, values, _)) if first_slot in self.repairs and values:
                self.repairs.drop(first_slot)
                self._stage(Persist((Stored(Entry(first_slot, CHOSEN, values[0])),)))
            case Received(_, node, FilePiece() as piece):
                self._file_copy.take(node, piece)
                self._go_on_exchanging(now_ms)
            case _:
                if isinstance(event, TimerFired) and isinstance(event.timer, ElectionDue):
                    self.witness.wait_no_longer()
                self._run(now_ms, self.replica.handle(event))

    def _admits(self, event: Received) -> bool:
        counts, effects = self.witness.admit(event)
        self._run(event.now_ms, effects)
        return counts

    def write_memories(self, now_ms: int) -> None:
        """Has it written down how far the other members have come; before a clean end."""
        self._run(now_ms, self.witness.write())

    def stage_local(self, command: bytes, bodies: tuple[Buffer, ...]) -> None:
        """Has a command written down that is for this replica alone; it is applied when it is on disk."""
        # On replay, too, it has to find at least the state as it is now.
        self._stage(self._known())
        self._stage(Local(command, bodies))

    def _known(self) -> Persist:
        """How far the log is decided, all of which the records before this one hold."""
        return Persist((Known(self.replica.log.decided),))

    # What is damaged.

    def mend(self, span: Span) -> bool:
        """Asks the others at once for what is damaged between two addresses; whether they may have it."""
        found, asked = self.repairs.find(span, self.state)
        if asked:  # Until what is damaged has come again, a restart must know that it is decided and can be asked for.
            self._stage(self._known())
        return self._ask_for(asked) and found

    def ask_again(self) -> int:
        """Asks the others for what is still damaged, and has not come; how much that is."""
        left = self.repairs.left(self.state)
        self._ask_for(left[:ASKED_MAX])
        return len(left)

    def _ask_for(self, wanted: list[Fetch | FetchCopy]) -> bool:
        others = tuple(node for node in self.history.newest.membership.voters if node != self.replica.node)
        self.outgoing += [(others, each) for each in wanted]
        return bool(others)

    # Those who are behind.

    def _serve(self, node: int, first_slot: int) -> None:
        """Sends what was decided from a slot on, as much as fits; or offers the files, if that is no longer there."""
        if first_slot >= self.applied:
            return
        slots = self.places.from_slot(first_slot, self.applied)
        values = read_values(self.journal, self.places, slots, self._settings)
        if values:
            self.outgoing.append(((node,), Chosen(first_slot, values, self.applied)))
            return
        if slots:  # It is damaged here, perhaps in the segment that is being written, which no offer holds.
            address = self.places.record_address(first_slot)
            self.mend(Span(address, address + 1))
        if self._seals:
            return
        # What has been mended counts for others once it is sealed.
        offer = self._file_copy.offer() if not self.places.has_moved else None
        if offer is not None:
            self.outgoing.append(((node,), offer))
        else:  # Nothing has been sealed yet; the one who is behind will ask again.
            self.roll()

    def roll(self) -> None:
        """Has the current segment sealed with the next commit."""
        if not self._roll_wanted:
            self._roll_wanted = True
            self._stage(self._known())

    @property
    def _seals(self) -> bool:
        """Whether files come and go just now, in the thread that writes: anyone who wants some will ask again."""
        return self._commit is not None and self._commit.roll is not None

    def _serve_file(self, node: int, wanted: FetchFile) -> None:
        if self._seals:
            return
        piece = self._file_copy.serve(wanted)
        if piece is not None:
            self.outgoing.append(((node,), piece))
        else:
            self._serve(node, 0)

    def _go_on_exchanging(self, now_ms: int) -> None:
        """Takes in the files that have come, unless the disk is busy, and asks for more."""
        if self._commit is not None:
            return
        question = self._file_copy.go_on(now_ms)
        if question is not None:
            self.replica.wait_for_files(now_ms)
            self.outgoing.append(question)
        elif self._file_copy.is_complete:
            self._exchange_state(now_ms)

    def _exchange_state(self, now_ms: int) -> None:
        """All files are there: they take the place of our own, and what only we know goes with them."""
        replica = self.replica
        header, node = self._file_copy.header(), self._file_copy.node
        if header is None or header.snapshot.next_slot <= replica.log.decided:
            self._file_copy.drop()
            return
        next_slot = header.snapshot.next_slot
        ours = tuple(replica.log.judge(kept.entry) for slot, kept in sorted(self._kept.items()) if slot >= next_slot)
        self._file_copy.install(
            SnapshotHeader(
                replica.node,
                replica.acceptor.promised,
                header.snapshot,
                held=(),
                state=header.state,
                taken=ours,
                reach=max(next_slot, self.witness.extent.reach),
                memories=self.witness.memories(),
                known=replica.log.known_beyond(next_slot),
            )
        )
        self.witness.keep(Installed(header.snapshot))
        # What is staged has not been said yet, and goes into the new journal, but for housekeeping of the old one.
        self._staged = [each for each in self._staged if isinstance(each, Persist)]
        self._rebuild()
        if ours:
            self._stage(Persist(tuple(Stored(entry) for entry in ours)))
        self.notifications.append(StateExchanged(next_slot))
        self._run(now_ms, replica.install(now_ms, node, header.snapshot))

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

    @property
    def committing_records(self) -> list[Record]:
        """The replica's records among it."""
        return [record for each in self._committing if isinstance(each, Persist) for record in each.records]

    def _stage(self, what: Persist | Local) -> None:
        self._staged.append(what)

    def begin_commit(self, now_ms: int) -> Commit:
        """What has been staged, for `journal.write`; one commit at a time."""
        assert self._staged and self._commit is None
        journal = self.journal
        if (journal.full or self._roll_wanted) and not journal.is_fresh:
            lowest = min((kept.record_address for kept in self._kept.values()), default=journal.end_address)
            journal.roll_next(*self._seal(), min(lowest, self.state.lowest_address(journal.end_address)))
            # At once, because more is applied while this is being written. If it cannot be written, the process ends.
            self.state.mark_sealed()
            self.places.mark_sealed()
        self._roll_wanted = False
        self._committing, self._staged = self._staged, []
        appends: list[Append] = []
        for each in self._committing:
            if isinstance(each, Persist):
                for record in each.records:
                    appends.append(self._signed(REPLICA, *take_apart(record, self.state), now_ms))
            else:
                appends.append(self._signed(LOCAL, each.command, each.bodies, now_ms))
        self._commit = journal.begin(appends)
        return self._commit

    def _seal(self) -> tuple[bytes, bytes]:
        index, state = self.state.seal()
        replica, log = self.replica, self.replica.log
        held = tuple(
            Held(slot, kept.record_address, log.judge(kept.entry).ballot == CHOSEN)
            for slot, kept in sorted(self._kept.items())
        )
        header = SnapshotHeader(
            replica.node,
            replica.acceptor.promised,
            self._snapshot(),
            held,
            state,
            reach=self.witness.extent.reach,
            memories=self.witness.memories(),
            known=log.known_beyond(self.applied),
        )
        return encode(self.places.seal(index)), encode(header)

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.applied, self.history.window, self.history.terms)

    def _signed(self, kind: int, command: bytes, bodies: tuple[Buffer, ...], now_ms: int) -> Append:
        """Every record says what was promised when it was written."""
        promised = self.replica.acceptor.promised
        return Append(kind, command, bodies, now_ms, promised.number, promised.node)

    def finish_commit(self, now_ms: int) -> None:
        """The commit is durable: what was to be said then is said now, and what is decided is applied."""
        assert self._commit is not None
        commit, committed = self._commit, self._committing
        self.journal.finish(commit)
        if commit.sealed:
            self._forget_places()
        written = iter(commit.records)
        for each in committed:
            if isinstance(each, Local):
                record = next(written)
                self.repairs.copied(each.command, record.body_address, self.state)
                self.state.apply_local(each.command, record.time_ms, record.body_address)
                continue
            for kept in each.records:
                record = next(written)
                self.witness.keep(kept)
                if isinstance(kept, Stored):
                    self._keep(kept.entry, record)
        # Answers leave in their order: what is staged while they do comes after all of them.
        for each in committed:
            if isinstance(each, Persist):
                self._run(now_ms, list(each.answers))
        self._commit, self._committing = None, []
        self._apply_ready()
        self._run(now_ms, [])
        self._go_on_exchanging(now_ms)

    def _forget_places(self) -> None:
        """Slots whose segments are gone can no longer be sent to anybody."""
        segments = self.journal.segments
        self.places.forget_below(segments[0].base_address if segments else self.journal.segment_address)

    def _take_recordless(self) -> list[Effect]:
        """Answers at the head of the queue that need nothing more on disk."""
        count = 0
        answers: list[Effect] = []
        if self._commit is None:
            for each in self._staged:
                if not isinstance(each, Persist) or each.records:
                    break
                answers += each.answers
                count += 1
        del self._staged[:count]
        return answers

    # What is decided.

    def _apply_ready(self) -> None:
        """Applies what is decided and on this disk.

        An answer for what is applied may be what a question at this very node waits for, and that one may end here
        again: it is left to the call that is under way.
        """
        if self._applying:
            return
        self._applying = True
        try:
            self._apply_decided()
        finally:
            self._applying = False

    def _apply_decided(self) -> None:
        decided = self._decided
        while decided:
            slot, value = decided[0].slot, decided[0].value
            kept = self._kept.get(slot)
            if slot >= self.applied:
                if kept is None or (kept.entry.value is not value and kept.entry.value != value):
                    return
                self._apply(slot, kept)
            decided.popleft()
        while self._reads and self._reads[0].index <= self.applied:
            self.notifications.append(self._reads.popleft())

    def _apply_through(self, end: int) -> None:
        """The same for what the journal says is decided."""
        while self.applied < end:
            self._apply(self.applied, self._kept[self.applied])

    def _apply(self, slot: int, kept: Kept) -> None:
        value, result = kept.entry.value, None
        del self._kept[slot]
        self.applied = slot + 1
        self.places.append(kept.record_address, kept.body_address - kept.record_address - HEADER_SIZE)
        match value:
            case Command():
                result = self.state.apply(value, kept.body_address)
            case Add() | Promote() | Remove():
                if self.history.take(slot, value):
                    self.state.apply_change(value)
        self.replica.log.forget_below(slot + 1)
        self.notifications.append(Applied(slot, value, result))

    # What comes out.

    def _run(self, now_ms: int, effects: list[Effect]) -> None:
        """Does what is wanted and what that leads to, all in one row, and then what waits for nothing but its turn."""
        row = deque(effects)
        while row := row or deque(self._take_recordless()):
            effect = row.popleft()
            match effect:
                case Persist():
                    self._stage(effect)
                case Send(nodes, message):
                    others = tuple(node for node in nodes if node != self.replica.node)
                    if others:
                        self.outgoing.append((others, message))
                    if len(others) < len(nodes):
                        own = Received(now_ms, self.replica.node, message)
                        row.extendleft(reversed(self.replica.handle(own)))
                case SetTimer() | CancelTimer():
                    self.timers.append(effect)
                case Notify(Decided() as decided):
                    self._decided.append(decided)
                    self._apply_ready()
                case Notify(ReadReady() as ready):
                    self._reads.append(ready)
                    self._apply_ready()
                case Notify(notification):
                    self.notifications.append(notification)
                case _:
                    raise AssertionError(f"A replica does not ask for {effect!r}.")

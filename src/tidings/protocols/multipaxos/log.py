"""The log of one replica: what it has accepted, how much of that is decided, and the state that follows from it.

    start            decided                 decided + reach
      |  chosen values  |  accepted, undecided  |
      '-- a snapshot can take their place

Below `decided` the log holds nothing but chosen values, and all of them are applied. What is behind it may still be
replaced under a higher ballot. A slot counts as decided for one of three reasons: this node leads and has counted a
majority; the leader says so and our value came under that leader's very ballot; or another replica sent the value
as chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import StorageDamaged
from tidings.protocols.multipaxos.membership import History, Membership
from tidings.protocols.multipaxos.messages import Applied
from tidings.protocols.multipaxos.records import Installed, Known, Named, Promised, Record, Snapshot, Stored, Whole
from tidings.protocols.multipaxos.sessions import Sessions
from tidings.protocols.multipaxos.values import (
    CHOSEN,
    ZERO,
    Add,
    Ballot,
    Command,
    Entry,
    Promote,
    Remove,
    Value,
    size_of,
)


class Log:
    """Entries by slot, and the replicated state up to `decided`."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.entries: dict[int, Entry] = {}
        self.start = 0
        self.decided = 0
        """The first slot that is not known to be decided."""
        self.undecided_bytes = 0
        """About how much is accepted and not decided: what a promise would have to report."""
        self.snapshot: Snapshot | None = None
        self.history = History(window=1, terms=())

    def open_memberships(self) -> tuple[Membership, Membership]:
        """Those who decide on the first open slot and on the last one; mostly the same."""
        return self.history.at(self.decided), self.history.at(self.decided + self.history.window - 1)

    # From the disk.

    def rebuild(self, whole: Whole | None, records: Iterable[Record]) -> Ballot:
        """Takes what a disk holds; the ballot that was promised."""
        promised, snapshot, decided = ZERO, None, 0
        entries: dict[int, Entry] = {}
        if whole is not None:
            promised, snapshot, decided = whole.promised, whole.snapshot, whole.decided
            entries = {entry.slot: entry for entry in whole.entries}
        for record in records:
            match record:
                case Promised(ballot):
                    promised = max(promised, ballot)
                case Stored(entry):
                    older = entries.get(entry.slot)
                    if older is None or older.ballot <= entry.ballot:
                        entries[entry.slot] = entry
                    if entry.ballot != CHOSEN:
                        promised = max(promised, entry.ballot)
                case Known():
                    decided = max(decided, record.decided)
                case Installed(newer):
                    if snapshot is None or newer.next_slot > snapshot.next_slot:
                        snapshot = newer
                case Named():
                    pass  # Whoever opened the disk has looked at it.
        if snapshot is not None:
            self._restore(snapshot)
        self.entries = {slot: entry for slot, entry in sorted(entries.items()) if slot >= self.start}
        self._count_undecided()
        while self.decided < decided:
            if self.decided not in self.entries:
                raise StorageDamaged(
                    f"Slot {self.decided} is missing, and it was decided. Give this node an empty folder and a new "
                    "number, and let it join again."
                )
            self._apply_next()
        return promised

    def whole(self, node: int, promised: Ballot) -> Whole:
        """What a disk has to hold for this log to come back."""
        next_slot = self.snapshot.next_slot if self.snapshot is not None else 0
        entries = tuple(entry for slot, entry in sorted(self.entries.items()) if slot >= next_slot)
        return Whole(node, promised, self.snapshot, entries, self.decided)

    # What is accepted.

    def store(self, entry: Entry) -> bool:
        """Keeps an entry in place of an older one; False if it is kept already."""
        older = self.entries.get(entry.slot)
        if older is not None and older.ballot >= entry.ballot:
            assert older.value == entry.value, f"{entry} is proposed where {older} is"
            return False
        self._keep(entry)
        return True

    def _keep(self, entry: Entry) -> None:
        older = self.entries.get(entry.slot)
        self.undecided_bytes += size_of(entry.value) - (size_of(older.value) if older is not None else 0)
        self.entries[entry.slot] = entry

    def _count_undecided(self) -> None:
        self.undecided_bytes = sum(size_of(entry.value) for entry in self.undecided(self.decided))

    def undecided(self, first_slot: int) -> tuple[Entry, ...]:
        """What is accepted and not decided, from a slot on."""
        first_slot = max(first_slot, self.decided)
        return tuple(self.entries[slot] for slot in sorted(self.entries) if slot >= first_slot)

    # What is decided.

    def decide_next(self) -> Applied:
        """The next undecided slot holds its chosen value: applies it."""
        return self._apply_next()

    def decide_through(self, end: int, ballot: Ballot) -> list[Applied]:
        """The leader of a ballot says that every slot below `end` is decided; applies what is known to be the value.

        Only an entry of that very ballot is: one of an older ballot may be what was overruled.
        """
        applied = []
        while self.decided < end and self._is_surely_chosen(ballot):
            applied.append(self._apply_next())
        return applied

    def _is_surely_chosen(self, ballot: Ballot) -> bool:
        entry = self.entries.get(self.decided)
        return entry is not None and entry.ballot in (ballot, CHOSEN)

    def learn(self, first_slot: int, values: tuple[Value, ...]) -> tuple[list[Record], list[Applied]]:
        """Another replica says that these values are chosen; what to write down, and what was applied."""
        records: list[Record] = []
        applied = []
        for slot, value in enumerate(values, first_slot):
            if slot != self.decided:  # Behind us, or beyond a gap.
                continue
            entry = self.entries.get(slot)
            if entry is None or entry.value != value:
                entry = Entry(slot, CHOSEN, value)
                self._keep(entry)
                records.append(Stored(entry))
            applied.append(self._apply_next())
        return records, applied

    def _apply_next(self) -> Applied:
        slot = self.decided
        value = self.entries[slot].value
        self.decided = slot + 1
        self.undecided_bytes -= size_of(value)
        match value:
            case Command():
                outcome = self.sessions.apply(value)
                return Applied(slot, value, outcome.result, outcome.repeated)
            case Add() | Promote() | Remove():
                self.history.take(slot, value)
        return Applied(slot, value, None, False)

    # Snapshots.

    def take_snapshot(self, kept_slots: int) -> None:
        """Makes a snapshot of the state as it is, and forgets the values before it but for the last few."""
        self.snapshot = Snapshot(self.decided, self.history.window, self.history.terms, self.sessions.snapshot())
        first_kept = max(self.start, self.decided - kept_slots)
        for slot in range(self.start, first_kept):
            self.entries.pop(slot, None)
        self.start = first_kept

    def install(self, snapshot: Snapshot) -> bool:
        """Takes the state of another replica; False if ours is as new."""
        if snapshot.next_slot <= self.decided:
            return False
        self._restore(snapshot)
        self.entries = {slot: entry for slot, entry in self.entries.items() if slot >= self.start}
        self._count_undecided()
        return True

    def _restore(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.start = self.decided = snapshot.next_slot
        self.history = History(snapshot.window, snapshot.terms)
        self.sessions.restore(snapshot.state)

"""The log of one replica: what it has accepted, and how much of that is decided.

    start            decided                 decided + reach
      |  chosen values  |  accepted, undecided  |
      '-- forgotten here once the runtime has applied them

Below `decided` the log holds nothing but chosen values. What is behind it may still be replaced under a higher ballot.
A slot counts as decided for one of four reasons: this node leads and has counted a majority; the leader says so and
our value came under that leader's very ballot; another replica sent the value as chosen; or our own disk said so.

Damage to the disk may have left a gap in what was decided. What lies behind it and was known to be chosen is kept under
the ballot `CHOSEN` and is decided again as soon as others have filled the gap. Nobody else may know it: if it waited to
be told, the whole group might wait.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import StorageDamaged
from tidings.protocols.multipaxos.membership import History, Membership
from tidings.protocols.multipaxos.messages import Decided
from tidings.protocols.multipaxos.records import (
    Installed,
    Known,
    Lost,
    Named,
    Promised,
    Record,
    Snapshot,
    Stored,
    Whole,
    Witnessed,
)
from tidings.protocols.multipaxos.values import (
    CHOSEN,
    ZERO,
    Add,
    Ballot,
    Entry,
    Promote,
    Remove,
    Value,
    size_of,
)


class Log:
    """Entries by slot, and who decides on each."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.start = 0
        self.decided = 0
        """The first slot that is not known to be decided."""
        self.known_before = 0
        """Every slot below was known to be decided in an earlier life. After damage that may be more than is here."""
        self.undecided_bytes = 0
        """About how much is accepted and not decided: what a promise would have to report."""
        self.history = History(window=1, terms=())

    def open_memberships(self) -> tuple[Membership, Membership]:
        """Those who decide on the first open slot and on the last one; mostly the same."""
        return self.history.at(self.decided), self.history.at(self.decided + self.history.window - 1)

    @property
    def known(self) -> int:
        """Every slot below is known to be decided, whether what it holds is here or not."""
        return max(self.decided, self.known_before)

    @property
    def reach(self) -> int:
        """The first slot above everything that is accepted or known to be decided."""
        return max(self.known, max(self.entries, default=-1) + 1)

    # From the disk.

    def rebuild(self, whole: Whole | None, records: Iterable[Record | Lost], damaged: bool = False) -> Ballot:
        """Takes what a disk holds; the ballot that was promised. Of a damaged one decided slots may be missing."""
        promised, snapshot, known = ZERO, None, 0
        entries: dict[int, Entry] = {}
        if whole is not None:
            promised, snapshot, known = whole.promised, whole.snapshot, whole.known
            entries = {entry.slot: entry for entry in whole.entries}
        unsure = {entry.slot: None for entry in entries.values() if entry.ballot != CHOSEN}
        """Slots whose entries nothing so far says to be chosen."""
        for record in records:
            match record:
                case Promised(ballot):
                    promised = max(promised, ballot)
                case Stored(entry):
                    older = entries.get(entry.slot)
                    if older is None or older.ballot <= entry.ballot:
                        entries[entry.slot] = entry
                        unsure[entry.slot] = None
                    if entry.ballot == CHOSEN:
                        unsure.pop(entry.slot, None)
                    else:
                        promised = max(promised, entry.ballot)
                case Known(decided):
                    known = max(known, decided)
                    for slot in [slot for slot in unsure if slot < decided]:
                        del unsure[slot]
                        entries[slot] = Entry(slot, CHOSEN, entries[slot].value)
                case Lost():
                    # A lost record may have overruled them. They are decided by now, or this disk would be of no use.
                    for slot in unsure:
                        del entries[slot]
                    unsure.clear()
                case Installed(newer):
                    if snapshot is None or newer.next_slot > snapshot.next_slot:
                        snapshot = newer
                case Named() | Witnessed():
                    pass  # Anyone who opened the disk has looked at it.
        if snapshot is not None:
            self._stand_at(snapshot)
        self.entries = {slot: entry for slot, entry in sorted(entries.items()) if slot >= self.start}
        self._count_undecided()
        self.known_before = known
        self.decide_sure()
        if self.decided < known and not damaged:  # Otherwise others have it.
            raise StorageDamaged(
                f"Slot {self.decided} is missing, and it was decided. Give this node an empty folder, and let it "
                "join again."
            )
        return promised

    # What is accepted.

    def store(self, entry: Entry) -> bool:
        """Keeps an entry in place of an older one; False if it is kept already."""
        older = self.entries.get(entry.slot)
        if older is not None and older.ballot >= entry.ballot:
            assert older.ballot == CHOSEN or older.value == entry.value, f"{entry} is proposed where {older} is"
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

    def decide_next(self) -> Decided:
        """The next undecided slot holds its chosen value."""
        slot = self.decided
        value = self.entries[slot].value
        self.decided = slot + 1
        self.undecided_bytes -= size_of(value)
        if isinstance(value, Add | Promote | Remove):
            self.history.take(slot, value)
        return Decided(slot, value)

    def decide_sure(self) -> list[Decided]:
        """Decides what is known to be chosen and waited only for what was missing before it."""
        decided = []
        while (entry := self.entries.get(self.decided)) is not None and entry.ballot == CHOSEN:
            decided.append(self.decide_next())
        return decided

    def decide_through(self, end: int, ballot: Ballot) -> list[Decided]:
        """The leader of a ballot says that every slot below `end` is decided; decides what is known to be the value.

        Only an entry of that very ballot is: one of an older ballot may be what was overruled.
        """
        decided = []
        while self.decided < end and self._is_surely_chosen(ballot):
            decided.append(self.decide_next())
        return decided + self.decide_sure()

    def _is_surely_chosen(self, ballot: Ballot) -> bool:
        entry = self.entries.get(self.decided)
        return entry is not None and entry.ballot in (ballot, CHOSEN)

    def learn(self, first_slot: int, values: tuple[Value, ...]) -> tuple[list[Record], list[Decided]]:
        """Another replica says that these values are chosen; what to write down, and what is decided by that."""
        records: list[Record] = []
        decided = []
        for slot, value in enumerate(values, first_slot):
            if slot != self.decided:  # Behind us, or beyond a gap.
                continue
            entry = self.entries.get(slot)
            is_sure = entry is not None and (entry.ballot == CHOSEN or slot >= self.known_before)
            if entry is None or entry.value != value or not is_sure:
                entry = Entry(slot, CHOSEN, value)
                self._keep(entry)
                records.append(Stored(entry))
            decided.append(self.decide_next())
        return records, decided + self.decide_sure()

    def judge(self, kept: Entry) -> Entry:
        """An entry that is on disk, under the ballot `CHOSEN` if it is known to be chosen and waits to be decided."""
        entry = self.entries.get(kept.slot)
        is_chosen = entry is not None and entry.ballot == CHOSEN and entry.value == kept.value
        return Entry(kept.slot, CHOSEN, kept.value) if is_chosen else kept

    def known_beyond(self, slot: int) -> int:
        """How far all was known to be decided before damage took some of it; 0 if a state before `slot` has it all."""
        return self.known_before if self.known_before > slot else 0

    # The state that the runtime has.

    def forget_below(self, slot: int) -> None:
        """The values of the slots below are applied, and kept elsewhere."""
        for each in range(self.start, slot):
            self.entries.pop(each, None)
        self.start = max(self.start, slot)

    def install(self, snapshot: Snapshot) -> bool:
        """The runtime has taken the state of another replica; False if ours is as new."""
        if snapshot.next_slot <= self.decided:
            return False
        self._stand_at(snapshot)
        self.entries = {slot: entry for slot, entry in self.entries.items() if slot >= self.start}
        self._count_undecided()
        return True

    def _stand_at(self, snapshot: Snapshot) -> None:
        self.start = self.decided = snapshot.next_slot
        self.history = History(snapshot.window, snapshot.terms)

"""The acceptor of a replica: it promises, and it accepts. This is where safety lives.

1. It never answers a ballot below its promise with anything but `Refused`.
2. Accepting raises the promise too.
3. Every answer waits until all that it speaks of is on disk, what was written for earlier answers included.

It neither knows nor cares who may vote: anyone who proposes counts only the voters of the slot.
"""

from __future__ import annotations

from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Accept, Accepted, Persist, Prepare, Promise, Refused, Send
from tidings.protocols.multipaxos.records import Promised, Record, Stored
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Ballot, Entry
from tidings.protocols.stack import Effect
from tidings.settings import ReplicaSettings

REACH_WINDOWS = 4
"""How many windows of slots behind the first undecided one are accepted: it bounds what a promise has to report."""


class Acceptor:
    """The promise of a replica, and the door to its log."""

    def __init__(self, log: Log, settings: ReplicaSettings) -> None:
        self._log = log
        self._settings = settings
        self.promised: Ballot = ZERO

    def refuses(self, ballot: Ballot) -> bool:
        return ballot < self.promised

    def prepare(self, node: int, message: Prepare) -> Effect:
        """Phase 1b. A promise that is asked for again is given again: the first answer may have got lost."""
        if self.refuses(message.ballot):
            return self.refusal(node)
        records = self._raise_promise(message.ballot)
        promise = Promise(message.ballot, self._log.undecided(message.first_slot), self._log.known)
        return self._answer(records, Send((node,), promise))

    def accept(self, node: int, message: Accept) -> Effect:
        """Phase 2b, for as many of the slots as are within reach."""
        if self.refuses(message.ballot):
            return self.refusal(node)
        records = self._raise_promise(message.ballot)
        count = 0
        for slot, value in enumerate(message.values, message.first_slot):
            if not self._is_within_reach(slot):
                break  # A replica that is so far behind has to catch up first.
            count += 1
            if slot < self._log.decided:
                self._check_decided(slot, Entry(slot, message.ballot, value))
            elif self._log.store(entry := Entry(slot, message.ballot, value)):
                records.append(Stored(entry))
        accepted = Accepted(message.ballot, message.first_slot, count, self._log.decided, message.round)
        return self._answer(records, Send((node,), accepted))

    def _is_within_reach(self, slot: int) -> bool:
        log = self._log
        if slot <= log.decided:  # Whatever it holds, without it nothing goes on.
            return True
        within_slots = slot < log.decided + REACH_WINDOWS * log.history.window
        return within_slots and (slot in log.entries or log.undecided_bytes < self._settings.undecided_bytes_max)

    def refusal(self, node: int) -> Send:
        return Send((node,), Refused(self.promised, self._log.decided))

    def _raise_promise(self, ballot: Ballot) -> list[Record]:
        if ballot <= self.promised:
            return []
        self.promised = ballot
        return [Promised(ballot)]

    def _answer(self, records: list[Record], answer: Send) -> Effect:
        return Persist(tuple(records), (answer,))

    def _check_decided(self, slot: int, proposed: Entry) -> None:
        """A chosen value is for ever: anyone who proposes in its slot has to propose it again.

        Unless it leads by an older ballot than the one that chose, of which we, who only heard of that, know nothing.
        """
        held = self._log.entries.get(slot)
        assert held is None or held.ballot == CHOSEN or held.value == proposed.value, (
            f"slot {slot} is {held}, and {proposed} is proposed in it"
        )

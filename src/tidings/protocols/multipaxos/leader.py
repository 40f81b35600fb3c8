"""One ballot of this node: first a candidate's, then, if a majority promises it, a leader's.

*Phase 1* is one question for every slot from the first undecided one on. A slot may be proposed in when a majority of
its own voters has promised; when a change of the membership comes into force the new voters are asked too, in
the same ballot, and the slots that are theirs have to wait.

*Phase 2* goes through the slots in their order. If any promise reported a value for a slot, the one with the highest
ballot is proposed again; a slot below such a one for which nobody reported anything is filled with a no-op; only what
is behind all these is free for new commands. At most a window of slots is open at a time.
"""

from __future__ import annotations

from collections import deque

import msgspec

from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.membership import Membership, Term
from tidings.protocols.multipaxos.messages import Accepted, Promise
from tidings.protocols.multipaxos.values import Ballot, Entry, Noop, Value, size_of
from tidings.settings import ReplicaSettings


class Proposal(msgspec.Struct):
    """A value that was proposed in a slot, and who has accepted it."""

    value: Value
    membership: Membership
    accepted: dict[int, None]

    @property
    def is_chosen(self) -> bool:
        return self.membership.has_quorum(self.accepted)


class Leader:
    """A ballot of this node, from the first question to the last proposal."""

    def __init__(self, ballot: Ballot, log: Log, settings: ReplicaSettings) -> None:
        self.ballot = ballot
        self._log = log
        self._settings = settings
        self.leading = False
        """False: still a candidate."""
        self.promised: dict[int, None] = {}
        self.floor = log.decided
        """Somebody knows every slot below to be decided: no slot below is ours to propose in."""
        self.recovered: dict[int, Entry] = {}
        self.recovered_end = 0
        self.next_slot = log.decided
        self.proposals: dict[int, Proposal] = {}
        self.queue: deque[Value] = deque()
        self.decided_by: dict[int, int] = {}
        """How far each node had learned when it was last heard."""
        self._confirmed_slot = 0
        self._batch_ends: deque[int] = deque()

    # Phase 1.

    def take_promise(self, node: int, promise: Promise) -> None:
        self.promised[node] = None
        self.floor = max(self.floor, promise.decided)
        for entry in promise.entries:
            known = self.recovered.get(entry.slot)
            if known is None or known.ballot < entry.ballot:
                self.recovered[entry.slot] = entry
            self.recovered_end = max(self.recovered_end, entry.slot + 1)

    def may_propose_in(self, slot: int) -> bool:
        """Whether phase 1 is done for a slot."""
        return slot >= self.floor and self._log.history.at(slot).has_quorum(self.promised)

    def unpromised(self) -> tuple[int, ...]:
        """The voters of all open slots who have not promised this ballot."""
        voters = dict.fromkeys(voter for membership in self._log.open_memberships() for voter in membership.voters)
        return tuple(voter for voter in voters if voter not in self.promised)

    @property
    def is_up_to_date(self) -> bool:
        """Whether all that was acknowledged before this ballot is decided here, so that reads may be answered."""
        decided = self._log.decided
        return self.leading and decided >= self.recovered_end and self.may_propose_in(decided)

    # Phase 2.

    @property
    def has_room(self) -> bool:
        """Whether a command would be proposed at once, and not have to wait for others to be decided."""
        if not self.leading or self.queue:
            return False
        self._forget_batches()
        return len(self._batch_ends) < self._settings.batches_open_max

    def _forget_batches(self) -> None:
        while self._batch_ends and self._batch_ends[0] <= self._log.decided:
            self._batch_ends.popleft()

    def next_batch(self) -> tuple[int, tuple[Value, ...]] | None:
        """Proposes in the next slots, as far as the window lets it; the first slot and the values."""
        log, settings = self._log, self._settings
        self._forget_batches()
        if len(self._batch_ends) >= settings.batches_open_max:
            return None
        first_slot = slot = self.next_slot = max(self.next_slot, log.decided)
        values: list[Value] = []
        size_bytes = 0
        while slot < log.decided + log.history.window and self.may_propose_in(slot):
            if slot > log.decided and log.undecided_bytes + size_bytes >= settings.undecided_bytes_max:
                break  # Nobody would accept more, our own acceptor included.
            value = self._value_for(slot)
            if value is None:
                break
            self.proposals[slot] = Proposal(value, log.history.at(slot), {})
            values.append(value)
            slot += 1
            size_bytes += size_of(value)
            if len(values) == settings.batch_values_max or size_bytes >= settings.batch_bytes_max:
                break
        if not values:
            return None
        self.next_slot = slot
        self._batch_ends.append(slot)
        return first_slot, tuple(values)

    def _value_for(self, slot: int) -> Value | None:
        recovered = self.recovered.get(slot)
        if recovered is not None:
            return recovered.value
        if slot < self.recovered_end or self._log.history.is_open(slot):
            return Noop()  # A hole; or slots that an open change of the membership has to see decided.
        return self.queue.popleft() if self.queue else None

    def take_accepted(self, node: int, message: Accepted) -> None:
        self.decided_by[node] = message.decided
        for slot in range(message.first_slot, message.first_slot + message.count):
            proposal = self.proposals.get(slot)
            if proposal is not None:
                proposal.accepted[node] = None

    def newly_agreed(self) -> Term | None:
        """The newest membership, once, when a majority of its voters is known to have on disk that it is in force."""
        newest = self._log.history.newest
        if newest.first_slot <= self._confirmed_slot or not newest.membership.has_quorum(self._who_knows(newest)):
            return None
        self._confirmed_slot = newest.first_slot
        return newest

    def _who_knows(self, term: Term) -> list[int]:
        return [node for node, decided in self.decided_by.items() if decided >= term.first_slot]

    def next_is_chosen(self) -> bool:
        """Whether the first undecided slot is chosen by now; it is then no longer a proposal."""
        proposal = self.proposals.get(self._log.decided)
        if proposal is None or not proposal.is_chosen:
            return False
        del self.proposals[self._log.decided]
        return True

    def unaccepted_by(self, node: int) -> tuple[int, tuple[Value, ...]]:
        """What a node has not answered for, from the first such slot on: its slot and the values."""
        values: list[Value] = []
        first_slot, size_bytes = self.next_slot, 0
        for slot in sorted(self.proposals):
            proposal = self.proposals[slot]
            if not values:
                if node in proposal.accepted:
                    continue
                first_slot = slot
            values.append(proposal.value)
            size_bytes += size_of(proposal.value)
            if len(values) == self._settings.batch_values_max or size_bytes >= self._settings.batch_bytes_max:
                break
        return first_slot, tuple(values)

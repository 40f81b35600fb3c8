"""Members remember how far each other had come, so that one whose folder has lost something is told so.

Picture a club whose members sign for what they promise, and whose others look over their shoulders. Somebody who comes
back with an older notebook would give promises that contradict the ones before, in good faith. The others say: you
have once said more than that.

A member's *extent* is what it has on its disk: the ballot that it has promised, and the first slot above everything
that it has accepted or knows to be decided. Both only rise, as long as the disk keeps what it was given. A *life* of
a member is one of its processes, named at random. With every message goes a `Claim`: the life, the extent with which
it began, the extent now, and the life of the receiver that it speaks to.

- *Anyone who hears a claim keeps it*, the largest for each member. A later life has to begin with no less. If it does,
  nothing that it says counts, as if it had got lost, and it is answered by `Remembered`. A life is judged by how it
  began: one that has lost something soon promises and accepts again, and looks as if it had come further.
- *Anyone who is told that it once said more than it began with* ends with `StorageDamaged`. There is no false alarm by
  late or repeated messages: the answer names the life that it is for, and a member that has lost nothing begins with
  all that it ever said.
- *What is said to an earlier life is not for this one*, which asks to be known (`Recall`). An answer that waited while
  its receiver was down could else meet a ballot that a life without memory uses for the second time.
- *A member that starts asks first* (`Recall`): until every other voter has answered, or it has waited as long as for a
  leader, it neither votes nor accepts. It asks again now and then when it has come further, so that also those know
  of it to whom it has nothing to say.

What is remembered is written down with other things, now and then (`Witnessed`). To forget some of it costs a chance
to notice, and never more. Nobody notices if all who have heard the lost claim are away or have forgotten it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import StorageDamaged
from tidings.protocols.multipaxos.claims import NOTHING, Claim, Extent, Memory
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import Accept, Persist, Prepare, PreVote, Recall, Received, Remembered, Send
from tidings.protocols.multipaxos.records import Installed, Known, Lost, Promised, Record, Stored, Witnessed
from tidings.protocols.multipaxos.values import CHOSEN, ZERO, Ballot
from tidings.protocols.stack import Effect
from tidings.settings import ReplicaSettings


class Witness:
    """What one member claims, and what it has heard the others claim."""

    def __init__(self, node: int, life: int, log: Log, settings: ReplicaSettings) -> None:
        self._node = node
        self._life = life
        self._log = log
        self._settings = settings
        self._began = NOTHING
        self.extent = NOTHING
        """How far we have come, and have it on disk."""
        self._heard: dict[int, Memory] = {}
        self._unanswered: dict[int, None] = {}
        """Who has been asked what it remembers, and is still waited for."""
        self._tended_at_ms: int | None = None
        self._told = NOTHING
        """What the others were last asked about."""
        self._changed = False
        """Whether something was heard that is not written down."""

    # What we claim.

    def begin(
        self, promised: Ballot, reach: int, memories: Iterable[Memory], records: Iterable[Record | Lost]
    ) -> list[Effect]:
        """A life begins with what is on the disk, and with a question to the other voters."""
        for record in records:
            if isinstance(record, Witnessed):
                memories = record.memories
        self._began = self.extent = self._told = Extent(promised, max(reach, self._log.reach))
        self._heard = {each.node: each for each in memories}
        others = self._other_voters()
        self._unanswered = dict.fromkeys(others)
        return [Send(others, Recall())] if others else []

    def _other_voters(self) -> tuple[int, ...]:
        voters = (voter for membership in self._log.open_memberships() for voter in membership.voters)
        return tuple(voter for voter in dict.fromkeys(voters) if voter != self._node)

    def claim(self, node: int) -> Claim:
        """What goes with a message to a node."""
        known = self._heard.get(node)
        return Claim(self._life, self._began, self.extent, known.life if known is not None else 0)

    def keep(self, record: Record) -> None:
        """A record is on disk."""
        match record:
            case Promised(ballot):
                self.extent = self.extent.joined(Extent(ballot, 0))
            case Stored(entry):
                ballot = entry.ballot if entry.ballot != CHOSEN else ZERO
                self.extent = self.extent.joined(Extent(ballot, entry.slot + 1))
            case Known(decided):
                self.extent = self.extent.joined(Extent(ZERO, decided))
            case Installed(snapshot):
                self.extent = self.extent.joined(Extent(ZERO, snapshot.next_slot))

    # What is heard.

    def admit(self, event: Received) -> tuple[bool, list[Effect]]:
        """Whether a message counts, and what its sender is to be told."""
        node, message, claim = event.node, event.message, event.claim
        if isinstance(message, Remembered):
            self._check(node, message)
        if claim is None:
            return not isinstance(message, Recall | Remembered), []
        # Of others than members nothing is remembered: what they say counts nowhere.
        counts = not self._is_member(node) or self._hear(node, claim)
        if isinstance(message, Remembered):
            return False, []
        if not counts or isinstance(message, Recall):
            return False, [Send((node,), Remembered(claim.life, self._remembered(node, claim)))]
        if claim.to not in (0, self._life):
            return False, [Send((node,), Recall())]
        return not (self._unanswered and isinstance(message, PreVote | Prepare | Accept)), []

    def _is_member(self, node: int) -> bool:
        return any(node in term.membership.nodes for term in self._log.history.terms)

    def _hear(self, node: int, claim: Claim) -> bool:
        """Takes in what a member claims; False: it began with less than it once said, and must not count."""
        known = self._heard.get(node)
        if known is None:
            extent = claim.now
        elif known.life == claim.life or claim.began.covers(known.extent):
            if known.life == claim.life and known.extent.covers(claim.now):
                return True  # The usual case.
            extent = known.extent.joined(claim.now)
        else:
            return False
        self._heard[node] = Memory(node, claim.life, extent)
        self._changed = True
        return True

    def _remembered(self, node: int, claim: Claim) -> Extent:
        """What a member has said in other lives than this one, as far as this one does not show it."""
        known = self._heard.get(node)
        return NOTHING if known is None or known.life == claim.life else known.extent

    def _check(self, node: int, message: Remembered) -> None:
        """Another member remembers what we said before some life began; raises if it is more than we have."""
        if message.life != self._life:
            return  # Asked by an earlier life; this one asks for itself.
        extent, began = message.extent, self._began
        if not began.covers(extent):
            raise StorageDamaged(
                f"This folder knows less than member {self._node} of the group once promised (member {node} remembers "
                f"ballot {extent.promised} and the slots below {extent.reach}, and here are ballot {began.promised} "
                f"and the slots below {began.reach}): give it an empty folder, and let it join again."
            )
        self._unanswered.pop(node, None)

    def wait_no_longer(self) -> None:
        """Those who have not answered what they remember of us may be away for long."""
        self._unanswered.clear()

    # Now and then.

    def tend(self, now_ms: int) -> list[Effect]:
        """At most every `witness_ms`: tells how far we have come, and writes down how far others have."""
        if self._tended_at_ms is not None and 0 <= now_ms - self._tended_at_ms < self._settings.witness_ms:
            return []
        self._tended_at_ms = now_ms
        told, self._told = self._told, self.extent
        others = self._other_voters() if told != self.extent else ()
        return [*([Send(others, Recall())] if others else ()), *self.write()]

    def write(self) -> list[Effect]:
        """Writes down what was heard, if it is not yet; and, as with everything, how far the log is decided."""
        return [Persist((Witnessed(self.memories()), Known(self._log.decided)))] if self._changed else []

    def memories(self) -> tuple[Memory, ...]:
        """All that is to be written down; what was heard of those who are no longer members is forgotten."""
        self._heard = {node: memory for node, memory in self._heard.items() if self._is_member(node)}
        self._changed = False
        return tuple(self._heard.values())

"""The log of a broker alone: what is staged is written, and counts when it is on the one disk."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidings.errors import Overloaded, TidingsError
from tidings.journal.checked import DamagedPlace
from tidings.journal.journal import Commit, Journal
from tidings.journal.record import COMMAND, Append
from tidings.journal.remedies import RESTORE, advising
from tidings.node.engine import TICK_MS, AnyEngine, say_damaged, staged_bytes_of
from tidings.node.growth import Growth
from tidings.protocols.broker import operators
from tidings.protocols.broker.commands import Carry, decode_command, encode_command
from tidings.protocols.broker.retention import lowest_address
from tidings.protocols.broker.rights import check_right
from tidings.protocols.effects import Effect, Peer, Persist
from tidings.protocols.events import Persisted, Received
from tidings.wire.codec import Frame
from tidings.wire.replication import MARK, REPLICA_PEER_NAME

MEMBERS_REQUESTS = (operators.AskMembers, operators.AddMember)


class Alone:
    """What one disk holds is decided."""

    tick_ms = TICK_MS

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self.growth: Growth | None = None
        """What makes a group of it, for a broker that can become one."""
        self.staged_bytes = 0
        self._staged: list[Persist] = []
        self._committing: list[Persist] = []
        self._commit: Commit | None = None
        self._roll_due = False

    def recover(self, now_ms: int) -> int:
        with advising(RESTORE):
            recovery = self._engine.journal.recover()
            machine = self._engine.broker.machine
            if recovery.snapshot is not None:
                machine.restore(recovery.snapshot, recovery.indexes)
            count = 0
            for record in recovery.records:
                if record.kind == COMMAND:
                    with contextlib.suppress(TidingsError):  # What the state refused the first time, it refuses again.
                        machine.apply(decode_command(record.command), record.time_ms, record.body_address)
                count += 1
            self._engine.broker.recovered()
            return count

    # What comes in.

    def hear(self, now_ms: int, peer: Peer, frames: Sequence[Frame], user: str | None) -> bool:
        """What another node says to this one as to a member."""
        if self.growth is None:
            return False
        if not frames or frames[0] != MARK:
            self.growth.see(peer)
            return False
        if user in (None, REPLICA_PEER_NAME):  # With keys, only who has the key of the members speaks as one.
            self._engine.outgoing += self.growth.hear(now_ms, frames)
        return True

    def take(self, received: Received) -> None:
        if self.growth is not None and isinstance(received.message, MEMBERS_REQUESTS):
            self._take_growth(self.growth, received)
        else:
            self._engine.run(self._engine.broker.handle(received))

    def _take_growth(self, growth: Growth, received: Received) -> None:
        engine, peer, message = self._engine, received.peer, received.message
        try:
            check_right(engine.settings.admins, received.user, message)
            answer = growth.answer(received.now_ms, peer, message, engine.journal.next_slot)
        except TidingsError as error:
            engine.refuse(peer, message.request, error)
            return
        if answer is not None:
            engine.reply(peer, answer)

    @property
    def outgrown(self) -> bool:
        return self.growth is not None and self.growth.wanted

    def retire(self) -> None:
        if self.growth is not None:
            self._engine.outgoing += self.growth.redirects()

    def tick(self, now_ms: int) -> None:
        self._engine.keep_house(now_ms, serves=True)

    # The group commit.

    def stage(self, effect: Persist) -> None:
        if not self._engine.refuses(effect):
            self._staged.append(effect)
            self.staged_bytes += staged_bytes_of(effect)

    def stage_carry(self, command: Carry, bodies: tuple[Frame, ...]) -> None:
        self.stage(Persist(command, bodies))

    def roll(self) -> None:
        self._roll_due = True

    @property
    def has_staged(self) -> bool:
        return bool(self._staged) or self._roll_due

    @property
    def committing(self) -> bool:
        return self._commit is not None

    def gather(self, now_ms: int) -> bool:
        """Everything that is staged goes into the next commit."""
        return False

    def begin_commit(self, now_ms: int) -> Commit:
        """What has been staged first, for `journal.write`; one commit at a time."""
        assert self.has_staged and self._commit is None
        journal, machine = self._engine.journal, self._engine.broker.machine
        if journal.full or (self._roll_due and not journal.is_fresh):
            removable_address = lowest_address(machine, journal.end_address)
            journal.roll_next(*machine.seal(), removable_address)
        self._roll_due = False
        self._committing = self._take_staged(journal)
        appends = [Append(COMMAND, encode_command(each.command), each.bodies, now_ms) for each in self._committing]
        self._commit = journal.begin(appends)
        return self._commit

    def _take_staged(self, journal: Journal) -> list[Persist]:
        staged, bytes_max = self._staged, journal.commit_bytes_max
        if self.staged_bytes <= bytes_max:
            self._staged, self.staged_bytes = [], 0
            return staged
        count = size = 0
        while count < len(staged) and size < bytes_max:
            size += staged_bytes_of(staged[count])
            count += 1
        self._staged, self.staged_bytes = staged[count:], self.staged_bytes - size
        return staged[:count]

    def finish_commit(self, now_ms: int) -> None:
        """The commit is durable: apply it, answer, and serve the streams."""
        assert self._commit is not None
        engine, commit, committed = self._engine, self._commit, self._committing
        engine.journal.finish(commit)
        self._end_commit(commit)
        handle, run = engine.broker.handle, engine.run
        for persist, record in zip(committed, commit.records, strict=True):
            run(handle(Persisted(now_ms, persist.command, record.time_ms, record.body_address, persist.origin)))
        run(engine.broker.serve_streams(now_ms))

    def _end_commit(self, commit: Commit) -> None:
        if commit.sealed:
            self._engine.broker.machine.mark_sealed()
        self._engine.notice_room()
        self._commit, self._committing = None, []

    def refuse_commit(self, now_ms: int, error: Exception) -> None:
        """The disk had no room: nothing of the commit was stored, and the one who put something is told.

        What has no bodies is small and may free room, so it is tried again by itself, in the room that is kept for it.
        """
        assert self._commit is not None
        commit, refused = self._commit, self._committing
        self._engine.journal.undo(commit)
        self._end_commit(commit)
        small = [each for each in refused if not each.bodies]
        if len(small) < len(refused):
            self._staged[:0] = small
            self.staged_bytes += sum(map(staged_bytes_of, small))
            refused = [each for each in refused if each.bodies]
        told = Overloaded(f"The broker's disk is full ({error}): free some space, then try again.")
        for persist in refused:
            self._engine.refuse_full(persist, told)

    def conclude(self, now_ms: int) -> None:
        """All that counts is on the disk."""

    # What is damaged.

    def on_damage(self, effect: Effect, damage: DamagedPlace) -> None:
        """It is withheld, and all else goes on."""
        self._engine.withhold(effect, damage, say_damaged(damage))

    def on_damage_noted(self, damage: DamagedPlace) -> None:
        """Nobody else has it."""

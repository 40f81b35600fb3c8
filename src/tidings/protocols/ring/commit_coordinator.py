"""Commits over several groups, at the leader of the group that coordinates them.

What has begun and what is decided stands in the journal (`commits`). An `Attempt` is only what a leader has to know of
the client's request until it is answered: a new leader knows of none, so it aborts what has begun and is not decided,
and goes on telling the owners what is. The client asks again, and the owners know by sequence numbers and cursors
what they have already.

A client's commits are begun one after the other, and so are those that publish for one sink of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tidings.errors import LimitReached, Moved, Overloaded, TidingsError, from_number
from tidings.protocols.broker import messages
from tidings.protocols.broker.bulk import Publish, PublishDone
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.origins import Reporting
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.effects import Effect, Persist, Send
from tidings.protocols.events import Received
from tidings.protocols.ring.commit_attempts import (
    ABORTS,
    BEGINS,
    DECIDES,
    HAPPENS,
    PERSIST_AGAIN_MS,
    PREPARES,
    TELL_AGAIN_MS,
    WAITS,
    Attempt,
    Publication,
    Telling,
    Writes,
    send_away,
)
from tidings.protocols.ring.commit_commands import BeginCommit, CommitId, DecideCommit, EndCommit, Publishing
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
from tidings.protocols.ring.key_ranges import point_of
from tidings.protocols.ring.messages import GroupDescriptor
from tidings.protocols.ring.ownership import Ownership
from tidings.protocols.ring.policy import ring_of

PREPARE_AGAIN_MS_MAX = 1_600
"""Parts are sent again after a pause that doubles up to this: their bodies may be large."""
GIVE_UP_MS = 5_000
"""A commit that cannot be decided for so long is aborted; its client asks again."""
BYTES_MAX = 256 * 1024 * 1024
"""The bodies of all commits that are under way, which stay in memory until their clients are answered."""


class Begun(NamedTuple):
    """Wants to hear what came of a `BeginCommit`."""

    commit: CommitId


class Decided(NamedTuple):
    """Wants to hear what was decided: the attempt, or the group that has asked."""

    commit: CommitId
    client: str
    asker: GroupDescriptor | None = None


class Ended(NamedTuple):
    """Wants to hear that a commit is over."""

    client: str


class CommitCoordinator:
    """Begins, decides and ends the commits of clients whose homes the group owns."""

    def __init__(
        self,
        machine: Machine,
        directory: Directory,
        want: Callable[[int, Key], None],
        suspect: Callable[[bytes], None],
        draw_id: Callable[[], CommitId],
    ) -> None:
        self._machine = machine
        self._directory = directory
        self._want = want
        self._suspect = suspect
        self._draw_id = draw_id
        self._attempts: dict[CommitId, Attempt] = {}
        self._size_bytes = 0
        self._queues: dict[str, list[Attempt]] = {}
        self._telling: dict[CommitId, Telling] = {}
        self.is_closing = False
        """Whether a handoff waits for the commits to come to their end, so that none may begin."""
        self._aborted_ms: dict[CommitId, int] = {}
        """Commits of an earlier leader, and when it was last asked that they be aborted."""

    @property
    def _ring(self) -> Ownership:
        ring = ring_of(self._machine)
        assert ring is not None
        return ring

    @property
    def _commits(self) -> Commits:
        return self._ring.commits

    # Clients.

    def take(self, received: Received) -> list[Effect]:
        """A client's request over topics of several groups; raises what speaks against it."""
        message, settings = received.message, self._machine.settings
        self._machine.check_session(message.client, message.epoch)
        work = Publication(self._machine, message) if isinstance(message, Publish) else Writes(self._machine, received)
        for attempt in self._queues.get(work.client, ()):
            if attempt.state != ABORTS and attempt.is_same(message.epoch, work):
                attempt.askers[received.peer, message.request] = None
                return []
        if len(self._attempts) >= settings.commits_max:
            raise LimitReached(
                f"{settings.commits_max} commits over several groups are under way (commits_max): raise the limit."
            )
        attempt = Attempt(self._draw_id(), received, work)
        if self._size_bytes + attempt.size_bytes > BYTES_MAX:
            raise Overloaded("The commits over several groups that are under way are too large together: try again.")
        self._size_bytes += attempt.size_bytes
        self._attempts[attempt.commit] = attempt
        self._queues.setdefault(attempt.client, []).append(attempt)
        return self._start(received.now_ms, attempt.client)

    def has_begun(self, client: str) -> bool:
        """Whether a commit of this client, or of this query's sink, is under way or waits here."""
        return client in self._queues or client in self._commits.open

    def _start(self, now_ms: int, client: str) -> list[Effect]:
        """Begins the client's next commit, if the one before is over and all owners are known."""
        queue = self._queues.get(client)
        if not queue or queue[0].state != WAITS or client in self._commits.open or self.is_closing:
            return []
        attempt, publishing, strays = queue[0], queue[0].work.publishing, self._ring.strays
        if publishing is not None and self._is_published(publishing):
            answered = self._finish(attempt, lambda request: self._repeated(request, publishing))
            return answered + self._start(now_ms, client)
        if publishing is not None and any(point_of(topic) in strays for topic in publishing.topics):
            return []  # The owners of these points in the ring have nothing of them.
        shares = attempt.work.share_out(self._directory, lambda point: self._want(now_ms, point))
        if shares is None:
            return []
        attempt.shares, attempt.state = shares, BEGINS
        groups = tuple(share.descriptor for share in shares.values())
        begin = BeginCommit(attempt.commit, client, attempt.epoch, groups, publishing)
        return [Persist(begin, origin=Reporting(Begun(attempt.commit)))]

    def _is_published(self, publishing: Publishing) -> bool:
        return self._machine.stages.is_published(publishing.query, publishing.batch, publishing.sink)

    def _repeated(self, request: int, publishing: Publishing) -> PublishDone:
        topics = self._machine.stages.topics_of(publishing.query, publishing.batch, publishing.sink)
        return PublishDone(request, repeated=True, topics=topics)

    def _finish(self, attempt: Attempt, answer: Callable[[int], Any]) -> list[Effect]:
        """The client is answered, and the attempt over."""
        if self._attempts.pop(attempt.commit, None) is not None:
            self._size_bytes -= attempt.size_bytes
        queue = self._queues.get(attempt.client, [])
        if attempt in queue:
            queue.remove(attempt)
        if not queue:
            self._queues.pop(attempt.client, None)
        return [Send(peer, answer(request)) for peer, request in attempt.askers]

    def _send_away(self, attempt: Attempt) -> list[Effect]:
        """What becomes of it is not known here: the client asks again."""
        return self._finish(attempt, send_away)

    def reset(self) -> list[Effect]:
        """We lead no longer, or what is owned has changed: all clients ask again."""
        effects = [effect for attempt in list(self._attempts.values()) for effect in self._send_away(attempt)]
        self._telling.clear()
        self._aborted_ms.clear()
        return effects

    # What the journal says.

    def on_begun(self, now_ms: int, own: GroupDescriptor, about: Begun, error: Exception | None) -> list[Effect]:
        """The commit has begun: the owners are asked for their parts."""
        attempt = self._attempts.get(about.commit)
        if attempt is None:
            return []
        if isinstance(error, TidingsError) and not isinstance(error, Moved):
            number, text = error.number, str(error)
            return self._finish(attempt, lambda request: messages.Failed(request, number, text))
        if error is not None:
            return self._send_away(attempt)
        attempt.state = PREPARES
        return self._prepare(now_ms, own, attempt)

    def _prepare(self, now_ms: int, own: GroupDescriptor, attempt: Attempt) -> list[Effect]:
        attempt.sent_ms = now_ms
        return [
            ToGroup(
                self._directory.descriptor(group) or share.descriptor,
                PreparePart(
                    own,
                    group,
                    attempt.commit,
                    attempt.client,
                    attempt.epoch,
                    tuple(share.batches),
                    tuple(share.acknowledgements),
                    share.publishing,
                ),
                tuple(share.bodies),
            )
            for group, share in attempt.shares.items()
            if not share.is_prepared
        ]

    def on_decided(
        self, now_ms: int, own: GroupDescriptor, about: Decided, happens: bool | None, error: Exception | None
    ) -> list[Effect]:
        """Tells it to those who wait for it. `happens` is None if nothing was decided here."""
        if about.asker is not None:
            if happens is None:
                return []
            return [ToGroup(about.asker, Decision(own, about.asker.group, about.commit, about.client, happens))]
        attempt = self._attempts.get(about.commit)
        if happens:
            if attempt is not None:
                attempt.state = HAPPENS
            return self._tell(now_ms, own, about.commit)
        if attempt is None:
            return []
        if happens is None:
            return self._send_away(attempt)  # Whatever it is, it is looked after as what an earlier leader began.
        failed = attempt.error
        told: list[Effect] = [
            ToGroup(share.descriptor, Decision(own, group, attempt.commit, attempt.client, False))
            for group, share in attempt.shares.items()
        ]
        if failed is None or isinstance(failed, Moved):
            return told + self._send_away(attempt) + self._start(now_ms, attempt.client)
        number, text = failed.number, str(failed)
        answered = self._finish(attempt, lambda request: messages.Failed(request, number, text))
        return told + answered + self._start(now_ms, attempt.client)

    def on_ended(self, now_ms: int, about: Ended) -> list[Effect]:
        """The client's next commit may begin."""
        return self._start(now_ms, about.client)

    def _tell(self, now_ms: int, own: GroupDescriptor, commit: CommitId) -> list[Effect]:
        """Tells the groups that have not carried out their part that it happens."""
        telling = self._telling.get(commit)
        if telling is None:
            found = next(((name, each) for name, each in self._commits.open.items() if each.commit == commit), None)
            if found is None:
                return []
            telling = self._telling[commit] = Telling(found[0], found[1].groups)
        telling.sent_ms = now_ms
        return [
            ToGroup(self._directory.descriptor(group) or known, Decision(own, group, commit, telling.client, True))
            for group, known in telling.groups.items()
            if group not in telling.done
        ]

    # What the owners say.

    def on_prepared(self, message: PartPrepared) -> list[Effect]:
        """When the last one is, it is decided that the commit happens."""
        attempt = self._attempts.get(message.commit)
        if attempt is None or attempt.state != PREPARES or message.group not in attempt.shares:
            return []
        if not attempt.hold(message.group, message.staged):
            return []
        try:
            attempt.work.check_held(attempt.shares)
        except TidingsError as error:
            attempt.error, attempt.state = error, ABORTS
            return [self._decide(attempt, False)]
        attempt.state = DECIDES
        return [self._decide(attempt, True)]

    def on_refused(self, message: PartRefused) -> list[Effect]:
        """One that cannot is enough for all."""
        attempt = self._attempts.get(message.commit)
        if attempt is None or attempt.state != PREPARES:
            return []
        attempt.error = from_number(message.number, message.text)
        if isinstance(attempt.error, Moved):
            self._suspect(message.group)
        attempt.state = ABORTS
        return [self._decide(attempt, False)]

    def _decide(self, attempt: Attempt, happens: bool) -> Persist:
        about = Decided(attempt.commit, attempt.client)
        topics = attempt.work.topics(attempt.shares) if happens else ()
        return Persist(DecideCommit(attempt.commit, attempt.client, happens, topics), origin=Reporting(about))

    def on_done(self, now_ms: int, message: PartDone) -> list[Effect]:
        """When all have carried out their parts the client is answered, and the commit forgotten."""
        telling = self._telling.get(message.commit)
        if telling is None or message.group not in telling.groups:
            return []
        before = telling.done.get(message.group)
        if before is None or before.stored is None:
            telling.done[message.group] = message
        if len(telling.done) < len(telling.groups):
            return []
        attempt = self._attempts.get(message.commit)
        answered: list[Effect] = []
        if attempt is not None:
            done = telling.done
            answered = self._finish(attempt, lambda request: attempt.work.answer(request, attempt.shares, done))
        return answered + self._end(now_ms, message.commit, telling)

    def _end(self, now_ms: int, commit: CommitId, telling: Telling) -> list[Effect]:
        if now_ms - telling.ended_ms < PERSIST_AGAIN_MS:
            return []
        telling.ended_ms = now_ms
        return [Persist(EndCommit(commit, telling.client), origin=Reporting(Ended(telling.client)))]

    def on_asked(self, own: GroupDescriptor, message: AskDecision) -> list[Effect]:
        """An owner wants to know. What we do not know never happens; that is said once our journal has confirmed it."""
        known = self._commits.open.get(message.client)
        if known is not None and known.commit == message.commit:
            if not known.happens:
                return []  # It is about to be decided, or aborted as what an earlier leader began.
            return [ToGroup(message.sender, Decision(own, message.sender.group, message.commit, message.client, True))]
        about = Decided(message.commit, message.client, message.sender)
        return [Persist(DecideCommit(message.commit, message.client, False), origin=Reporting(about))]

    # Time.

    def awaited(self) -> Iterator[bytes]:
        """Groups that owe a part, or a word that it is carried out, for longer than usual. One that has left, and is
        switched off, never says so.
        """
        for telling in self._telling.values():
            yield from telling.owing()
        for attempt in self._attempts.values():
            if attempt.state == PREPARES and attempt.pause_ms > TELL_AGAIN_MS:
                yield from (group for group, share in attempt.shares.items() if not share.is_prepared)

    def tick(self, now_ms: int, own: GroupDescriptor) -> list[Effect]:
        """What is due."""
        commits, effects = self._commits, list[Effect]()
        open_now = {each.commit: None for each in commits.open.values()}
        self._telling = {commit: each for commit, each in self._telling.items() if commit in open_now}
        self._aborted_ms = {commit: at_ms for commit, at_ms in self._aborted_ms.items() if commit in open_now}
        for client, each in commits.open.items():
            if each.happens:
                effects += self._go_on(now_ms, own, each.commit)
            elif each.commit not in self._attempts and now_ms - self._aborted_ms.get(each.commit, 0) > PERSIST_AGAIN_MS:
                self._aborted_ms[each.commit] = now_ms
                about = Decided(each.commit, client)
                effects.append(Persist(DecideCommit(each.commit, client, False), origin=Reporting(about)))
        for attempt in list(self._attempts.values()):
            effects += self._tend(now_ms, own, attempt)
        for client in list(self._queues):
            effects += self._start(now_ms, client)
        return effects

    def _go_on(self, now_ms: int, own: GroupDescriptor, commit: CommitId) -> list[Effect]:
        telling = self._telling.get(commit)
        if telling is None:
            return self._tell(now_ms, own, commit)
        effects: list[Effect] = []
        for group in telling.owing():
            known = self._directory.descriptor(group)
            if known is not None and known.left:  # It carried out its part before it gave away its topics.
                effects += self.on_done(now_ms, PartDone(group, commit, telling.client, None))
        if len(telling.done) == len(telling.groups):
            return effects or self._end(now_ms, commit, telling)
        return effects + (self._tell(now_ms, own, commit) if now_ms - telling.sent_ms >= TELL_AGAIN_MS else [])

    def _tend(self, now_ms: int, own: GroupDescriptor, attempt: Attempt) -> list[Effect]:
        """Asks again for parts that have not come; gives up after a while."""
        late = now_ms - attempt.since_ms > GIVE_UP_MS
        if (attempt.state == WAITS and late) or now_ms - attempt.since_ms > 2 * GIVE_UP_MS:
            return self._send_away(attempt)
        if attempt.state != PREPARES:
            return []
        if late:
            attempt.state = ABORTS
            return [self._decide(attempt, False)]
        if now_ms - attempt.sent_ms < attempt.pause_ms:
            return []
        attempt.pause_ms = min(2 * attempt.pause_ms, PREPARE_AGAIN_MS_MAX)
        return self._prepare(now_ms, own, attempt)

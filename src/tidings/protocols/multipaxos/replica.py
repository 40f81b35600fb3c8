"""A replica: acceptor, log and, when it tries to lead, a ballot of its own, behind one door.

`handle` is the table of contents. Every event changes the parts and collects effects; the runtime runs them in order.
Timers only cause attempts (an election, a repetition), which any acceptor may refuse: no value is ever chosen or given
up because time has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tidings.protocols.multipaxos.acceptor import Acceptor
from tidings.protocols.multipaxos.catchup import Catchup
from tidings.protocols.multipaxos.election import Election
from tidings.protocols.multipaxos.leader import Leader
from tidings.protocols.multipaxos.log import Log
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    BeatDue,
    ChangeMembership,
    Chosen,
    Decided,
    ElectionDue,
    LeaderChanged,
    MembershipChanged,
    MembershipConfirmed,
    Persist,
    Prepare,
    PreVote,
    PreVoteGranted,
    Promise,
    ProposalRejected,
    Propose,
    Read,
    ReadReady,
    ReadRefused,
    Received,
    Refused,
    Send,
)
from tidings.protocols.multipaxos.pre_vote import PreVotes
from tidings.protocols.multipaxos.reads import Rounds
from tidings.protocols.multipaxos.records import Known, Lost, Promised, Record, Snapshot, Whole
from tidings.protocols.multipaxos.values import ZERO, Ballot, Change, Noop, Promote, Value
from tidings.protocols.stack import CancelTimer, Effect, Event, Notify, Requested, SetTimer, TimerFired, UnexpectedEvent
from tidings.settings import ReplicaSettings


class Replica:
    """One node of a group. Its number stands for its disk: anyone who lost the disk has lost the number."""

    def __init__(self, node: int, settings: ReplicaSettings, random: Random) -> None:
        self.node = node
        self._settings = settings
        self.log = Log()
        self.acceptor = Acceptor(self.log, settings)
        self._catchup = Catchup(self.log, settings)
        self._ballot: Leader | None = None
        """A ballot of our own, if we try to lead or do."""
        self._rounds = Rounds()
        self._election = Election(settings, random)
        self._pre_votes = PreVotes(node)
        self._known = 0
        """How far the log was decided when this was last written down."""
        self._announced = 0
        """The first slot of the newest membership that was told."""
        self._effects: list[Effect] = []

    @property
    def leads(self) -> bool:
        return self._ballot is not None and self._ballot.leading

    @property
    def is_up_to_date(self) -> bool:
        """Whether we lead, and have decided all that was decided before our time."""
        return self._ballot is not None and self._ballot.is_up_to_date

    @property
    def has_room(self) -> bool:
        """Whether something that is proposed now would be under way at once."""
        return self._ballot is not None and self._ballot.has_room

    @property
    def leader(self) -> int | None:
        """Who leads, as far as is known here: a hint for clients."""
        return self._election.leader

    @property
    def leader_ballot(self) -> Ballot:
        """The ballot by which it leads. Not what is promised: that may be one that its node has never won."""
        return self._election.ballot

    @property
    def is_changing(self) -> bool:
        """Whether a change of the membership has been accepted here and is not decided, waits for a slot of ours, or is
        decided and not yet in force.
        """
        log, ballot = self.log, self._ballot
        values = (*(entry.value for entry in log.undecided(log.decided)), *(ballot.queue if ballot is not None else ()))
        return log.history.is_open(log.decided) or any(isinstance(value, Change) for value in values)

    @property
    def next_round(self) -> int:
        """The next time that everybody is asked whether we still lead. It counts from the beginning of our ballot."""
        return self._rounds.number + 1

    def answered(self, number: int) -> list[int]:
        """Who has accepted us as the leader in this round or a later one."""
        return self._rounds.answered(number)

    # Its life.

    def restore(self, whole: Whole | None, records: Iterable[Record | Lost], damaged: bool = False) -> None:
        """Takes what the disk holds; before `start`. `damaged`: some of what was decided may be missing."""
        self.acceptor.promised = self.log.rebuild(whole, records, damaged)
        self._known = self.log.decided
        self._announced = self.log.history.newest.first_slot

    def start(self) -> list[Effect]:
        self._effects = []
        self._await_leader()
        if self._voters() == (self.node,):  # There is nobody to wait for.
            self._effects.append(SetTimer(ElectionDue(), 0))
        return self._effects

    def install(self, now_ms: int, node: int, snapshot: Snapshot) -> list[Effect]:
        """The runtime has taken the state of another replica, and has it on disk; asks that one for what follows."""
        self._effects = []
        if snapshot.next_slot > self.log.decided:
            self._stop_proposing_below(snapshot.next_slot)
            self.log.install(snapshot)
            self._known = self.log.decided
            self._take_decided(self.log.decide_sure())
        self._effects += self._catchup.go_on(now_ms, node, snapshot.next_slot + 1)
        self._go_on()
        return self._effects

    def wait_for_files(self, now_ms: int) -> None:
        """What is asked for comes in, piece by piece: no need to ask again."""
        self._catchup.wait(now_ms)

    def handle(self, event: Event) -> list[Effect]:
        self._effects = []
        match event:
            case Received(now_ms, node, message):
                self._on_message(now_ms, node, message)
            case Requested(_, Propose(command)):
                self._on_proposed(command)
            case Requested(_, ChangeMembership(change)):
                self._on_proposed(change)
            case Requested(_, Read(token)):
                self._on_read(token)
            case TimerFired(_, ElectionDue()):
                self._on_election_due()
            case TimerFired(_, BeatDue()):
                self._on_beat_due()
            case _:
                raise UnexpectedEvent(event)
        return self._effects

    def _on_message(self, now_ms: int, node: int, message: object) -> None:
        match message:
            case PreVote():
                self._on_pre_vote(now_ms, node, message)
            case PreVoteGranted():
                self._on_pre_vote_granted(node, message)
            case Prepare():
                self._on_prepare(now_ms, node, message)
            case Promise():
                self._on_promise(now_ms, node, message)
            case Accept():
                self._on_accept(now_ms, node, message)
            case Accepted():
                self._on_accepted(now_ms, node, message)
            case Refused():
                self._on_refused(now_ms, node, message)
            case Chosen():
                self._on_chosen(now_ms, node, message)
            case _:
                raise UnexpectedEvent(message)

    # Elections.

    def _await_leader(self) -> None:
        """Waits for a leader to be heard, for a time that differs from node to node and from time to time."""
        self._effects.append(SetTimer(ElectionDue(), self._election.patience_ms()))

    def _on_election_due(self) -> None:
        self._await_leader()
        if self._is_removed:
            return
        # One that listens asks as well. It may have become a voter, and been removed since, without hearing of either.
        self._step_down()
        self._follow(None)
        pre_vote = self._pre_votes.ask(self.log.decided)
        others = tuple(node for node in self._voters() if node != self.node)
        if others:
            self._effects.append(Send(others, pre_vote))
        self._campaign_if_granted()

    def _on_pre_vote(self, now_ms: int, node: int, message: PreVote) -> None:
        if not self._votes(node):
            self._enlighten(now_ms, node, message.decided)
        elif not self.leads and not self._election.hears_leader(now_ms):
            self._effects.append(Send((node,), PreVoteGranted(message.attempt)))

    def _on_pre_vote_granted(self, node: int, message: PreVoteGranted) -> None:
        self._pre_votes.take(node, message)
        self._campaign_if_granted()

    def _campaign_if_granted(self) -> None:
        if self._ballot is None and self._votes(self.node) and self._pre_votes.is_granted(self.log.open_memberships()):
            self._pre_votes.end()
            self._campaign()

    def _voters(self) -> tuple[int, ...]:
        """Everybody who votes on any open slot."""
        voters = (voter for membership in self.log.open_memberships() for voter in membership.voters)
        return tuple(dict.fromkeys(voters))

    def _votes(self, node: int) -> bool:
        """Whether a node votes on any open slot, as far as we know."""
        return node in self._voters()

    @property
    def _is_removed(self) -> bool:
        """Whether we know that we were a member and are none any more: numbers are given once, in their order."""
        membership = self.log.history.newest.membership
        return self.node <= membership.newest and self.node not in membership.nodes and not self._votes(self.node)

    def _campaign(self) -> None:
        ballot = self._election.next_ballot(self.node, self.acceptor.promised)
        self._ballot = Leader(ballot, self.log, self._settings)
        # Our own promise is on disk before anybody hears of the ballot: after a restart we must not use it again.
        self.acceptor.promised = ballot
        voters = tuple(node for node in self._voters() if node != self.node)
        prepare = Prepare(ballot, self.log.decided)
        own = Promise(ballot, self.log.undecided(self.log.decided), self.log.known)
        self._persist([Promised(ballot)], Send(voters, prepare), Send((self.node,), own))
        self._effects.append(SetTimer(BeatDue(), self._settings.beat_ms))

    def _on_prepare(self, now_ms: int, node: int, message: Prepare) -> None:
        if not self._votes(node):
            self._enlighten(now_ms, node, message.first_slot)
            return
        if message.ballot > self.acceptor.promised:
            self._step_down()
            self._await_leader()
        self._effects.append(self.acceptor.prepare(node, message))

    def _enlighten(self, now_ms: int, node: int, decided: int) -> None:
        """Removed, and it does not know; or added, and we do not know. Anyone who is behind gets to hear of it."""
        self._effects.append(self.acceptor.refusal(node))
        self._effects += self._catchup.ask(now_ms, node, decided)

    def _on_promise(self, now_ms: int, node: int, message: Promise) -> None:
        ballot = self._ballot
        if ballot is None or ballot.ballot != message.ballot:
            return  # Late, or for an earlier attempt.
        ballot.take_promise(node, message)
        if node != self.node:  # What our own disk has lost is known to it, and gone.
            self._effects += self._catchup.ask(now_ms, node, message.decided)
        self._go_on()

    def _on_refused(self, now_ms: int, node: int, message: Refused) -> None:
        self._election.note(message.promised)
        if self._ballot is not None and self._ballot.ballot < message.promised:
            self._step_down()
            self._await_leader()
        if self.leader is None:
            self._effects += self._catchup.ask(now_ms, node, message.decided)

    def _step_down(self) -> None:
        """Gives up our ballot, if there is one. What it proposed may be chosen or not: the next leader finds out."""
        ballot, self._ballot = self._ballot, None
        if ballot is None:
            return
        self._effects.append(CancelTimer(BeatDue()))
        if ballot.leading:
            self._follow(None)
        for value in (*(ballot.proposals[slot].value for slot in sorted(ballot.proposals)), *ballot.queue):
            self._turn_away(value)
        for token in self._rounds.tokens:
            self._effects.append(Notify(ReadRefused(token, None)))
        self._rounds = Rounds()

    def _follow(self, leader: int | None, ballot: Ballot = ZERO) -> None:
        self._election.ballot = ballot
        if leader != self._election.leader:
            self._election.leader = leader
            self._effects.append(Notify(LeaderChanged(leader)))

    # Leading.

    def _on_proposed(self, value: Value) -> None:
        ballot = self._ballot
        if ballot is None or not ballot.leading or len(ballot.queue) >= self._settings.queue_max:
            self._turn_away(value)
            return
        if isinstance(value, Promote) and not self.is_caught_up(value.node):
            self._turn_away(value)
            return
        ballot.queue.append(value)
        self._propose()

    def is_caught_up(self, node: int) -> bool:
        """Whether a listener of ours is near enough to vote: before that its vote would only stand in the way."""
        ballot = self._ballot
        return ballot is not None and ballot.decided_by.get(node, 0) + self.log.history.window >= self.log.decided

    def _turn_away(self, value: Value) -> None:
        if not isinstance(value, Noop):  # Nobody waits for a no-op.
            self._effects.append(Notify(ProposalRejected(value, self._another_leader())))

    def _another_leader(self) -> int | None:
        return self.leader if self.leader != self.node else None

    def _go_on(self) -> None:
        """Does what has become possible: lead, decide, propose, begin a round for the reads."""
        ballot = self._ballot
        if ballot is None:
            return
        if not ballot.leading and ballot.may_propose_in(self.log.decided):
            ballot.leading = True
            self._follow(self.node, ballot.ballot)
            self._effects.append(CancelTimer(ElectionDue()))
            self._beat()
        if ballot.leading:
            while ballot.next_is_chosen():
                self._take_decided([self.log.decide_next()])
                if self._ballot is not ballot:
                    return  # What was decided has removed us.
            self._propose()
            self._begin_reads()

    def _propose(self) -> None:
        ballot = self._ballot
        assert ballot is not None and ballot.leading
        while (batch := ballot.next_batch()) is not None:
            first_slot, values = batch
            self._send_accept(self._others(), first_slot, values)
            self._accept_ourselves(first_slot, values)

    def _others(self) -> tuple[int, ...]:
        """Everybody else who votes or listens in any open slot."""
        nodes = dict.fromkeys(node for membership in self.log.open_memberships() for node in membership.nodes)
        return tuple(node for node in nodes if node != self.node)

    def _accept(self, first_slot: int, values: tuple[Value, ...]) -> Accept:
        assert self._ballot is not None
        return Accept(self._ballot.ballot, first_slot, values, self.log.decided, self._rounds.number)

    def _send_accept(self, nodes: tuple[int, ...], first_slot: int, values: tuple[Value, ...]) -> None:
        if nodes:
            self._effects.append(Send(nodes, self._accept(first_slot, values)))

    def _accept_ourselves(self, first_slot: int, values: tuple[Value, ...]) -> None:
        """The leader's own acceptor, too, is counted only when its disk has the values."""
        effect = self.acceptor.accept(self.node, self._accept(first_slot, values))
        assert isinstance(effect, Persist), "a leader has promised no ballot but its own"
        assert all(first_slot + place in self.log.entries for place in range(len(values)))
        self._effects.append(self._with_known(effect))

    def _on_beat_due(self) -> None:
        ballot = self._ballot
        if ballot is None:
            return
        if self._rounds.unanswered_beats >= self._settings.unanswered_beats_max:
            self._step_down()
            self._await_leader()
            return
        self._beat()

    def _beat(self) -> None:
        """Says again what has not been answered, and is heard by everybody."""
        ballot = self._ballot
        assert ballot is not None
        self._effects.append(SetTimer(BeatDue(), self._settings.beat_ms))
        unpromised = ballot.unpromised()
        if unpromised and self.node in ballot.promised:  # Until our own promise is on disk the ballot is a secret.
            self._effects.append(Send(unpromised, Prepare(ballot.ballot, self.log.decided)))
        if ballot.leading:
            self._rounds.begin_beat()
            for node in self._others():
                self._send_accept((node,), *ballot.unaccepted_by(node))
            self._accept_ourselves(ballot.next_slot, ())

    def _on_accepted(self, now_ms: int, node: int, message: Accepted) -> None:
        ballot = self._ballot
        if ballot is None or ballot.ballot != message.ballot:
            return
        ballot.take_accepted(node, message)
        if self.log.decided < ballot.floor:
            # These slots are not ours to propose in, and the answer to an earlier question may have got lost.
            self._effects += self._catchup.ask(now_ms, node, message.decided)
        confirmed = self._rounds.take_answer(node, message.round, self.log.history.at(self.log.decided))
        if confirmed is not None:
            index, tokens = confirmed
            for token in tokens:
                self._effects.append(Notify(ReadReady(token, index)))
        self._go_on()
        agreed = ballot.newly_agreed()
        if agreed is not None:
            self._effects.append(Notify(MembershipConfirmed(agreed.first_slot, agreed.membership)))

    # Reads.

    def _on_read(self, token: int) -> None:
        if not self.leads or len(self._rounds.waiting) >= self._settings.reads_max:
            self._effects.append(Notify(ReadRefused(token, self._another_leader())))
            return
        self._rounds.waiting.append(token)
        self._begin_reads()

    def _begin_reads(self) -> None:
        ballot, decided = self._ballot, self.log.decided
        if ballot is None or not ballot.is_up_to_date:
            return
        if self._rounds.begin_reads(decided, self.log.history.at(decided)):
            self._send_accept(self._others(), ballot.next_slot, ())
            self._accept_ourselves(ballot.next_slot, ())

    # Following.

    def _on_accept(self, now_ms: int, node: int, message: Accept) -> None:
        if self.acceptor.refuses(message.ballot):
            self._effects.append(self.acceptor.refusal(node))
            return
        if self._ballot is not None and self._ballot.ballot != message.ballot:
            self._step_down()
        self._await_leader()
        self._election.heard_at_ms = now_ms
        self._follow(node, message.ballot)
        self._make_room(message)
        effect = self.acceptor.accept(node, message)
        decided = self.log.decide_through(message.decided, message.ballot)
        self._effects.append(self._with_known(effect))  # First the entries, then the word that they are decided.
        self._take_decided(decided)
        self._effects += self._catchup.ask(now_ms, node, message.decided)

    def _make_room(self, message: Accept) -> None:
        """Decides what an accept says is decided, before its values are weighed.

        The leader proposes as much as there is room for once that is decided. Anyone who found it to be too much would
        be told again only with the next beat, and as often as the room is full.
        """
        self._take_decided(self.log.decide_through(message.decided, message.ballot))

    def _on_chosen(self, now_ms: int, node: int, message: Chosen) -> None:
        self._stop_proposing_below(message.first_slot + len(message.values))
        records, decided = self.log.learn(message.first_slot, message.values)
        if records:
            self._persist(records)
        self._take_decided(decided)
        if decided:  # What comes twice must not be asked for twice, or questions and answers multiply.
            self._effects += self._catchup.go_on(now_ms, node, message.decided)
        self._go_on()

    def _stop_proposing_below(self, end: int) -> None:
        """Another leader has decided slots that are ours to decide: we no longer lead.

        Were we to go on, our `decided` would tell those who accepted our proposals that these had been chosen.
        """
        if self._ballot is not None and any(slot < end for slot in self._ballot.proposals):
            self._step_down()
            self._await_leader()

    # What is decided, and what is written down.

    def _take_decided(self, decided: list[Decided]) -> None:
        for each in decided:
            self._effects.append(Notify(each))
        newest = self.log.history.newest
        if newest.first_slot > self._announced:
            self._announced = newest.first_slot
            self._effects.append(Notify(MembershipChanged(newest.first_slot, newest.membership)))
        if self._known < newest.first_slot <= self.log.decided:
            # A membership has come into force. Nobody may be needed any more who only voted before.
            self._known = self.log.decided
            self._persist([Known(self._known)])
        if self.leads and not self._votes(self.node):
            self._step_down()  # The change that removes us is in force, and others vote from here on.
            self._await_leader()

    def _persist(self, records: list[Record], *answers: Send) -> None:
        self._effects.append(self._with_known(Persist(tuple(records), answers)))

    def _with_known(self, effect: Effect) -> Effect:
        """Writes down how far the log is decided, along with something else."""
        if not isinstance(effect, Persist) or not effect.records or self.log.decided <= self._known:
            return effect
        self._known = self.log.decided
        return Persist((*effect.records, Known(self._known)), effect.answers)

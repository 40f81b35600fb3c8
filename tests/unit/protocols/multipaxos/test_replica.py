"""Replicas that elect, decide, catch up, change their membership and answer reads (P6)."""

from __future__ import annotations

from tests.unit.protocols.multipaxos.parts import (
    SETTINGS,
    WINDOW,
    Group,
    command,
    make_replica,
    persists,
    receive,
    said,
    told,
)
from tidings.node.founding import founding
from tidings.protocols.multipaxos.messages import (
    Accept,
    Accepted,
    BeatDue,
    ChangeMembership,
    Chosen,
    Decided,
    ElectionDue,
    Fetch,
    LeaderChanged,
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
from tidings.protocols.multipaxos.records import Known, Promised, Snapshot
from tidings.protocols.multipaxos.replica import Replica
from tidings.protocols.multipaxos.values import ZERO, Add, Ballot, Change, Promote, Remove
from tidings.protocols.stack import CancelTimer, Effect, Requested, SetTimer, TimerFired
from tidings.settings import ReplicaSettings


def propose(group: Group, node: int, *numbers: int) -> None:
    for number in numbers:
        group.tell(node, Requested(group.now_ms, Propose(command(number))))


def change(group: Group, node: int, wanted: Change) -> None:
    group.tell(node, Requested(group.now_ms, ChangeMembership(wanted)))


def beat(group: Group, node: int) -> None:
    group.now_ms += 1_000
    group.tell(node, TimerFired(group.now_ms, BeatDue()))


# Elections.


def run_for_leader(replica: Replica) -> list[Effect]:
    """Its patience ends, and one other hears no leader either; what it does then."""
    pre_vote = said(replica.handle(TimerFired(0, ElectionDue())), PreVote)[0]
    return receive(replica, 2, PreVoteGranted(pre_vote.attempt))


def test_a_node_runs_only_when_a_majority_hears_no_leader() -> None:
    replica = make_replica(1)
    effects = replica.handle(TimerFired(0, ElectionDue()))
    assert said(effects, PreVote) == [PreVote(1, 1)]
    assert persists(effects) == []
    assert persists(receive(replica, 2, PreVoteGranted(7))) == [], "that was another attempt"
    assert persists(receive(replica, 2, PreVoteGranted(1)))
    assert persists(receive(replica, 3, PreVoteGranted(1))) == [], "once is enough"


def test_who_hears_a_leader_supports_nobody_else() -> None:
    replica = make_replica(2)
    beat_of_1 = Accept(Ballot(1, 1), 1, (), 1, 0)
    replica.handle(Received(1_000, 1, beat_of_1))
    patience_ms = SETTINGS.election_ms
    assert replica.handle(Received(999 + patience_ms, 3, PreVote(1, 1))) == []
    assert replica.handle(Received(1_000 + patience_ms, 3, PreVote(1, 1))) == [Send((3,), PreVoteGranted(1))]
    assert replica.handle(Received(500, 3, PreVote(1, 1))) == [Send((3,), PreVoteGranted(1))], "its clock was set back"


def test_a_deaf_node_deposes_nobody() -> None:
    group = Group()
    group.elect(1)
    beat(group, 1)
    group.lose_patience(3)
    assert group.replicas[1].leads
    assert group.replicas[2].acceptor.promised == Ballot(1, 1)


def test_when_the_leader_is_gone_the_others_find_another() -> None:
    group = Group()
    group.elect(1)
    group.cut = (1,)
    group.now_ms += SETTINGS.election_ms
    group.lose_patience(3)
    assert group.replicas[3].leads


def test_a_ballot_is_a_secret_until_its_own_promise_is_on_disk() -> None:
    replica = make_replica(1)
    effects = run_for_leader(replica)
    ballot = Ballot(1, 1)
    own, asked = Send((1,), Promise(ballot, (), 1)), Send((2, 3), Prepare(ballot, 1))
    assert persists(effects) == [Persist((Promised(ballot),), (asked, own))]
    assert not said(replica.handle(TimerFired(0, BeatDue())), Prepare), "a beat must not tell it either"


def test_a_node_uses_no_ballot_that_it_may_have_used_before() -> None:
    replica = make_replica(1, records=[Promised(Ballot(4, 1))])
    assert said(run_for_leader(replica), Prepare)[0].ballot == Ballot(5, 1)


def test_a_refused_candidate_tries_above_what_it_has_heard_of() -> None:
    replica = make_replica(1)
    run_for_leader(replica)
    receive(replica, 2, Refused(Ballot(9, 3), 1))
    assert said(run_for_leader(replica), Prepare)[0].ballot == Ballot(10, 1)


def test_a_group_elects_and_decides() -> None:
    group = Group()
    group.elect(1)
    assert told(group.effects[1], LeaderChanged) == [LeaderChanged(1)]
    assert told(group.effects[2], LeaderChanged) == [LeaderChanged(1)]
    propose(group, 1, 1, 2, 3)
    beat(group, 1)
    assert group.rows() == [[b"ann1", b"ann2", b"ann3"]] * 3
    assert told(group.effects[2], Decided) == [Decided(slot, command(slot)) for slot in (1, 2, 3)]


def test_a_group_of_one_needs_nobody() -> None:
    group = Group(voters=(1,))
    group.elect(1)
    propose(group, 1, 1)
    assert group.rows() == [[b"ann1"]]


def test_a_new_leader_finishes_what_the_old_one_began() -> None:
    group = Group()
    group.elect(1)
    group.cut = (1, 3)
    propose(group, 1, 1)  # It reaches nobody; only 1 has it.
    group.cut = (3,)
    group.elect(2)
    assert [group.row_of(node) for node in (1, 2)] == [[], [b"ann1"]]
    assert told(group.effects[1], ProposalRejected) == [ProposalRejected(command(1), None)]
    beat(group, 2)
    assert group.row_of(1) == [b"ann1"]


def test_who_leads_leads_by_the_ballot_that_it_was_heard_with_and_not_by_one_that_it_asks_for() -> None:
    """It may never win that one, and another be elected by a lower one of those who have not promised it."""
    follower = make_replica(3)
    assert follower.leader_ballot == ZERO
    receive(follower, 1, Accept(Ballot(2, 1), 1, (), 1, 1))
    receive(follower, 1, Prepare(Ballot(3, 1), 1))
    assert (follower.leader, follower.leader_ballot) == (1, Ballot(2, 1))
    receive(follower, 1, Accept(Ballot(3, 1), 1, (), 1, 1))
    assert (follower.leader, follower.leader_ballot) == (1, Ballot(3, 1))
    follower.handle(TimerFired(10_000, ElectionDue()))
    assert (follower.leader, follower.leader_ballot) == (None, ZERO)


def test_a_minority_decides_nothing() -> None:
    group = Group()
    group.elect(1)
    group.cut = (2, 3)
    propose(group, 1, 1)
    for _ in range(3):
        beat(group, 1)
    assert group.rows() == [[], [], []]


def test_a_leader_that_nobody_answers_gives_up_its_place() -> None:
    settings = ReplicaSettings(unanswered_beats_max=3)
    group = Group(settings=settings)
    group.elect(1)
    group.cut = (1,)
    for _ in range(4):
        assert group.replicas[1].leads
        beat(group, 1)
    assert not group.replicas[1].leads
    assert isinstance(group.effects[1][-1], SetTimer)


def test_a_leader_does_not_run_against_itself() -> None:
    group = Group()
    group.elect(1)
    assert CancelTimer(ElectionDue()) in group.effects[1]
    propose(group, 2, 1)
    assert told(group.effects[2], ProposalRejected) == [ProposalRejected(command(1), 1)]


def test_commands_beyond_the_queue_are_refused() -> None:
    group = Group(settings=ReplicaSettings(queue_max=1, batches_open_max=1))
    group.elect(1)
    group.cut = (2, 3)
    propose(group, 1, 1, 2, 3)
    assert told(group.effects[1], ProposalRejected) == [ProposalRejected(command(3), None)]


# Catching up.


def test_a_follower_that_missed_values_fetches_them() -> None:
    group = Group()
    group.elect(1)
    group.cut = (3,)
    propose(group, 1, 1, 2)
    group.elect(2)  # A new ballot: what 3 missed is not proposed again.
    group.cut = ()
    beat(group, 2)
    assert said(group.effects[3], Fetch) == [Fetch(1)]
    assert group.row_of(3) == [b"ann1", b"ann2"]


def test_whose_state_was_exchanged_asks_the_same_node_for_what_follows() -> None:
    replica = make_replica(3)
    snapshot = Snapshot(7, WINDOW, founding((1, 2, 3), WINDOW).terms)
    effects = replica.install(0, 2, snapshot)
    assert [effect for effect in effects if isinstance(effect, Send)] == [Send((2,), Fetch(7))]
    assert told(effects, Decided) == [], "what the state holds already is not told"
    assert told(receive(replica, 2, Chosen(7, (command(7),), 8)), Decided) == [Decided(7, command(7))]


def test_a_state_that_is_no_newer_changes_nothing() -> None:
    replica = make_replica(3)
    receive(replica, 1, Chosen(1, (command(1), command(2)), 3))
    replica.install(0, 2, Snapshot(2, WINDOW, ()))
    assert (replica.log.decided, replica.log.open_memberships()[0].voters) == (3, (1, 2, 3))


def test_who_waits_for_files_does_not_ask_again_meanwhile() -> None:
    replica = make_replica(3)
    late_ms = SETTINGS.fetch_retry_ms
    heartbeat = Accept(Ballot(1, 1), 5, (), 5, 0)
    assert said(replica.handle(Received(0, 1, heartbeat)), Fetch) == [Fetch(1)]
    replica.wait_for_files(late_ms - 1)
    assert not said(replica.handle(Received(late_ms, 1, heartbeat)), Fetch)
    assert said(replica.handle(Received(2 * late_ms - 1, 1, heartbeat)), Fetch) == [Fetch(1)]


def test_a_leader_whose_state_is_exchanged_beyond_its_proposals_stops_leading() -> None:
    group = Group()
    group.elect(1)
    group.cut = (1,)
    propose(group, 1, 1)
    effects = group.replicas[1].install(0, 2, Snapshot(2, WINDOW, founding((1, 2, 3), WINDOW).terms))
    assert told(effects, ProposalRejected) == [ProposalRejected(command(1), None)]
    assert not group.replicas[1].leads


def test_an_answer_that_comes_twice_is_no_reason_to_ask_again() -> None:
    """Or questions and answers would multiply on a network that repeats them."""
    replica = make_replica(3)
    answer = Chosen(1, (command(1),), 9)
    assert said(receive(replica, 1, answer), Fetch) == [Fetch(2)]
    assert not said(receive(replica, 1, answer), Fetch)


def test_a_candidate_that_is_behind_learns_before_it_leads() -> None:
    group = Group()
    group.elect(1)
    group.cut = (3,)
    propose(group, 1, 1, 2)
    beat(group, 1)
    group.cut = (1,)
    group.elect(3)
    assert group.replicas[3].leads
    propose(group, 3, 3)
    assert group.row_of(3) == [b"ann1", b"ann2", b"ann3"]


def test_a_leader_that_is_told_late_of_decided_slots_asks_until_it_has_them() -> None:
    """They are not its own to propose in, so until then it can do nothing at all."""
    group = Group()
    group.elect(1)
    ballot = Ballot(1, 1)
    assert said(receive(group.replicas[1], 3, Promise(ballot, (), 3)), Fetch) == [Fetch(1)]
    late = Accepted(ballot, 1, 0, 3, 1)
    again = group.replicas[1].handle(Received(SETTINGS.fetch_retry_ms, 3, late))
    assert said(again, Fetch) == [Fetch(1)]
    group.tell(1, Received(group.now_ms, 3, Chosen(1, (command(1), command(2)), 3)))
    assert group.replicas[1].leads
    propose(group, 1, 3)
    assert group.row_of(1) == [b"ann1", b"ann2", b"ann3"]


def test_a_leader_that_learns_what_it_has_proposed_stops_leading() -> None:
    """Its `decided` would make others take its own proposal for the chosen value."""
    group = Group()
    group.elect(1)
    group.cut = (1,)
    propose(group, 1, 1)
    receive(group.replicas[1], 2, Chosen(1, (command(7),), 2))
    assert not group.replicas[1].leads
    assert group.replicas[1].log.decided == 2


# Membership.


def replaced(group: Group, leader: int, old: int, new: int) -> None:
    group.join_blank(new)
    for wanted in (Add(new), Promote(new), Remove(old)):
        change(group, leader, wanted)
        for _ in range(3):
            beat(group, leader)


def test_a_node_is_replaced_and_the_new_one_counts() -> None:
    group = Group()
    group.elect(1)
    propose(group, 1, 1)
    replaced(group, 1, old=3, new=4)
    assert group.replicas[1].log.history.newest.membership.voters == (1, 2, 4)
    group.cut = (2, 3)
    propose(group, 1, 2)
    assert group.row_of(1) == [b"ann1", b"ann2"]
    assert group.row_of(3) == [b"ann1"]


def test_a_listener_is_not_counted() -> None:
    group = Group()
    group.elect(1)
    group.join_blank(4)
    change(group, 1, Add(4))
    for _ in range(3):
        beat(group, 1)
    group.cut = (2, 3)
    propose(group, 1, 1)
    assert group.replicas[4].log.entries, "it hears what is proposed"
    assert group.rows() == [[], [], [], []]


def test_a_listener_that_is_behind_gets_no_vote() -> None:
    group = Group()
    group.elect(1)
    change(group, 1, Add(4))
    change(group, 1, Promote(4))
    assert told(group.effects[1], ProposalRejected)[-1].value == Promote(4) or group.replicas[1].log.decided <= WINDOW
    propose(group, 1, *range(1, 2 * WINDOW))
    change(group, 1, Promote(4))
    assert told(group.effects[1], ProposalRejected)[-1] == ProposalRejected(Promote(4), None)


def test_a_change_is_brought_into_force_without_waiting_for_commands() -> None:
    group = Group()
    group.elect(1)
    change(group, 1, Remove(3))
    assert group.replicas[1].log.decided == 1 + WINDOW


def test_a_full_log_goes_on_without_waiting_for_a_beat() -> None:
    group = Group(settings=ReplicaSettings(undecided_bytes_max=1, batch_values_max=1))
    group.elect(1)
    propose(group, 1, *range(1, 2 * WINDOW))
    change(group, 1, Remove(3))
    assert group.replicas[1].log.decided == 1 + 2 * WINDOW - 1 + WINDOW


def test_that_a_membership_is_in_force_is_written_down_at_once() -> None:
    """Then nobody who only voted before is needed any more."""
    group = Group()
    group.elect(1)
    change(group, 1, Remove(3))
    assert Known(1 + WINDOW) in group.records[1]


def test_old_voters_may_go_once_a_majority_of_the_new_ones_knows() -> None:
    group = Group()
    group.elect(1)
    change(group, 1, Remove(3))
    assert [each.first_slot for each in told(group.effects[1], MembershipConfirmed)] == [1]
    group.effects[2].clear()
    beat(group, 1)  # Now 2 hears that the change is in force, writes it down, and only then says so.
    agreed = told(group.effects[1], MembershipConfirmed)[1:]
    assert [(each.first_slot, each.membership.voters) for each in agreed] == [(1 + WINDOW, (1, 2))]
    written, answered = persists(group.effects[2])
    assert (written.records, written.answers) == ((Known(1 + WINDOW),), ())
    assert [answer.decided for answer in said([answered], Accepted)] == [1 + WINDOW]


def test_a_leader_sees_its_own_removal_through() -> None:
    group = Group()
    group.elect(1)
    propose(group, 1, 1)
    change(group, 1, Remove(1))
    assert not group.replicas[1].leads
    group.effects[1].clear()
    group.lose_patience(1)
    assert not said(group.effects[1], PreVote), "who does not vote does not run"
    group.elect(2)
    propose(group, 2, 2)
    assert group.row_of(2) == [b"ann1", b"ann2"]


def test_a_removed_node_that_does_not_know_is_refused_and_told() -> None:
    group = Group()
    group.elect(1)
    group.cut = (3,)
    change(group, 1, Remove(3))
    beat(group, 1)
    group.cut = ()
    group.lose_patience(3)
    assert group.replicas[1].leads
    assert group.replicas[1].acceptor.promised == Ballot(1, 1)
    assert 3 not in group.replicas[3].log.history.newest.membership.voters


def test_a_listener_that_became_a_voter_and_was_removed_is_told_when_it_asks() -> None:
    group = Group()
    group.elect(1)
    group.join_blank(4)
    change(group, 1, Add(4))
    for _ in range(3):
        beat(group, 1)
    assert group.replicas[4].log.history.newest.membership.listeners == (4,)
    group.cut = (4,)
    change(group, 1, Promote(4))
    beat(group, 1)
    change(group, 1, Remove(4))
    beat(group, 1)
    group.cut = ()
    group.now_ms += 10_000
    group.lose_patience(4)
    assert group.replicas[4].log.history.newest.membership.nodes == (1, 2, 3)
    group.effects[4].clear()
    group.lose_patience(4)
    assert not said(group.effects[4], PreVote), "it knows by now"


def test_a_listener_asks_and_does_not_run() -> None:
    """Those who know that it was made a voter, as it does not, may grant it what it asks."""
    group = Group()
    group.elect(1)
    group.join_blank(4)
    change(group, 1, Add(4))
    for _ in range(3):
        beat(group, 1)
    group.cut = (1, 2, 3)
    group.elect(4)
    assert said(group.effects[4], PreVote)
    assert not said(group.effects[4], Prepare)


def test_a_node_with_an_empty_disk_neither_runs_nor_promises() -> None:
    group = Group()
    group.join_blank(9)
    group.lose_patience(9)
    assert not said(group.effects[9], PreVote)
    assert said(receive(group.replicas[9], 1, Prepare(Ballot(1, 1), 1)), Promise) == []


# Reads.


def read(group: Group, node: int, token: int) -> None:
    group.tell(node, Requested(group.now_ms, Read(token)))


def test_a_read_is_answered_after_a_majority_has_confirmed() -> None:
    group = Group()
    group.elect(1)
    propose(group, 1, 1)
    read(group, 1, token=7)
    assert told(group.effects[1], ReadReady) == [ReadReady(7, 2)]


def test_a_leader_that_is_cut_off_answers_no_read() -> None:
    group = Group()
    group.elect(1)
    group.cut = (1,)
    group.elect(2)
    propose(group, 2, 1)
    read(group, 1, token=7)
    assert told(group.effects[1], ReadReady) == []
    group.cut = ()
    beat(group, 2)
    assert told(group.effects[1], ReadRefused) == [ReadRefused(7, None)]


def test_an_answer_to_an_earlier_round_confirms_nothing() -> None:
    group = Group()
    group.elect(1)
    group.cut = (2, 3)
    read(group, 1, token=7)
    number = said(group.effects[1], Accept)[-1].round
    late = Accepted(Ballot(1, 1), 1, 0, 1, number - 1)
    assert told(receive(group.replicas[1], 2, late), ReadReady) == []
    assert told(receive(group.replicas[1], 2, Accepted(Ballot(1, 1), 1, 0, 1, number)), ReadReady)


def test_who_does_not_lead_refuses_reads_and_says_who_does() -> None:
    group = Group()
    group.elect(1)
    read(group, 2, token=7)
    assert told(group.effects[2], ReadRefused) == [ReadRefused(7, 1)]

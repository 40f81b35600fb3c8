"""The pre-vote: who has answered, and when that is enough."""

from __future__ import annotations

from tidings.protocols.multipaxos.membership import Membership
from tidings.protocols.multipaxos.messages import PreVote, PreVoteGranted
from tidings.protocols.multipaxos.pre_vote import PreVotes

THREE = Membership((1, 2, 3))
FIVE = Membership((1, 2, 3, 4, 5))


def test_a_majority_of_each_membership_is_needed() -> None:
    votes = PreVotes(1)
    assert votes.ask(7) == PreVote(1, 7)
    assert not votes.is_granted((THREE,))
    votes.take(2, PreVoteGranted(1))
    assert votes.is_granted((THREE,))
    assert not votes.is_granted((THREE, FIVE))
    votes.take(2, PreVoteGranted(1))
    assert not votes.is_granted((THREE, FIVE)), "a node counts once"
    votes.take(5, PreVoteGranted(1))
    assert votes.is_granted((THREE, FIVE))


def test_an_answer_to_an_earlier_question_does_not_count() -> None:
    votes = PreVotes(1)
    votes.ask(7)
    assert votes.ask(8) == PreVote(2, 8)
    votes.take(2, PreVoteGranted(1))
    assert not votes.is_granted((THREE,))
    votes.take(2, PreVoteGranted(2))
    assert votes.is_granted((THREE,))


def test_what_was_granted_leads_to_one_ballot() -> None:
    votes = PreVotes(1)
    votes.ask(0)
    votes.take(3, PreVoteGranted(1))
    votes.end()
    assert not votes.is_granted((THREE,))

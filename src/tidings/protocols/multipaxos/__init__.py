"""Multi-Paxos: a few nodes agree on one log, slot by slot, whatever crashes and whatever the network does (P6).

Picture a minute book of which several clerks keep copies. A line counts once more than half of them have written it
into their copies. The one who dictates (the leader) may be shown the door at any moment by somebody with a higher
ballot, who first asks more than half of the clerks what they have written so far, and dictates that again before
anything new.

    replica.py      one door: events in, effects out            acceptor.py   promises, accepts
    leader.py       one ballot: phase 1, phase 2, the window    log.py        entries, and what is decided
    election.py     when to try, under which ballot             reads.py      is it still me who leads?
    pre_vote.py     does anybody hear a leader?                 catchup.py    for those who are behind
    membership.py   who votes on which slot
    records.py      what is on disk                             values.py     ballots, and what a slot may hold
    messages.py     what is said, asked, told and wanted        witness.py    who has lost what it said? (claims.py)

Invariants
----------
A *ballot* (number, node) belongs to one node and one attempt. Of everything below only the last two need time to pass.

1. *Promises only rise.* A node answers nothing under a ballot below its promise. Accepting raises the promise too. The
   promise is on disk before it is spoken of, and so is everything that is reported as accepted.
2. *A ballot is used once.* A node's own promise of its ballot is on disk before anybody hears of the ballot, so that no
   later life of it can use it again.
3. *One value for each ballot and slot.* A leader proposes in a slot once; to say it again is to say the same.
4. *Nothing is overruled.* A leader proposes in a slot only after a majority of the slot's voters has promised its
   ballot, and then the value with the highest ballot that any promise reported, or a no-op if a later slot was
   reported, or, behind all these, something new. Slots that anybody knows to be decided are learned, not proposed in.
5. *A slot is decided by its own voters.* They follow from what was chosen at least a window of slots before it, all of
   which the proposer knows (`membership`). At most one change is open at a time.
6. *Decided means chosen.* A node takes a slot for decided if it counted a majority of accepts itself; or if the leader
   of a ballot says so and the value here came under that very ballot; or if another replica sends the value as chosen;
   or if its own disk said so before damage took what lies before it. A leader that learns from others what it has
   proposed itself stops leading.
7. *Applied in order, once.* Slots are applied one after another without a gap, by the runtime (`node.replica`), when
   they are decided and on its disk; whether a command was chosen before, in another slot, is judged by the replicated
   state. A snapshot therefore contains that too, like the slot it stands at and who votes there.
8. *A number stands for a disk.* A node that has lost its disk has lost its promises: it comes back under a new number,
   listens until it has caught up, and votes only after a change that says so. One that has lost some of it is found
   out by the others, if these are there: they remember how far it had come (`witness`).
9. *Reads are current.* A read is answered after a majority has confirmed, in a round that began after the read, that
   the leader still leads, and only by a leader that has decided all that its promises reported (`reads`).
10. *Progress.* While a majority of voters and the network between them work for long enough, some node leads, and what
    is proposed is decided. Timers see to that, and nothing else depends on them.
11. *Old voters may go* once a majority of the new ones has on disk that their membership is in force, which the leader
    tells (`MembershipConfirmed`). Until then what the old ones have decided may be forgotten by everybody else.

Where the document's pseudo-code is unsafe
------------------------------------------
The document that asked for this system (section 4.1.3) has these holes. `tidings simulate --mutants` lists
bugs of the same kinds, and what each does to a group.

- A prepare is compared with a number that answering it does not change: two candidates are promised the same instance.
  And it is judged for one instance only. Here: invariant 1, for every slot at once.
- The answer carries operations that were decided, not what was *accepted*: a new leader proposes something else where
  a value may have been chosen already. Here: invariant 4.
- An accept is answered whatever its number, and is not written down; nor is anything else. A restart forgets both
  promises and values. Here: invariant 1.
- Answers are counted, not the nodes that gave them: a repeated message makes a majority; and it is compared by "=", so
  that one answer too many misses it. Here: sets of nodes.
- Sequence numbers begin at a hash of the node and grow by no stated rule: two may be the same. Here: invariant 2.
- A node that is started alone leads at once, without phase 1. Here: founders write down the same membership, and
  the leader was elected.
- Replicas are added and removed when the operation reaches each of them, between any two instances: an old and a new
  majority need not meet. Here: invariant 5.
- One instance is open at a time, and an accept of any other is ignored: a replica that missed one stays behind for
  good. Here: a window of slots, and `catchup`.
"""

from tidings.protocols.multipaxos.replica import Replica

__all__ = ["Replica"]

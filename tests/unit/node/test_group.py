"""A broker whose journal several nodes agree on (P6, P7): three engines, wired in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node.members import FOUNDERS, GROUP, Members, Node, address_of, put
from tidings.node.identity import Identity
from tidings.node.membership import CANDIDATE_SILENCE_MS_MAX
from tidings.protocols.broker import messages, operators
from tidings.protocols.multipaxos.joining import Found, Known, Meet, Member
from tidings.protocols.multipaxos.messages import Accept, Accepted, Chosen
from tidings.protocols.multipaxos.values import Add, Ballot, Command, Promote, Remove
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings
from tidings.wire import codec
from tidings.wire.replication import REPLICA_PEER_NAME, encode_message

ADDRESSES = tuple(member.address for member in FOUNDERS)


def values_of(node: Node) -> list[bytes]:
    """What a node's own copy of the topic holds, read from its own journal."""
    machine = node.engine.broker.machine
    topic = machine.topics.get("news")
    if topic is None:
        return []
    read = node.engine.journal.read
    return [
        value
        for address, size in zip(topic.addresses, topic.sizes, strict=True)
        for value in codec.decode_columns(read(address, size)).values
    ]


def store(group: Members, *values: bytes, client: str = "ann", sequence: int = 1) -> None:
    leader = group.leader()
    epoch = group.hello(leader, client)
    answer = group.ask(leader, *put(client, epoch, sequence, *values), peer=client)
    assert isinstance(answer, messages.PutDone), answer


# Who serves.


def test_nobody_serves_before_somebody_leads() -> None:
    group = Members()
    for node in group.nodes.values():
        answer = group.ask(node, messages.AskTopics(7))
        assert answer == messages.NotLeader(7, "", ADDRESSES)


def test_one_serves_and_the_others_say_who() -> None:
    group = Members()
    leader = group.leader()
    assert group.serving() == [leader.identity.number]
    for node in group.followers():
        assert group.ask(node, messages.AskTopics(7)) == messages.NotLeader(7, leader.address, ADDRESSES)
    assert isinstance(group.ask(leader, messages.AskTopics(7)), messages.Topics)


def test_a_welcome_names_all_members() -> None:
    group = Members()
    welcome = group.ask(group.leader(), messages.Hello(1, messages.VERSION, "ann", b"token"))
    assert welcome.members == ADDRESSES


def test_a_new_leader_serves_only_when_it_has_applied_what_came_before() -> None:
    group = Members()
    store(group, b"one")
    old, others = group.leader(), group.followers()
    epoch = group.hello(old, "ann")
    group.lost = (Accepted,)
    group.ask(old, *put("ann", epoch, 2, b"two"), peer="ann")  # All have it, and nobody knows that.
    group.cut = {old.identity.number}
    group.wait(lambda: any(node.engine.log.replica.replica.leads for node in others), "another leads")
    assert not any(node.engine.log.serving for node in others), "it may lead, and does not know yet what was chosen"
    group.lost = ()
    assert values_of(group.leader()) == [b"one", b"two"]


# Through the leader.


def test_what_is_stored_is_on_every_node_at_an_address_of_its_own() -> None:
    group = Members()
    store(group, b"one", b"two")
    group.pass_ms(200)
    assert [values_of(node) for node in group.nodes.values()] == [[b"one", b"two"]] * 3


def test_subscribers_get_what_is_stored() -> None:
    group = Members()
    leader = group.leader()
    epoch = group.hello(leader, "bob")
    answer = group.ask(leader, messages.Subscribe(3, "bob", epoch, ("news",)), peer="bob")
    assert isinstance(answer, messages.SubscribeDone), answer
    group.ask(leader, messages.Flow(0, "bob", epoch, ("news",), 1, (), 100, 10_000), peer="bob")
    store(group, b"one")
    delivered = [
        batches for peer, each, batches in leader.heard if isinstance(each, messages.Delivery) and peer == "bob"
    ]
    assert [columns.values for batches in delivered for columns in batches] == [[b"one"]]


def test_several_requests_are_agreed_on_in_one_value() -> None:
    group = Members()
    leader = group.leader()
    epoch = group.hello(leader, "ann")
    applied = leader.engine.log.replica.applied
    for sequence in range(1, 21):
        group.say(leader, *put("ann", epoch, sequence, b"%d" % sequence, request=sequence))
    group.run_until_quiet()
    assert leader.engine.log.replica.applied == applied + 1
    assert sum(isinstance(each, messages.PutDone) for _, each, _ in leader.heard) == 20


def test_nothing_is_acknowledged_without_a_majority() -> None:
    group = Members()
    leader = group.leader()
    epoch = group.hello(leader, "ann")
    group.cut = {node.identity.number for node in group.followers()}
    assert group.ask(leader, *put("ann", epoch, 1, b"one"), peer="ann") is None


def test_nothing_is_acknowledged_before_it_is_on_the_leaders_own_disk() -> None:
    group = Members()
    leader = group.leader()
    epoch = group.hello(leader, "ann")
    leader.disk_is_slow = True
    assert group.ask(leader, *put("ann", epoch, 1, b"one"), peer="ann") is None
    leader.disk_is_slow = False
    group.run_until_quiet()
    assert any(isinstance(each, messages.PutDone) for _, each, _ in leader.heard)


def test_all_that_is_staged_is_counted_down_again() -> None:
    group = Members()
    store(group, b"one")
    assert [node.engine.staged_bytes for node in group.nodes.values()] == [0, 0, 0]


# When the leader changes.


def test_when_the_leader_is_cut_off_another_serves_what_it_stored() -> None:
    group = Members()
    store(group, b"one")
    old, new = group.change_leader()
    assert new is not old
    epoch = group.hello(new, "ann")
    assert isinstance(group.ask(new, *put("ann", epoch, 2, b"two"), peer="ann"), messages.PutDone)
    assert values_of(new) == [b"one", b"two"]
    group.wait(lambda: not old.engine.log.serving, "the old leader steps down")


def test_an_unanswered_put_is_answered_elsewhere_and_stored_once_when_it_is_sent_again() -> None:
    group = Members()
    store(group, b"one")
    old = group.leader()
    epoch = group.hello(old, "ann")
    group.cut = {old.identity.number}
    request = put("ann", epoch, 2, b"two", request=9)
    assert group.ask(old, *request, peer="ann") is None
    group.wait(lambda: not old.engine.log.serving, "the old leader steps down")
    told = [each for peer, each, _ in old.heard if peer == "ann"]
    assert told == [messages.NotLeader(9, "", ADDRESSES), messages.NotLeader(0, "", ADDRESSES)]
    assert old.engine.staged_bytes == 0
    new = group.leader()
    for _ in range(2):
        assert isinstance(group.ask(new, *request, peer="ann"), messages.PutDone)
    group.cut = set()
    group.pass_ms(2_000)
    assert [values_of(node) for node in group.nodes.values()] == [[b"one", b"two"]] * 3


def test_a_put_that_others_have_accepted_is_stored_once_though_it_is_sent_again() -> None:
    """The next leader finds it in what was accepted, and gets it from the client as well."""
    group = Members()
    store(group, b"one")
    old = group.leader()
    epoch = group.hello(old, "ann")
    request = put("ann", epoch, 2, b"two", request=9)
    followers = group.followers()
    for node in followers:
        node.disk_is_slow = True
    group.ask(old, *request, peer="ann")  # They have it, and have not said so.
    group.cut = {old.identity.number}
    for node in followers:
        node.disk_is_slow = False
    new = group.leader()
    assert values_of(new) == [b"one", b"two"]
    assert isinstance(group.ask(new, *request, peer="ann"), messages.PutDone)
    assert values_of(new) == [b"one", b"two"]


def test_what_is_decided_when_the_leader_steps_down_is_counted_down_too() -> None:
    """Its followers were faster than its own disk, and then it lost its place."""
    group = Members()
    old = group.leader()
    epoch = group.hello(old, "ann")
    old.disk_is_slow = True
    group.ask(old, *put("ann", epoch, 1, b"one", request=9), peer="ann")
    assert old.engine.log.replica.replica.log.decided > old.engine.log.replica.applied
    group.cut = {old.identity.number}
    group.wait(lambda: not old.engine.log.serving, "the old leader steps down")
    old.disk_is_slow = False
    group.run_until_quiet()
    assert values_of(old) == [b"one"]
    assert old.engine.staged_bytes == 0
    assert messages.NotLeader(9, "", ADDRESSES) in [each for _, each, _ in old.heard]


def test_the_one_who_asked_something_is_told_unasked_that_another_leads() -> None:
    group = Members()
    old = group.leader()
    for name in ("ann", "bob"):
        group.hello(old, name)
    old.heard.clear()
    group.cut = {old.identity.number}
    group.wait(lambda: not old.engine.log.serving, "the old leader steps down")
    assert old.heard == [(name, messages.NotLeader(0, "", ADDRESSES), []) for name in ("ann", "bob")]


def test_a_node_that_comes_back_has_what_it_had() -> None:
    group = Members(journal=JournalSettings(segment_records_max=20))
    for number in range(1, 30):
        store(group, b"%d" % number, sequence=number)
    group.pass_ms(200)
    for node in group.nodes.values():
        node.restart(group.now_ms)
    store(group, b"30", sequence=30)
    group.pass_ms(200)
    expected = [b"%d" % number for number in range(1, 31)]
    assert [values_of(node) for node in group.nodes.values()] == [expected] * 3


def test_one_that_was_away_for_long_gets_the_values_it_missed() -> None:
    group = Members()
    away = group.followers()[0]
    group.cut = {away.identity.number}
    for number in range(1, 100):
        store(group, b"%d" % number, sequence=number)
    group.cut = set()
    group.carried.clear()
    group.pass_ms(1_000)
    assert values_of(away) == [b"%d" % number for number in range(1, 100)]
    assert any(isinstance(message, Chosen) for _, _, message in group.carried)


def test_an_ack_that_is_being_agreed_on_when_the_broker_begins_again_is_sent_again() -> None:
    """C9, P8: what is owned has changed, and the broker that knew the work in flight is gone."""
    group = Members()
    leader = group.leader()
    store(group, b"one")
    epoch = group.hello(leader, "bob")
    group.ask(leader, messages.Join(3, "bob", epoch, "workers", "news"), peer="bob")
    leader.heard.clear()
    group.say(leader, messages.Work(0, "bob", epoch, "workers", "news", 1, 10, (), True), peer="bob")
    group.run_until_quiet()
    (batch,) = [each for _, each, _ in leader.heard if isinstance(each, messages.GroupBatch)]
    group.cut = {leader.identity.number}
    run_until_quiet = messages.GroupAck(7, "bob", epoch, "workers", "news", 1, (messages.BatchRanges(batch.batch),))
    group.say(leader, run_until_quiet, peer="bob")
    group.run_until_quiet()
    leader.engine.log.start_over()
    assert leader.engine.log.serving
    group.cut = set()
    group.pass_ms(200)
    answers = [each for _, each, _ in leader.heard if getattr(each, "request", None) == 7]
    assert [type(each) for each in answers] == [messages.NotLeader]
    (workers,) = [each for each in leader.engine.broker.machine.groups.values() if each.name == "workers"]
    assert workers.progress.low == 1, "it counts all the same"


# Questions.


def test_a_question_waits_until_a_majority_has_confirmed_that_this_node_leads() -> None:
    group = Members()
    leader = group.leader()
    group.cut = {leader.identity.number}
    assert group.ask(leader, messages.AskTopics(7)) is None
    group.cut = set()
    group.pass_ms(200)
    assert any(isinstance(each, messages.Topics) for _, each, _ in leader.heard)


def test_a_deposed_leader_answers_no_question() -> None:
    group = Members()
    store(group, b"one")
    old, _ = group.change_leader()
    assert old.engine.log.serving, "it does not know yet"
    assert group.ask(old, messages.AskTopics(7)) is None
    group.cut = set()
    group.wait(lambda: not old.engine.log.serving, "it hears of the other")
    group.run_until_quiet()
    answers = [each for _, each, _ in old.heard if each.request == 7]
    assert [type(each) for each in answers] == [messages.NotLeader]


def test_a_refusal_waits_for_the_same_word() -> None:
    """Anyone who was deposed must not say that something is not there."""
    group = Members()
    old = group.leader()
    epoch = group.hello(old, "bob")
    group.change_leader()
    assert group.ask(old, messages.Get(7, "bob", epoch, "news"), peer="bob") is None


def test_every_member_says_who_belongs_to_the_group() -> None:
    group = Members()
    leader = group.leader()
    group.pass_ms(200)
    for node in group.nodes.values():
        answer = group.ask(node, operators.AskMembers(7))
        assert (answer.request, answer.group, answer.number) == (7, GROUP.hex(), node.identity.number)
        assert answer.members == tuple(
            operators.MemberInfo(member.number, member.address, "voter", member.number == leader.identity.number)
            for member in FOUNDERS
        )


# Between members.


def commands(group: Members) -> int:
    return sum(
        isinstance(value, Command)
        for _, _, message in group.carried
        if isinstance(message, Accept)
        for value in message.values
    )


def place_of(node: Node) -> int:
    return int(node.engine.broker.machine.topics["news"].addresses[0])


def test_copying_forward_is_each_nodes_own_affair() -> None:
    group = Members(broker=BrokerSettings(retain_bytes=10**9), journal=JournalSettings(segment_records_max=20))
    store(group, b"kept")
    leader = group.leader()
    for number in range(60):
        group.hello(leader, "ann", b"%d" % number)
    group.pass_ms(300)
    said, applied = commands(group), leader.engine.log.replica.applied
    places = {number: place_of(node) for number, node in group.nodes.items()}
    group.wait(
        lambda: all(place_of(node) > places[number] for number, node in group.nodes.items()), "all have copied it"
    )
    group.pass_ms(300)
    assert (commands(group), leader.engine.log.replica.applied) == (said, applied)
    for node in group.nodes.values():
        node.restart(group.now_ms)
        assert place_of(node) > places[node.identity.number]
        assert values_of(node) == [b"kept"]


def test_what_is_old_goes_on_every_node_alike() -> None:
    """By its own time, also while it lies where everything is written; the last message stays."""
    group = Members(broker=BrokerSettings(retain_age_ms=2_000))
    store(group, b"old")
    store(group, b"last", sequence=2)
    group.wait(lambda: all(values_of(node) == [b"last"] for node in group.nodes.values()), "all have forgotten it")
    for node in group.nodes.values():
        node.restart(group.now_ms)
    group.wait(lambda: all(values_of(node) == [b"last"] for node in group.nodes.values()), "and stay so")


@pytest.mark.parametrize(
    ("group_name", "sender", "receiver", "user"),
    [
        (b"another group", 2, 1, None),
        (GROUP, 2, 3, None),
        (GROUP, 0, 1, None),
        (GROUP, 1, 1, None),
        (GROUP, 2, 1, "ann"),
    ],
)
def test_what_is_not_said_to_it_by_another_member_is_not_heard(
    group_name: bytes, sender: int, receiver: int, user: str | None
) -> None:
    group = Members()
    engine = group.nodes[1].engine
    heartbeat = Accept(Ballot(9, 2), 1, (), 1, 0)
    engine.receive(group.now_ms, b"replica", encode_message(heartbeat, group_name, sender, receiver), user)
    assert engine.log.replica.replica.leader is None
    engine.receive(group.now_ms, b"replica", encode_message(heartbeat, GROUP, 2, 1), REPLICA_PEER_NAME)
    assert engine.log.replica.replica.leader == 2


@pytest.mark.parametrize("message", [Known(()), Found(GROUP, 2, ())])
def test_what_newcomers_are_told_means_nothing_to_a_member(message: Any) -> None:
    group = Members()
    group.run_until_quiet()
    engine = group.nodes[1].engine
    engine.receive(1_000, b"replica", encode_message(message, GROUP, 2, 1))
    assert engine.outgoing == []


def test_other_bytes_behind_the_mark_are_not_answered() -> None:
    group = Members()
    group.run_until_quiet()
    engine = group.nodes[1].engine
    engine.receive(1_000, b"replica", [encode_message(Known(()))[0], b"\xff"])
    assert engine.outgoing == []


# Members come and go.


def meet(group: Members, number: int, disk: bytes) -> Meet:
    message = Meet(address_of(number), disk, ())
    for node in group.nodes.values():
        if node.identity.number not in group.cut:
            node.engine.receive(group.now_ms, b"replica", encode_message(message))
    group.run_until_quiet()
    return message


def join(group: Members, number: int, at: int, disk: bytes, contacts: tuple[Member, ...]) -> Node:
    return group.start(Identity(GROUP, number, disk, (), contacts), address_of(at))


def test_a_stranger_is_told_where_the_members_are() -> None:
    group = Members()
    group.leader()
    meet(group, 4, b"disk 4")
    assert group.to_strangers == [(address_of(4), Known(ADDRESSES))] * 3


def test_a_founder_that_missed_it_is_told_again_who_it_is() -> None:
    group = Members()
    group.leader()
    gone = group.nodes.pop(2)
    group.pass_ms(2_000)
    group.to_strangers.clear()
    meet(group, 2, gone.identity.disk)
    assert group.to_strangers == [(address_of(2), Found(GROUP, 2, FOUNDERS, FOUNDERS))] * 2


def add(group: Members, at: int, number: int) -> None:
    """A node asks to join, and an operator wants it in."""
    found = invite(group, at, number)
    join(group, number, at, disk_of(number), found.members)


def invite(group: Members, at: int, number: int) -> Found:
    """The same, up to the word who it is."""
    meet(group, at, disk_of(number))
    group.say(group.leader(), operators.AddMember(7, address_of(at)), peer="operator")
    return wait_for_word(group, at, number)


def disk_of(number: int) -> bytes:
    return f"disk {number}".encode()


def wait_for_word(group: Members, at: int, number: int) -> Found:
    """A node with a new disk asks until it is told who it is."""
    group.to_strangers.clear()
    group.wait(lambda: told_who_it_is(group, at, disk_of(number)), "it is told who it is")
    found = next(message for _, message in group.to_strangers if isinstance(message, Found))
    assert (found.number, found.founders) == (number, ())
    return found


def told_who_it_is(group: Members, at: int, disk: bytes) -> bool:
    meet(group, at, disk)
    return any(isinstance(message, Found) for _, message in group.to_strangers)


def test_a_node_is_added_and_votes() -> None:
    group = Members()
    store(group, b"one")
    leader = group.leader()
    leader.heard.clear()
    add(group, 4, 4)
    group.wait(lambda: operator_heard(leader), "the operator is answered")
    (answer,) = operator_heard(leader)
    assert [(each.number, each.role) for each in answer.members] == [(number, "voter") for number in (1, 2, 3, 4)]
    group.pass_ms(300)
    assert values_of(group.nodes[4]) == [b"one"]
    welcome = group.ask(leader, messages.Hello(1, messages.VERSION, "ann", b"token"))
    assert welcome.members == (*ADDRESSES, address_of(4))


def operator_heard(node: Node) -> list[Any]:
    return [each for peer, each, _ in node.heard if peer == "operator"]


def test_nobody_is_added_who_does_not_ask_to_join() -> None:
    group = Members()
    answer = group.ask(group.leader(), operators.AddMember(7, address_of(4)))
    assert isinstance(answer, messages.Failed)
    assert answer.text == (
        "Nobody at tcp://127.0.0.1:7004 asks to join: start it with `tidings serve --data DIR --bind "
        f"tcp://127.0.0.1:7004 --into {','.join(ADDRESSES)}`, then add it."
    )


def test_a_stranger_that_has_fallen_silent_no_longer_asks_to_join() -> None:
    group = Members()
    leader = group.leader()
    meet(group, 4, b"disk 4")
    group.pass_ms(CANDIDATE_SILENCE_MS_MAX + 500)
    assert isinstance(group.ask(leader, operators.AddMember(7, address_of(4))), messages.Failed)


def test_to_add_a_member_again_is_answered_at_once() -> None:
    group = Members()
    leader = group.leader()
    group.pass_ms(300)
    answer = group.ask(leader, operators.AddMember(7, ADDRESSES[1]))
    assert isinstance(answer, operators.Members)


@pytest.mark.parametrize("by_address", [False, True])
def test_a_member_is_removed(by_address: bool) -> None:
    group = Members()
    leader = group.leader()
    victim = group.followers()[0]
    name = victim.address if by_address else str(victim.identity.number)
    group.say(leader, operators.RemoveMember(7, name), peer="operator")
    group.wait(lambda: operator_heard(leader), "the operator is answered")
    (answer,) = operator_heard(leader)
    assert victim.identity.number not in [each.number for each in answer.members]
    assert isinstance(answer, operators.Members)


def test_a_leader_that_is_removed_says_so_and_another_serves() -> None:
    group = Members()
    leader = group.leader()
    group.say(leader, operators.RemoveMember(7, str(leader.identity.number)), peer="operator")
    group.wait(lambda: operator_heard(leader), "the operator is answered")
    assert isinstance(operator_heard(leader)[0], messages.NotLeader)
    group.wait(lambda: set(group.serving()) - {leader.identity.number}, "another serves")
    assert not leader.engine.log.serving


def test_who_is_no_member_cannot_be_removed() -> None:
    group = Members()
    answer = group.ask(group.leader(), operators.RemoveMember(7, "9"))
    assert isinstance(answer, messages.Failed)
    assert answer.text == "The group has no member 9: `tidings cluster` lists them."


def test_the_last_voter_cannot_be_removed() -> None:
    group = Members(FOUNDERS[:1])
    answer = group.ask(group.leader(), operators.RemoveMember(7, "1"))
    assert isinstance(answer, messages.Failed)
    assert answer.text == "The last voter cannot be removed: stop it instead."


def test_followers_send_operators_to_the_leader() -> None:
    group = Members()
    leader = group.leader()
    for request in (operators.AddMember(7, address_of(4)), operators.RemoveMember(7, "1")):
        answer = group.ask(group.followers()[0], request)
        assert answer == messages.NotLeader(7, leader.address, ADDRESSES)


def test_an_operator_is_sent_elsewhere_when_the_leader_changes() -> None:
    group = Members()
    leader = group.leader()
    group.cut = {leader.identity.number}
    victim = group.nodes[leader.identity.number % 3 + 1]
    group.say(leader, operators.RemoveMember(7, str(victim.identity.number)), peer="operator")
    group.wait(lambda: operator_heard(leader), "the operator is answered")
    assert operator_heard(leader) == [messages.NotLeader(7, "", ADDRESSES)]


def changes(group: Members) -> list[object]:
    """What was proposed to change the membership, each once, in the order of the slots."""
    found = {
        slot: value
        for _, _, message in group.carried
        if isinstance(message, Accept)
        for slot, value in enumerate(message.values, message.first_slot)
        if isinstance(value, Add | Promote | Remove)
    }
    return [found[slot] for slot in sorted(found)]


def test_a_member_that_has_lost_its_disk_is_replaced_by_its_new_one() -> None:
    group = Members()
    store(group, b"one")
    leader = group.leader()
    lost = group.followers()[0].identity.number
    replace_disk(group, lost, 4)
    newest = leader.engine.log.replica.history
    group.wait(lambda: 4 in newest.newest.membership.voters, "it votes")
    group.pass_ms(2 * CANDIDATE_SILENCE_MS_MAX)
    assert changes(group) == [Remove(lost, disk_of(4)), Add(4, address_of(lost), disk_of(4)), Promote(4)]
    assert group.leader() is leader
    group.pass_ms(300)
    assert values_of(group.nodes[4]) == [b"one"]


def test_a_late_word_of_another_disk_does_not_cost_a_member_its_place() -> None:
    """Its folder was emptied twice, say, and what it said in between comes last."""
    group = Members()
    store(group, b"one")
    group.leader()
    member = group.followers()[0].identity.number
    for _ in range(5):
        meet(group, member, b"a disk that is gone")
        group.pass_ms(400)
    assert changes(group) == []


def test_a_node_that_joined_by_its_files_is_the_same_broker() -> None:
    """It begins when the values are long gone, and so has to take over the files of another."""
    group = Members(journal=JournalSettings(segment_records_max=10), replica=ReplicaSettings(piece_bytes_max=500))
    for number in range(1, 40):
        store(group, b"%d" % number, sequence=number)
    add(group, 4, 4)
    group.wait(lambda: operator_heard(group.leader()), "the operator is answered")
    store(group, b"40", sequence=40)
    group.pass_ms(1_000)
    expected = [b"%d" % number for number in range(1, 41)]
    assert values_of(group.nodes[4]) == expected
    group.nodes[4].restart(group.now_ms)
    group.pass_ms(1_000)
    assert values_of(group.nodes[4]) == expected
    assert group.nodes[4].engine.log.members == group.leader().engine.log.members


def replace_disk(group: Members, at: int, number: int) -> None:
    """The member at an address loses its disk, and comes back with a new one, under a new number."""
    (lost,) = (old for old, node in group.nodes.items() if node.address == address_of(at))
    del group.nodes[lost]
    found = wait_for_word(group, at, number)
    join(group, number, at, disk_of(number), found.members)


def wait_for_voters(group: Members, *voters: int) -> None:
    """Until every member knows that these decide, and nobody else any more."""
    logs = [node.engine.log.replica.replica.log for node in group.nodes.values()]
    group.wait(
        lambda: all(sorted(each.voters) == list(voters) for log in logs for each in log.open_memberships()),
        f"{voters} vote",
    )


def let_lead(group: Members, number: int) -> None:
    """Leaders are cut off until it is this one's turn."""
    while group.leader().identity.number != number:
        group.change_leader()
        group.cut = set()
        group.pass_ms(300)


def test_every_disk_is_lost_and_the_files_are_older_than_who_leads() -> None:
    """P6: of those who are left, the files that the last one takes over know one, and that one does not lead."""
    group = Members()
    store(group, b"one")
    replace_disk(group, 1, 4)
    wait_for_voters(group, 2, 3, 4)
    let_lead(group, 4)
    replace_disk(group, 2, 5)
    wait_for_voters(group, 3, 4, 5)
    let_lead(group, 5)
    replace_disk(group, 3, 6)
    wait_for_voters(group, 4, 5, 6)
    assert all(values_of(node) == [b"one"] for node in group.nodes.values())


def test_anyone_who_hears_of_nobody_it_knows_asks_those_it_knew() -> None:
    """P6: while a new member was being started, another one has come and leads."""
    group = Members()
    store(group, b"one")
    found = invite(group, 4, 4)
    let_lead(group, 1)
    replace_disk(group, 3, 5)
    wait_for_voters(group, 1, 2, 5)
    let_lead(group, 5)
    join(group, 4, 4, disk_of(4), found.members)
    wait_for_voters(group, 1, 2, 4, 5)
    assert values_of(group.nodes[4]) == [b"one"]

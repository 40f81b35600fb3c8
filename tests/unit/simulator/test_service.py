"""The whole service in virtual time (P11): the account finds what goes wrong, and a run is a function of its plan."""

from __future__ import annotations

from random import Random

import pytest

from tidings_lab.simulated_service.load import ServiceAccount, draw_load
from tidings_lab.simulated_service.run import ServicePlan, ServiceWorld, run_service, states

PLAN = ServicePlan(groups=2, replicas=3, messages=4, failures=True, seed=3)


def deliver_all(account: ServiceAccount, order: Random) -> None:
    """Puts everything, and delivers it to everybody in one order."""
    texts = [
        account.on_put(client, number, 10.0 * number)
        for client, puts in enumerate(account.load.puts)
        for number in range(len(puts))
    ]
    for _ in texts:
        account.on_acknowledged(100.0)
    order.shuffle(texts)
    for client, topics in enumerate(account.load.subscriptions):
        for topic, text in texts:
            if topic in topics:
                account.on_delivered(client, topic, text, 130.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_account_of_a_load_on_which_nothing_went_wrong(seed: int) -> None:
    """P11: every message is owed to all subscribers of its topic, and nothing else is."""
    load = draw_load(clients=12, messages=9, seed=seed)
    account = ServiceAccount(load)
    assert not account.is_over
    deliver_all(account, Random(seed))
    readers = {topic: sum(topic in topics for topics in load.subscriptions) for topic in load.topics}
    assert account.owed == account.delivered == sum(readers[topic] for puts in load.puts for topic in puts)
    assert account.is_over
    assert (account.lost, account.doubled, account.strange, account.disordered) == (0, 0, 0, 0)
    assert 50.0 <= (account.percentile_ms(0.5) or 0.0) <= (account.percentile_ms(0.99) or 0.0) <= 130.0


def test_the_account_finds_what_is_lost_doubled_strange_and_out_of_order() -> None:
    """P11: each planted fault is counted, by itself."""
    account = ServiceAccount(draw_load(clients=12, messages=9, seed=1))
    deliver_all(account, Random(1))
    client, (topic, *_) = 0, account.load.subscriptions[0]
    other = next(each for each in account.load.topics if each not in account.load.subscriptions[0])
    text = next(
        f"{publisher} {number}"
        for publisher, puts in enumerate(account.load.puts)
        for number, put in enumerate(puts)
        if put == topic
    )
    account.on_delivered(client, topic, text, 140.0)
    assert (account.doubled, account.strange, account.lost) == (1, 0, 0)
    account.on_delivered(client, other, text, 140.0)
    account.on_delivered(client, topic, "never put", 140.0)
    assert (account.doubled, account.strange, account.lost, account.disordered) == (1, 2, 0, 0)
    lacking = ServiceAccount(account.load)
    lacking.on_put(
        *next((p, n) for p, puts in enumerate(account.load.puts) for n, put in enumerate(puts) if put == topic), 0.0
    )
    assert lacking.lost == lacking.owed > 0


def test_the_account_finds_subscribers_that_saw_another_order() -> None:
    account = ServiceAccount(draw_load(clients=40, messages=9, seed=1))
    topic = account.load.puts[0][0]
    readers = [client for client, topics in enumerate(account.load.subscriptions) if topic in topics]
    texts = [
        account.on_put(client, number, 0.0)[1]
        for client, puts in enumerate(account.load.puts)
        for number, put in enumerate(puts)
        if put == topic
    ]
    for client in readers:
        for text in texts if client != readers[-1] else reversed(texts):
            account.on_delivered(client, topic, text, 1.0)
    assert len(readers) > 1 and len(texts) > 1
    assert (account.disordered, account.lost, account.doubled) == (1, 0, 0)


def test_nothing_is_lost_when_one_node_of_every_group_is_killed() -> None:
    """P8, P11: the replicas agree again when the killed ones are back, and the same plan gives the same run."""
    result = run_service(PLAN)
    account = result.account
    assert (account.lost, account.doubled, account.strange, account.disordered) == (0, 0, 0, 0)
    assert account.is_over and account.owed > 0
    assert result.killed == 2
    assert [(group.replicas, group.agreeing) for group in result.groups] == [(3, 3), (3, 3)]
    assert sum(group.topics for group in result.groups) == len(account.load.topics), "every topic has one owner"
    load = {(sent.layer, sent.kind) for sent in result.sent if sent.phase == "load"}
    assert {("paxos", "Accept"), ("relay", "Relay"), ("relay", "Back")} <= load
    assert ("hand-over", "Piece") not in load, "nothing moves while the load is on"
    again = run_service(PLAN)
    assert (again.sent, again.groups, again.virtual_ms) == (result.sent, result.groups, result.virtual_ms)
    assert again.account.latencies_ms == account.latencies_ms


def test_a_replica_that_is_away_does_not_agree() -> None:
    """P11: what the agreement of replicas is told from."""
    world = ServiceWorld(ServicePlan(groups=1, replicas=3, messages=1))
    world.add_group()
    assert world.wait(lambda: world.is_whole() and states(world)[0].agreeing == 3, 10_000)
    world.groups[0][1].switch_off()
    assert states(world)[0].agreeing == 2

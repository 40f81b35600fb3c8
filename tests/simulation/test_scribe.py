"""Scribe over Chord (P5, P11, P12): every live subscriber gets every message once and in order, whatever fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.seeds import first_seed, keep
from tidings.errors import InvalidRequest
from tidings.protocols.scribe import NOW, Publish, Subscribe, Unsubscribe
from tidings_lab.experiments.chord_plans import large_plan, load_plans, reliability_plans, size_plans
from tidings_lab.simulated_overlay.chord.checkers import check_ideal, members
from tidings_lab.simulated_overlay.chord.multicast import (
    FOLDER,
    Multicast,
    MulticastPlan,
    MulticastRow,
    draw_multicast,
    load,
    read,
    run_multicast,
)
from tidings_lab.simulated_overlay.chord.tree_checkers import check_covered, reach, scribes


def succeeds(plan: MulticastPlan) -> MulticastRow:
    row = run_multicast(plan)
    assert row.rule is None, f"seed {row.seed}: {row.text}"
    assert row.delivered == row.owed > 0
    return row


def succeed(count: int) -> None:
    """Fresh small worlds."""
    for seed in range(first_seed(), first_seed() + count):
        try:
            succeeds(draw_multicast(seed))
        except AssertionError as error:
            keep("ring-multicast", seed, str(error))
            raise


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_scenario(name: str) -> None:
    succeeds(load(name))


def test_a_scenario_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="choose one of calm, mass-failure, restless"):
        load("unheard-of")
    path = tmp_path / "wrong.toml"
    path.write_text("nodez = 3")
    with pytest.raises(InvalidRequest, match="nodez"):
        read(path)


def test_small_worlds_with_failures_joins_and_loss() -> None:
    succeed(25)


@pytest.mark.soak
def test_many_small_worlds_with_failures_joins_and_loss() -> None:
    succeed(1_000)


@pytest.mark.parametrize("seed", [13, 18, 20, 25, 29])
def test_several_joiners_in_front_of_the_same_root(seed: int) -> None:
    """Seeds that once gave one offset to two messages: both joiners took themselves for the owner."""
    succeeds(MulticastPlan(seed=seed, nodes=16, topics=8, messages_per_node=12, publish_every_ms=20, joins=5))


def test_thirty_percent_fail_at_once() -> None:
    row = succeeds(large_plan(100))
    assert row.failed_nodes == 30


@pytest.mark.soak
@pytest.mark.parametrize("nodes", [1_000, 10_000])
def test_thirty_percent_of_many_fail_at_once(nodes: int) -> None:
    assert succeeds(large_plan(nodes)).failed_nodes == nodes * 3 // 10


@pytest.mark.parametrize(
    "plan", [*load_plans(), *size_plans()], ids=lambda plan: f"{plan.nodes}x{plan.messages_per_node}"
)
def test_the_documents_experiments_lose_nothing(plan: MulticastPlan) -> None:
    row = succeeds(plan)
    assert row.published == plan.nodes * plan.messages_per_node
    assert row.fetch_messages == 0, "without loss the tree alone brings everything"


@pytest.mark.parametrize("plan", reliability_plans(), ids=lambda plan: f"{plan.failed_share}-{plan.loss}")
def test_reliability_is_complete_with_and_without_failures(plan: MulticastPlan) -> None:
    assert succeeds(plan).reliability == 1.0


def test_only_the_roots_are_left_when_everybody_has_unsubscribed() -> None:
    run = Multicast(MulticastPlan(seed=5, nodes=40, topics=3))
    run.subscribe()
    assert run.depths and max(run.depths) >= 2, "there are forwarders"
    for name in run.names:
        for topic in run.topics:
            run.world.request(name, Unsubscribe(topic))
    run.world.run_for(10_000)
    parts = [tree for scribe in scribes(run.world).values() for tree in scribe.trees.trees.values()]
    assert sorted(tree.topic for tree in parts) == run.topics
    assert all(tree.is_root and not tree.children for tree in parts)


def test_a_tree_is_repaired_after_its_root_and_its_inner_nodes_died() -> None:
    run = Multicast(MulticastPlan(seed=6, nodes=40, topics=1))
    run.subscribe()
    [topic] = run.topics
    depths = reach(run.world, topic)
    inner = [name for name, scribe in scribes(run.world).items() if scribe.trees.trees[topic].children]
    assert 3 < len(inner) < 35
    for name in inner[:10]:
        run.world.crash(name)
    assert min(depths.values()) == 0
    run.world.run_for(20_000)
    check_covered(run.world, run.topics)


def test_who_subscribes_now_gets_what_comes_later_and_nothing_else() -> None:
    run = Multicast(MulticastPlan(seed=7, nodes=20, topics=1, subscribed_share=0.5))
    run.subscribe()
    [topic] = run.topics
    outsider = next(name for name in run.names if topic not in scribes(run.world)[name].readers)
    run.world.request(run.names[0], Publish(topic, b"before"))
    run.world.run_for(5_000)
    run.world.request(outsider, Subscribe(topic, start=NOW))
    run.world.run_for(5_000)
    run.world.request(run.names[0], Publish(topic, b"after"))
    run.world.run_for(5_000)
    assert run.deliveries.violation is None
    assert run.deliveries.delivered_to(outsider, topic) == {b"after"}


def test_a_short_cut_leaves_no_trace() -> None:
    """Shorter than what is taken for death (three questions without an answer): nobody is given up."""
    run = Multicast(MulticastPlan(seed=8, nodes=20, topics=2, messages_per_node=6, publish_every_ms=200))
    run.subscribe()
    run.world.after(300, lambda: run.world.cut({name: index % 2 for index, name in enumerate(run.names)}))
    run.world.after(1_300, run.world.heal)
    run.publish()
    run.wait_until_quiet()
    run.world.run_for(5_000)
    check_ideal(members(run.world))

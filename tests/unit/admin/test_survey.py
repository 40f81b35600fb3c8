"""What the nodes of a ring say, put together: what is wrong with a ring is found, and what only looks so is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tidings.admin.survey import look
from tidings.protocols.broker import operators
from tidings.protocols.ring.key_ranges import LAST, WHOLE

HALF = bytes([128]) + bytes(31)


class Told:
    """Nodes that answer what they were told to, as `Asking` would ask them."""

    def __init__(self, said: dict[str, operators.Ring | None]) -> None:
        self.said = said
        self.addresses = list(said)[:1]

    def ask_all(self, addresses: list[str], *_: object) -> dict[str, operators.Ring | None]:
        return {address: self.said.get(address) for address in addresses}


def group(name: str, ranges: tuple[tuple[bytes, bytes], ...], *, left: bool = False, members: int = 1) -> Any:
    nodes = tuple(f"{name}{number}" for number in range(1, members + 1))
    return operators.RingGroup(name, nodes, nodes[0], ranges, left)


def said(node: str, own: str, *groups: operators.RingGroup, topics: int = 0) -> operators.Ring:
    return operators.Ring(1, node, own, topics, groups)


LOW, HIGH = ((LAST, HALF),), ((HALF, LAST),)
A, B = group("a", LOW), group("b", HIGH)


def test_a_whole_ring_is_found_from_one_node() -> None:
    view = look(Told({"a1": said("a1", "a", A, B, topics=3), "b1": said("b1", "b", A, B, topics=4)}))  # type: ignore[arg-type]
    assert view.problems == ()
    assert [(each.group, each.leader, each.topics) for each in view.groups] == [("a", "a1", 3), ("b", "b1", 4)]
    assert [each.share for each in view.groups] == [pytest.approx(0.5)] * 2
    assert view.covered


def test_a_leader_knows_better_than_others_what_its_group_owns() -> None:
    old = group("a", ((WHOLE.start, WHOLE.end),))
    view = look(Told({"a1": said("a1", "a", A, B), "b1": said("b1", "b", old, B)}))  # type: ignore[arg-type]
    assert view.whole


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ({"a1": said("a1", "a", A, B), "b1": None}, "b1 does not answer"),
        ({"a1": said("a1", "a", A, B), "b1": None}, "nobody leads the group b"),
        ({"a1": said("a1", "a", A)}, "50.0% of the circle has no owner"),
        ({"a1": said("a1", "a", A, B), "b1": said("b1", "b", A, group("b", LOW))}, "own the same"),
        ({"a1": said("a1", "a", group("a", LOW, members=2), B), "b1": said("b1", "b", A, B)}, "a2 does not answer"),
    ],
)
def test_what_is_wrong_is_found(nodes: dict[str, operators.Ring | None], problem: str) -> None:
    view = look(Told(nodes))  # type: ignore[arg-type]
    assert any(problem in each for each in view.problems), view.problems
    assert not view.whole


def test_a_group_that_has_left_is_gone_also_for_those_who_have_not_heard() -> None:
    """Its nodes are stopped, a node still believes in it, and others own all that it had."""
    heir = group("a", ((WHOLE.start, WHOLE.end),))
    view = look(Told({"a1": said("a1", "a", heir, B), "b1": None}))  # type: ignore[arg-type]
    assert ([each.group for each in view.groups], view.problems) == (["a"], ())
    left = group("b", HIGH, left=True)
    view = look(Told({"a1": said("a1", "a", heir, left), "b1": said("b1", "b", left)}))  # type: ignore[arg-type]
    assert [each.group for each in view.groups] == ["a"]


def test_a_node_that_disseminates_otherwise_than_the_rest_is_named() -> None:
    """A ring is told how by each of its nodes, and nobody else would notice that they contradict each other."""
    three = (group("a", LOW, members=2), B)
    nodes = [said("a1", "a", *three), said("a2", "a", *three), said("b1", "b", *three)]
    kinds = ["gossip", "scribe", "gossip"]
    asked = {
        each.node: msgspec.structs.replace(each, dissemination=kind) for each, kind in zip(nodes, kinds, strict=True)
    }
    view = look(Told(asked))  # type: ignore[arg-type]
    assert view.problems == (
        "a2 disseminates by scribe, and others by gossip: start all with the same --dissemination",
    )
    older = look(Told(asked | {"a2": nodes[1]}))  # type: ignore[arg-type]
    assert (older.whole, older.dissemination) == (True, {"a1": "gossip", "b1": "gossip"})

"""The verdict on an overlay: what is not as it should be is found and named (P2, P4, P5)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tidings.peer.survey import problems, spread
from tidings.protocols.chord import identifier
from tidings.wire.door import NodeView, RingView, TreeView, ViewsView

NAMES = sorted((f"tcp://127.0.0.1:{port}" for port in range(7500, 7505)), key=identifier)
A, B, C, D, E = NAMES


def a_view(address: str, overlay: str) -> NodeView:
    return NodeView(address, 1, overlay, True, 0, {}, 0, 0, 0, 0, 0, {}, {}, {})


def a_ring(names: list[str] = NAMES, successors_max: int = 2) -> dict[str, NodeView]:
    count = len(names)
    length = min(successors_max, count - 1)
    found = {}
    for index, name in enumerate(names):
        successors = tuple(names[(index + step) % count] for step in range(1, length + 1))
        ring = RingView(names[index - 1], successors, successors_max, ())
        found[name] = replace(a_view(name, "chord"), ring=ring)
    return found


def an_overlay(links: Iterable[tuple[str, str]]) -> dict[str, NodeView]:
    active: dict[str, list[str]] = {name: [] for name in NAMES}
    for one, other in links:
        active[one].append(other)
    return {
        name: replace(a_view(name, "hyparview"), views=ViewsView(tuple(peers), ())) for name, peers in active.items()
    }


def both(*links: tuple[str, str]) -> list[tuple[str, str]]:
    return [*links, *((other, one) for one, other in links)]


def changed(nodes: dict[str, NodeView], name: str, **fields: object) -> dict[str, NodeView]:
    ring = nodes[name].ring
    assert ring is not None
    return nodes | {name: replace(nodes[name], ring=replace(ring, **fields))}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_whole_ring(count: int) -> None:
    assert list(problems(a_ring(NAMES[:count]))) == []


def test_nobody_is_no_overlay() -> None:
    assert list(problems({})) == ["no node answers"]
    assert "2 kinds" in next(problems(a_ring() | {A: a_view(A, "hyparview")}))


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        (changed(a_ring(), A, successors=(C, D)), f"the successors of {A}"),
        (changed(a_ring(), A, successors=(B,)), f"the successors of {A}"),
        (changed(a_ring(), A, successors=()), "nobody"),
        (changed(a_ring(), A, predecessor=D), f"the predecessor of {A} is {D} and should be {E}"),
        (changed(a_ring(), A, predecessor=None), f"the predecessor of {A} is None"),
        (a_ring() | {A: replace(a_ring()[A], joined=False)}, f"{A} has not joined"),
        ({**a_ring([A, B]), **a_ring([C, D, E])}, "the successors of"),  # Two rings.
    ],
)
def test_a_ring_that_is_not_whole(nodes: dict[str, NodeView], part: str) -> None:
    assert any(part in problem for problem in problems(nodes))


def a_tree(parts: dict[str, TreeView], subscribers: Iterable[str]) -> dict[str, NodeView]:
    nodes = a_ring()
    for name, part in parts.items():
        nodes[name] = replace(nodes[name], trees=(part,))
    for name in subscribers:
        nodes[name] = replace(nodes[name], subscriptions={"news": True})
    return nodes


WHOLE_TREE = {
    A: TreeView("news", True, None, (B, C)),
    B: TreeView("news", False, A, (D,)),
    C: TreeView("news", False, A, ()),
    D: TreeView("news", False, B, ()),
}


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (WHOLE_TREE, None),
        (WHOLE_TREE | {A: TreeView("news", False, B, (B, C))}, "the topic 'news' has 0 roots"),
        (WHOLE_TREE | {B: TreeView("news", True, None, (D,))}, "the topic 'news' has 2 roots"),
        (WHOLE_TREE | {B: TreeView("news", False, A, ())}, f"the tree of 'news' does not reach {D}"),
        (WHOLE_TREE | {D: TreeView("news", False, None, ())}, f"the tree of 'news' does not reach {D}"),
    ],
)
def test_trees(parts: dict[str, TreeView], problem: str | None) -> None:
    assert list(problems(a_tree(parts, (C, D)))) == ([] if problem is None else [problem])


def test_views_that_connect() -> None:
    assert list(problems(an_overlay(both((A, B), (B, C), (C, D), (D, E))))) == []


@pytest.mark.parametrize(
    ("links", "part"),
    [
        ([*both((A, B), (B, C), (C, D), (D, E)), (A, C)], f"{A} has {C} in its active view, but not the other way"),
        ([*both((A, B), (B, C), (C, D), (D, E)), (A, "tcp://127.0.0.1:1")], "which does not answer"),
        (both((A, B), (C, D), (D, E)), f"only 2 of 5 nodes are connected to {A}"),
    ],
)
def test_views_that_do_not(links: list[tuple[str, str]], part: str) -> None:
    assert any(part in problem for problem in problems(an_overlay(links)))


def test_a_walk_finds_everybody_and_names_who_is_silent() -> None:
    nodes = an_overlay(both((A, B), (B, C), (C, D), (D, E)))
    found, silent = spread(A, lambda names: [None if name == E else nodes[name] for name in names])
    assert (list(found), silent) == ([A, B, C, D], [E])
    assert spread(E, lambda names: [None for _ in names]) == ({}, [E])

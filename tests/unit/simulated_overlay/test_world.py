"""The simulated network of overlays: time, latency, loss, cuts, crashes and the failure detector it plays."""

from __future__ import annotations

import itertools
import random
import statistics
from typing import ClassVar

import pytest

from tidings.errors import InvalidRequest
from tidings.protocols.heartbeat import Unwatch, Watch
from tidings.protocols.stack import (
    Ask,
    CancelTimer,
    Effect,
    Message,
    Notification,
    Notify,
    PeerDown,
    Request,
    Send,
    SetTimer,
    Stack,
    Table,
    Timer,
)
from tidings_lab.simulated_overlay import scenario
from tidings_lab.simulated_overlay.agenda import Agenda
from tidings_lab.simulated_overlay.latency import Constant, LongTail, Uniform
from tidings_lab.simulated_overlay.world import WATCHING, NetworkModel, World


class Note(Message, frozen=True):
    text: str


class Do(Request, frozen=True):
    """Return these effects."""

    effects: tuple[Effect, ...]


class Seen(Notification, frozen=True):
    what: str


class Other(Notification, frozen=True):
    pass


class Alarm(Timer, frozen=True):
    name: str


class Puppet(Table):
    """Does what it is asked to, and tells what happens to it."""

    def start(self, now_ms: int) -> list[Effect]:
        return []

    def _on_note(self, peer: str, message: Note) -> list[Effect]:
        return [Notify(Seen(f"{message.text} from {peer}"))]

    def _on_do(self, request: Do) -> list[Effect]:
        return list(request.effects)

    def _on_alarm(self, timer: Alarm) -> list[Effect]:
        return [Notify(Seen(timer.name))]

    def _on_peer_down(self, peer: str) -> list[Effect]:
        return [Notify(Seen(f"{peer} is down"))]

    on: ClassVar = {Note: _on_note, Do: _on_do, Alarm: _on_alarm, PeerDown: _on_peer_down}


Seen3 = tuple[int, str, str]


def stage(names: str = "abc", **network: object) -> tuple[World, list[Seen3]]:
    """A world of puppets, 10 ms apart, and the list of what they see, with the time in milliseconds."""
    defaults: dict[str, object] = {"latency": Constant(10.0), "jitter_ms": 0.0, "silence_ms": 500}
    world = World(1, NetworkModel(**(defaults | network)))  # type: ignore[arg-type]
    seen: list[Seen3] = []
    world.observe(Seen, lambda now_us, node, news: seen.append((now_us // 1000, node.name, news.what)))
    for name in names:
        world.start(name, Stack([Puppet()], outside=WATCHING))
    return world, seen


def do(world: World, name: str, *effects: Effect) -> None:
    world.request(name, Do(effects))


def watch_each_other(world: World, one: str, other: str) -> None:
    do(world, one, Ask(Watch(other)))
    do(world, other, Ask(Watch(one)))


def test_a_message_arrives_after_its_latency() -> None:
    world, seen = stage()
    do(world, "a", Send(("b", "c"), Note("hello")))
    world.run_until(9)
    assert seen == []
    world.run_until(10)
    assert seen == [(10, "b", "hello from a"), (10, "c", "hello from a")]
    assert (world.delivered, world.sent, world.now_ms) == (2, {Note: 2}, 10)


def test_a_timer_fires_once_again_or_never() -> None:
    world, seen = stage()
    do(world, "a", SetTimer(Alarm("x"), 10), SetTimer(Alarm("y"), 20), SetTimer(Alarm("z"), 30))
    do(world, "a", SetTimer(Alarm("x"), 40), CancelTimer(Alarm("y")), CancelTimer(Alarm("never set")))
    world.run_until(100)
    assert seen == [(30, "a", "z"), (40, "a", "x")]


def test_what_is_sent_to_a_dead_node_breaks_the_connection() -> None:
    world, seen = stage()
    world.crash("b")
    do(world, "a", Send(("b", "unheard of"), Note("hello")))
    world.run_until(100)
    assert seen == [(10, "a", "unheard of is down"), (20, "a", "b is down")]
    assert world.live == ["a", "c"]


def test_a_node_that_restarts_gets_nothing_that_was_meant_for_its_former_life() -> None:
    world, seen = stage()
    do(world, "a", Send(("b",), Note("hello")))
    do(world, "b", SetTimer(Alarm("x"), 5))
    world.crash("b")
    world.start("b", Stack([Puppet()], outside=WATCHING))
    world.run_until(100)
    assert seen == [(20, "a", "b is down")]


def test_lost_messages_are_gone() -> None:
    world, seen = stage(loss=0.5)
    do(world, "a", *[Send(("b",), Note("hello"))] * 1_000)
    world.run_until(100)
    assert 400 < len(seen) < 600 and {name for _, name, _ in seen} == {"b"}


def test_a_cut_parts_the_nodes_until_it_heals() -> None:
    world, seen = stage()
    world.cut({"b": 1})
    do(world, "a", Send(("b", "c"), Note("hello")))
    world.run_until(100)
    assert seen == [(10, "c", "hello from a")]
    world.heal()
    do(world, "a", Send(("b",), Note("again")))
    world.run_until(200)
    assert seen[1:] == [(110, "b", "again from a")]


def test_those_who_watch_each_other_hear_of_a_crash_at_once() -> None:
    world, seen = stage()
    watch_each_other(world, "a", "b")
    world.run_until(5_000)
    world.crash("b")
    world.run_until(10_000)
    assert seen == [(5_010, "a", "b is down")]


def test_silence_is_noticed_like_a_missing_heartbeat() -> None:
    world, seen = stage()
    watch_each_other(world, "a", "b")
    do(world, "c", Ask(Watch("a")))  # a does not watch c, so c would hear no beats.
    world.run_until(1_000)
    assert seen == [(500, "c", "a is down")]
    do(world, "b", Ask(Unwatch("a")))
    world.run_until(2_000)
    assert seen[1:] == [(1_500, "a", "b is down")]


def test_a_short_cut_is_not_noticed_and_a_long_one_is() -> None:
    world, seen = stage()
    watch_each_other(world, "a", "b")
    world.run_until(1_000)
    world.cut({"b": 1})
    world.run_until(1_400)
    world.heal()
    world.run_until(3_000)
    assert seen == []
    world.cut({"b": 1})
    world.run_until(4_000)
    assert seen == [(3_500, "a", "b is down"), (3_500, "b", "a is down")]


def test_messages_can_be_sent_through_their_bytes() -> None:
    world, seen = stage(encode=True)
    do(world, "a", Send(("b",), Note("hello")))
    world.run_until(100)
    assert seen == [(10, "b", "hello from a")]


def test_an_observer_hears_only_of_what_it_asked_for() -> None:
    world, seen = stage()
    world.observe(Other, lambda *_: pytest.fail("nobody notified of that"))
    do(world, "b", Notify(Seen("news")))
    assert seen == [(0, "b", "news")]


def test_who_is_up_is_known_in_any_order_of_crashes_and_starts() -> None:
    rng = random.Random(8)
    world, _ = stage("abcdefgh")
    up = set("abcdefgh")
    for _ in range(200):
        name = rng.choice("abcdefgh")
        if name in up:
            world.crash(name)
            up.remove(name)
        else:
            world.start(name, Stack([Puppet()], outside=WATCHING))
            up.add(name)
        assert sorted(world.live) == sorted(up)
        assert set(world.draw_live(3)) <= up and len(world.draw_live(3)) == min(3, len(up))


def test_what_is_planned_happens_in_the_order_of_time_and_of_planning() -> None:
    rng = random.Random(5)
    agenda, taken = Agenda(), []
    times_us = iter([rng.randrange(20_000) for _ in range(2_000)])
    planned = itertools.count()

    def plan(earliest_us: int) -> None:
        for at_us in itertools.islice(times_us, 1):
            at_us = max(at_us, earliest_us)  # Nothing is planned for the past.
            agenda[at_us // 1000].append((at_us, next(planned), None, None, None))

    for _ in range(1_000):
        plan(0)
    for until_us in (7_000, 7_500, 20_000):
        while opened := agenda.open(until_us):
            waiting = agenda.entries()
            entry = opened.pop()
            if entry[0] > until_us:
                agenda.put_back(entry)
                assert agenda.entries() == waiting
                continue
            assert entry == waiting[0]
            taken.append(entry)
            plan(entry[0])
            plan(entry[0] + 10)
    assert len(taken) == 2_000
    assert taken == sorted(taken)


@pytest.mark.parametrize(
    ("model", "low_ms", "median_ms", "p99_ms"),
    [(Constant(30.0), 30, 30, 30), (Uniform(10.0, 50.0), 10, 30, 49.6), (LongTail(40.0, 400.0), 0, 40, 400)],
)
def test_models_of_latency(
    model: Constant | Uniform | LongTail, low_ms: float, median_ms: float, p99_ms: float
) -> None:
    table_us = model.table_us()
    assert min(table_us) >= low_ms * 1000
    assert statistics.median(table_us) == pytest.approx(median_ms * 1000, rel=0.01)
    assert statistics.quantiles(table_us, n=100)[-1] == pytest.approx(p99_ms * 1000, rel=0.01)


def test_every_scenario_file_can_be_read() -> None:
    files = sorted(path.stem for path in scenario.FOLDER.glob("*.toml"))
    assert len(files) >= 8
    for name in files:
        assert scenario.load(name).name == name


def test_a_scenario_that_is_not_there_or_is_wrong(tmp_path: object) -> None:
    with pytest.raises(InvalidRequest, match="choose one of"):
        scenario.load("unheard-of")
    wrong = tmp_path / "wrong.toml"  # type: ignore[operator]
    wrong.write_text('name = "wrong"\nnodez = 3\n')
    with pytest.raises(InvalidRequest, match="nodez"):
        scenario.read(wrong)

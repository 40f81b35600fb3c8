"""Wrong arguments of public calls end in a sentence, never in a TypeError from inside, and the bus goes on after it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings

ODD: Any = object()
HALF = "\ud800"
"""Half a character: text that UTF-8 cannot hold."""

Call = Callable[[Any], Any]


def first(call: Callable[[Any], Any]) -> Call:
    """The first step of a loop."""

    def begin(bus: Any) -> Any:
        loop = call(bus)
        return anext(loop) if hasattr(loop, "__anext__") else next(loop)

    return begin


ON_THE_BUS: dict[str, Call] = {
    "put to None": lambda bus: bus.put(None, "x"),
    "put to a number": lambda bus: bus.put(5, "x"),
    "put to bytes": lambda bus: bus.put(b"news", "x"),
    "put to nothing": lambda bus: bus.put("", "x"),
    "put to no topics": lambda bus: bus.put([], "x"),
    "put to odd topics": lambda bus: bus.put([ODD], "x"),
    "put to half a character": lambda bus: bus.put(HALF, "x"),
    "put None": lambda bus: bus.put("news", None),
    "put a number": lambda bus: bus.put("news", 5),
    "put half a character": lambda bus: bus.put("news", HALF),
    "key": lambda bus: bus.put("news", "x", key=5),
    "headers: a list": lambda bus: bus.put("news", "x", headers=[("a", "b")]),
    "headers: an empty list": lambda bus: bus.put("news", "x", headers=[]),
    "headers: a text": lambda bus: bus.put("news", "x", headers="a"),
    "header's name": lambda bus: bus.put("news", "x", headers={1: "a"}),
    "header's name without end": lambda bus: bus.put("news", "x", headers={HALF: "a"}),
    "header's value": lambda bus: bus.put("news", "x", headers={"a": 1}),
    "id": lambda bus: bus.put("news", "x", id=5),
    "id of half a character": lambda bus: bus.put("news", "x", id=HALF),
    "wait": lambda bus: bus.put("news", "x", wait="3"),
    "wait below 0": lambda bus: bus.put("news", "x", wait=-1),
    "put_soon": lambda bus: bus.put_soon(None, "x"),
    "put_soon of headers": lambda bus: bus.put_soon("news", "x", headers=[1]),
    "put_many of one": lambda bus: bus.put_many("news", "x"),
    "put_many of a number": lambda bus: bus.put_many("news", 5),
    "put_many of numbers": lambda bus: bus.put_many("news", [5]),
    "put_many to None": lambda bus: bus.put_many(None, ["x"]),
    "put_many with keys": lambda bus: bus.put_many("news", ["x"], keys=5),
    "put_many with one key for all": lambda bus: bus.put_many("news", ["x"], keys="x"),
    "put_many with headers": lambda bus: bus.put_many("news", ["x"], headers=[[1]]),
    "put_many with ids": lambda bus: bus.put_many("news", ["x"], ids=[5]),
    "put_many with wait": lambda bus: bus.put_many("news", ["x"], wait="3"),
    "put_many of numbers with wait": lambda bus: bus.put_many("news", 5, wait=3),
    "publisher": lambda bus: bus.publisher(5),
    "publisher's sequence": lambda bus: bus.publisher("p").put("news", "x", sequence="1"),
    "publisher's sequence soon": lambda bus: bus.publisher("p").put_soon("news", "x", sequence=0.5),
    "last_sequence": lambda bus: bus.publisher("p").last_sequence(None),
    "subscribe to None": lambda bus: bus.subscribe(None),
    "subscribe to a number": lambda bus: bus.subscribe(5),
    "start": lambda bus: bus.subscribe("news", start=1.5),
    "start of a word": lambda bus: bus.subscribe("news", start="soon"),
    "group": lambda bus: bus.subscribe("jobs", group=5),
    "group of several": lambda bus: bus.subscribe(["jobs", "news"], group="workers"),
    "lanes": lambda bus: bus.subscribe("jobs", group="workers", lanes="x"),
    "record": lambda bus: bus.subscribe("news", record=5),
    "unsubscribe": lambda bus: bus.unsubscribe(None),
    "leave": lambda bus: bus.unsubscribe("jobs", group=5),
    "get": lambda bus: bus.get(None),
    "get in time": lambda bus: bus.get("news", timeout="3"),
    "get in no time": lambda bus: bus.get("news", timeout=float("nan")),
    "run": lambda bus: bus.run(timeout="3"),
    "on": lambda bus: bus.on(5),
    "on a function": lambda bus: bus.on(print),
    "topic": lambda bus: bus.topic(5),
    "limit_topic": lambda bus: bus.limit_topic("news", "many"),
    "limit_topic below 0": lambda bus: bus.limit_topic("news", -1),
    "groups": lambda bus: bus.groups(5),
    "read": lambda bus: bus.read(5),
    "read from": lambda bus: bus.read("news", "x"),
    "read to": lambda bus: bus.read("news", 0, "x"),
    "read_stored": lambda bus: bus.read_stored("news", 1.5),
    "offset_at": lambda bus: bus.offset_at("news", "yesterday"),
    "offset_at of": lambda bus: bus.offset_at(None, 0),
    "stage": lambda bus: bus.stage(5, 1, "x"),
    "stage's batch": lambda bus: bus.stage("q", "1", "x"),
    "stage's name": lambda bus: bus.stage("q", 1, 5),
    "stage's sink": lambda bus: bus.stage("q", 1, "x", 5),
    "write text": lambda bus: bus.stage("q", 1, "x").write("news", ["text"]),
    "write a number": lambda bus: bus.stage("q", 1, "x").write("news", 5),
    "write beside": lambda bus: bus.stage("q", 1, "x").write("news", [b"x"], keys=5),
    "publish": lambda bus: bus.publish("q", 1, 5),
    "publish names": lambda bus: bus.publish("q", 1, ["x"]),
    "discard": lambda bus: bus.discard("abc"),
    "discard numbers": lambda bus: bus.discard([5]),
    "transaction": lambda bus: bus.transaction().put("news", 5),
    "transaction to": lambda bus: bus.transaction().put(None, "x"),
    "transaction's get": lambda bus: bus.transaction().get("news", timeout="3"),
    "transaction's ack": lambda bus: bus.transaction().ack("x"),
    "patience": lambda bus: bus.be_patient("3"),
}

ON_A_SUBSCRIPTION: dict[str, Call] = {
    "get": lambda subscription: subscription.get(timeout="3"),
    "messages": first(lambda subscription: subscription.messages(timeout="3")),
    "batches": first(lambda subscription: subscription.batches(timeout="3")),
}

ON_A_MEMBERSHIP: dict[str, Call] = {
    **ON_A_SUBSCRIPTION,
    "ack": lambda jobs: jobs.ack("x"),
    "nack": lambda jobs: jobs.nack(None),
    "extend": lambda jobs: jobs.extend(5),
    "delay": lambda jobs: jobs.nack(tidings.Message("jobs", 0, b"x"), delay="3"),
}

DOORS: dict[str, Callable[[Any], Any]] = {
    "address": lambda door: door(5),
    "no address": lambda door: door("news"),
    "client_id": lambda door: door(client_id=5),
    "timeout": lambda door: door(timeout="3"),
    "no timeout": lambda door: door(timeout=0),
    "retries": lambda door: door(retries="many"),
    "inbox": lambda door: door(inbox=5),
    "record": lambda door: door(record=5),
    "keys": lambda door: door(keys=5),
    "server_key": lambda door: door(keys="keys", server_key=5),
    "a setting": lambda door: door(beat_ms="often"),
    "no setting": lambda door: door(colour="blue"),
}

FOLDERS: dict[str, Callable[[Any, Path], Any]] = {
    "no path": lambda door, _: door(None),
    "an empty path": lambda door, _: door(""),
    "a number": lambda door, _: door(5),
    "an address": lambda door, _: door("tcp://127.0.0.1:7400"),
    "client_id": lambda door, folder: door(folder, 5),
    "a setting": lambda door, folder: door(folder, max_backlog="x"),
    "durability": lambda door, folder: door(folder, durability="none"),
    "no setting": lambda door, folder: door(folder, colour="blue"),
}


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tidings.Bus]:
    with tidings.open(tmp_path_factory.mktemp("data"), "alice", durability="os") as bus:
        bus.put("news", "one")
        bus.subscribe("news")
        yield bus


def check(caught: pytest.ExceptionInfo[tidings.LocalError]) -> None:
    """A sentence for people, raised on purpose."""
    text = str(caught.value)
    assert text.endswith((".", '"'))
    assert len(text) > 20


@pytest.mark.parametrize("call", ON_THE_BUS.values(), ids=ON_THE_BUS)
def test_on_the_bus(bus: tidings.Bus, call: Call) -> None:
    with pytest.raises(tidings.LocalError) as caught:
        call(bus)
    check(caught)
    assert bus.put("sport", "still here").topic == "sport"


@pytest.mark.parametrize("call", ON_A_SUBSCRIPTION.values(), ids=ON_A_SUBSCRIPTION)
def test_on_a_subscription(bus: tidings.Bus, call: Call) -> None:
    with bus.subscribe("weather") as subscription, pytest.raises(tidings.LocalError) as caught:
        call(subscription)
    check(caught)


@pytest.mark.parametrize("call", ON_A_MEMBERSHIP.values(), ids=ON_A_MEMBERSHIP)
def test_on_a_membership(bus: tidings.Bus, call: Call) -> None:
    with bus.subscribe("jobs", group="workers") as jobs, pytest.raises(tidings.LocalError) as caught:
        call(jobs)
    check(caught)


def test_a_handler_that_cannot_be_called(bus: tidings.Bus) -> None:
    with pytest.raises(tidings.InvalidRequest, match="handler"):
        bus.on("news")(ODD)


@pytest.mark.parametrize("call", DOORS.values(), ids=DOORS)
def test_at_the_doors(call: Callable[[Any], Any]) -> None:
    async def wait_for(opening: Any) -> None:
        await opening

    with pytest.raises(tidings.LocalError) as caught:
        call(tidings.connect)
    check(caught)
    with pytest.raises(tidings.LocalError) as awaited:
        asyncio.run(wait_for(call(tidings.aconnect)))
    assert str(awaited.value) == str(caught.value)


@pytest.mark.parametrize("call", FOLDERS.values(), ids=FOLDERS)
def test_at_a_folder(call: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    async def open_it() -> None:
        await call(tidings.aopen, tmp_path)

    with pytest.raises(tidings.LocalError) as caught:
        call(tidings.open, tmp_path)
    check(caught)
    with pytest.raises(tidings.LocalError) as awaited:
        asyncio.run(open_it())
    assert str(awaited.value) == str(caught.value)


def test_the_awaiting_bus_says_the_same(bus: tidings.Bus, tmp_path: Path) -> None:
    """All calls of the first table, in one event loop."""

    async def say(call: Call, on: Any) -> str:
        try:
            result = call(on)
            if hasattr(result, "__anext__"):
                await anext(result)
            elif inspect.isawaitable(result):
                await result
        except tidings.LocalError as error:
            return str(error)
        return "nothing"

    async def all_of_them() -> dict[str, str]:
        async with tidings.aopen(tmp_path, "alice", durability="os") as on:
            await on.put("news", "one")
            await on.subscribe("news")
            return {name: await say(call, on) for name, call in ON_THE_BUS.items()}

    expected = {}
    for name, call in ON_THE_BUS.items():
        with pytest.raises(tidings.LocalError) as caught:
            call(bus)
        expected[name] = str(caught.value)
    assert asyncio.run(all_of_them()) == expected

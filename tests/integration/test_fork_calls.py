"""Whatever a forked process calls first on its parent's bus, it is told whose the bus is, and the parent goes on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.programs import run_program
from tests.integration.test_forks import BEGIN, OF_THE_PARENT, stored, where
from tidings.client import Bus
from tidings.client.aio import AsyncBus

__all__ = ["where"]

QUIET = {"client_id", "lost", "on", "publisher", "stage", "stop", "transaction", "wake", "close"}
"""What asks the broker nothing, so that a child may call it: names, what is made to be used later, and the end."""
WITHIN = {"perform", "apply_change", "start", "be_patient"}
"""What the other calls are made of."""

FIRST = """
def first_call(call):
    "What it ends in for a child that has called nothing else."
    answers, answer = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: answer.send(said(call)))
    child.start()
    answer.close()
    try:
        return answers.recv()
    except EOFError:
        return "nothing"
    finally:
        child.join()
        assert child.exitcode == 0, child.exitcode
"""


def methods_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def check(answers: dict[str, str], kind: type) -> None:
    """Every public method is among the answers, and all that speak to the broker say the same."""
    assert methods_of(kind) - WITHIN - {name.partition(" ")[0] for name in answers} == set()
    told = {name: text for name, text in answers.items() if name not in QUIET}
    assert {name: text for name, text in told.items() if OF_THE_PARENT not in text} == {}
    assert {name: text for name, text in answers.items() if name in QUIET and "Error" in text} == {}


def test_every_method_of_the_bus_as_the_first_call(where: str, tmp_path: Path) -> None:
    ended = run_program(
        BEGIN
        + FIRST
        + """
bus = enter("parent")
news, jobs = bus.subscribe("news"), bus.subscribe("jobs", group="workers")
publisher, begun, stage = bus.publisher("import"), bus.transaction(), bus.stage("query", 1, "first")
begun.put("news", "begun")
bus.put_many("news", ["one", "two"])
bus.put("jobs", "job")
loop = iter(news)
assert next(loop).text == "one"
job = jobs.get(timeout=60.0)
calls = {
    "client_id": lambda: bus.client_id,
    "lost": lambda: bus.lost,
    "put": lambda: bus.put("news", "child"),
    "put_many": lambda: bus.put_many("news", ["child"]),
    "put_soon": lambda: bus.put_soon("news", "child"),
    "flush": bus.flush,
    "publisher": lambda: bus.publisher("another"),
    "publisher put": lambda: publisher.put("news", "child"),
    "publisher last_sequence": lambda: publisher.last_sequence("news"),
    "transaction": bus.transaction,
    "transaction commit": lambda: begun.__exit__(None, None, None),
    "subscribe": lambda: bus.subscribe("sport"),
    "subscribe group": lambda: bus.subscribe("sport", group="workers"),
    "subscribe loop": lambda: next(loop),
    "subscribe messages": lambda: next(news.messages(timeout=0)),
    "subscribe batches": lambda: next(news.batches(timeout=0)),
    "subscribe get": news.get,
    "subscribe unsubscribe": news.unsubscribe,
    "subscribe ack": lambda: jobs.ack(job),
    "subscribe nack": lambda: jobs.nack(job),
    "subscribe extend": lambda: jobs.extend(job),
    "subscribe job": lambda: jobs.get(),
    "unsubscribe": lambda: bus.unsubscribe("news"),
    "subscriptions": bus.subscriptions,
    "subscribers": bus.subscribers,
    "get": lambda: bus.get("news"),
    "get_all": bus.get_all,
    "on": lambda: bus.on("news"),
    "run": lambda: bus.run(timeout=0),
    "stop": bus.stop,
    "read": lambda: next(bus.read("news")),
    "read_stored": lambda: next(bus.read_stored("news")),
    "offset_at": lambda: bus.offset_at("news", 0.0),
    "stage": lambda: bus.stage("query", 2, "second"),
    "stage write": lambda: stage.write("news", [b"child"]),
    "publish": lambda: bus.publish("query", 1, [("first", 1)]),
    "discard": lambda: bus.discard(["first"]),
    "topics": bus.topics,
    "topic": lambda: bus.topic("news"),
    "limit_topic": lambda: bus.limit_topic("news", 5),
    "groups": bus.groups,
    "status": bus.status,
    "shutdown": bus.shutdown,
    "wake": bus.wake,
    "close": bus.close,
}
print(json.dumps({name: first_call(call) for name, call in calls.items()}))
assert next(loop).text == "two"
jobs.ack(job)
begun.__exit__(None, None, None)
assert bus.put("news", "after").offset == 3
bus.close()
""",
        where,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    check(json.loads(ended.stdout), Bus)
    assert stored(where, "news") == ["one", "two", "begun", "after"]
    assert stored(where, "jobs") == ["job"]


def test_every_method_of_the_awaited_bus_as_the_first_call(where: str, tmp_path: Path) -> None:
    """A child has an event loop of its own; the one of its parent does not run there."""
    ended = run_program(
        BEGIN
        + FIRST
        + """
async def main():
    bus = await (tidings.aconnect if "://" in where else tidings.aopen)(where, "parent", timeout=1.0)
    news, jobs = await bus.subscribe("news"), await bus.subscribe("jobs", group="workers")
    publisher, begun, stage = bus.publisher("import"), bus.transaction(), bus.stage("query", 1, "first")
    begun.put("news", "begun")
    await bus.put_many("news", ["one", "two"])
    await bus.put("jobs", "job")
    loop = aiter(news)
    assert (await anext(loop)).text == "one"
    job = await jobs.get(timeout=60.0)
    calls = {
        "put": lambda: bus.put("news", "child"),
        "put_many": lambda: bus.put_many("news", ["child"]),
        "put_soon": lambda: bus.put_soon("news", "child"),
        "flush": bus.flush,
        "publisher put_soon": lambda: publisher.put_soon("news", "child"),
        "publisher flush": publisher.flush,
        "publisher put": lambda: publisher.put("news", "child"),
        "publisher last_sequence": lambda: publisher.last_sequence("news"),
        "transaction commit": lambda: begun.__aexit__(None, None, None),
        "subscribe": lambda: bus.subscribe("sport"),
        "subscribe group": lambda: bus.subscribe("sport", group="workers"),
        "subscribe loop": lambda: anext(loop),
        "subscribe messages": lambda: anext(news.messages(timeout=0)),
        "subscribe batches": lambda: anext(news.batches(timeout=0)),
        "subscribe get": news.get,
        "subscribe unsubscribe": news.unsubscribe,
        "subscribe ack": lambda: jobs.ack(job),
        "subscribe nack": lambda: jobs.nack(job),
        "subscribe extend": lambda: jobs.extend(job),
        "subscribe job": jobs.get,
        "unsubscribe": lambda: bus.unsubscribe("news"),
        "subscriptions": bus.subscriptions,
        "subscribers": bus.subscribers,
        "get": lambda: bus.get("news"),
        "get_all": bus.get_all,
        "run": lambda: bus.run(timeout=0),
        "read": lambda: anext(bus.read("news")),
        "read_stored": lambda: anext(bus.read_stored("news")),
        "offset_at": lambda: bus.offset_at("news", 0.0),
        "stage write": lambda: stage.write("news", [b"child"]),
        "publish": lambda: bus.publish("query", 1, [("first", 1)]),
        "discard": lambda: bus.discard(["first"]),
        "topics": bus.topics,
        "topic": lambda: bus.topic("news"),
        "limit_topic": lambda: bus.limit_topic("news", 5),
        "groups": bus.groups,
        "status": bus.status,
        "shutdown": bus.shutdown,
        "close": bus.close,
    }
    plain = {
        "client_id": lambda: bus.client_id,
        "lost": lambda: bus.lost,
        "publisher": lambda: bus.publisher("another"),
        "transaction": bus.transaction,
        "on": lambda: bus.on("news"),
        "stop": bus.stop,
        "stage": lambda: bus.stage("query", 2, "second"),
        "wake": bus.wake,
    }

    async def wait_for(call):
        return await call()

    answers = {name: first_call(lambda call=call: asyncio.run(wait_for(call))) for name, call in calls.items()}
    answers |= {name: first_call(call) for name, call in plain.items()}
    print(json.dumps(answers))
    assert (await anext(loop)).text == "two"
    await jobs.ack(job)
    await begun.__aexit__(None, None, None)
    assert (await bus.put("news", "after")).offset == 3
    await bus.close()

asyncio.run(main())
""",
        where,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    check(json.loads(ended.stdout), AsyncBus)
    assert stored(where, "news") == ["one", "two", "begun", "after"]
    assert stored(where, "jobs") == ["job"]

"""Processes that were forked off with a bus open: told so at their first call, and never noticed by their parent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.programs import run_program

BEGIN = """
import asyncio, json, multiprocessing, os, signal, sys, threading
import tidings

where = sys.argv[1]
folder = sys.argv[2]

def enter(name, **more):
    return tidings.connect(where, name, timeout=1.0, **more) if "://" in where else tidings.open(where, name, **more)

def said(call):
    "What a call in the child ends in."
    try:
        return repr(call())
    except tidings.TidingsError as error:
        return f"{type(error).__name__}: {error}"
"""

OF_THE_PARENT = "belongs to the process that this one was forked from"


@pytest.fixture(params=["embedded", "served"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """What a program opens: a folder, or a broker's address."""
    if request.param == "embedded":
        yield str(tmp_path / "data")
        return
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        yield broker.address
    finally:
        broker.kill()


def stored(where: str, topic: str) -> list[str]:
    """Everything in a topic, as a later process finds it."""
    bus = tidings.connect(where) if "://" in where else tidings.open(where)
    with bus:
        return [value.decode() for batch in bus.read(topic) for value in batch.values]


def test_every_call_of_a_child_says_whose_the_bus_is(where: str, tmp_path: Path) -> None:
    """Nothing of it hangs, and nothing of it reaches the broker, whichever call it is."""
    ended = run_program(
        BEGIN
        + """
bus = enter("parent", inbox=folder + "/inbox", record=folder + "/record")
news, jobs = bus.subscribe("news"), bus.subscribe("jobs", group="workers")
publisher, begun, stage = bus.publisher("import"), bus.transaction(), bus.stage("query", 1, "first")
bus.put_many("news", ["one", "two"])
bus.put("jobs", "job")
soon = bus.put_soon("news", "soon")
loop = iter(news)
assert next(loop).text == "one"
job = jobs.get(timeout=5.0)
sys.stdout.flush()
if os.fork() == 0:
    calls = {
        "put": lambda: bus.put("news", "child"),
        "put_many": lambda: bus.put_many("news", ["child"]),
        "put_soon": lambda: bus.put_soon("news", "child"),
        "flush": bus.flush,
        "result": soon.result,
        "get": lambda: bus.get("news"),
        "get_all": bus.get_all,
        "loop": lambda: next(loop),
        "batches": lambda: next(news.batches(timeout=0)),
        "subscribe": lambda: bus.subscribe("sport"),
        "unsubscribe": news.unsubscribe,
        "ack": lambda: jobs.ack(job),
        "job": lambda: next(jobs.messages(timeout=0)),
        "publisher": lambda: publisher.put("news", "child"),
        "last_sequence": lambda: publisher.last_sequence("news"),
        "transaction": lambda: (begun.put("news", "child"), begun.__exit__(None, None, None)),
        "stage": lambda: stage.write("news", [b"child"]),
        "read": lambda: next(bus.read("news")),
        "run": bus.run,
        "topics": bus.topics,
    }
    print(json.dumps({name: said(call) for name, call in calls.items()}))
    publisher.close()
    jobs.close()
    bus.stop()
    bus.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
bus.flush()
assert next(loop).text == "two"
jobs.ack(job)
assert bus.put("news", "after").offset == 3
bus.close()
""",
        where,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert {name for name, text in answers.items() if OF_THE_PARENT not in text} == set()
    assert stored(where, "news") == ["one", "two", "soon", "after"]
    assert stored(where, "jobs") == ["job"]


def test_children_of_multiprocessing_cannot_put_what_nobody_stores(where: str, tmp_path: Path) -> None:
    """Receipts that two processes get for the same offset would be lost messages."""
    ended = run_program(
        BEGIN
        + """
def work(number):
    return [said(lambda: bus.put("news", f"child {number}")) for _ in range(20)]

bus = enter("parent")
bus.put("news", "before")
context = multiprocessing.get_context("fork")
with context.Pool(4) as pool:
    results = pool.map_async(work, range(4))
    own = [bus.put("news", f"parent {number}").offset for number in range(20)]
    answers = [text for texts in results.get() for text in texts]
assert own == list(range(1, 21)), own
bus.close()
print(json.dumps(answers))
""",
        where,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert len(answers) == 80
    assert all(OF_THE_PARENT in text for text in answers)
    assert stored(where, "news") == ["before", *(f"parent {number}" for number in range(20))]


def test_a_child_that_does_not_use_the_bus_ends_in_peace(where: str, tmp_path: Path) -> None:
    """It leaves `with` blocks by SystemExit, and its handlers of the exit run, but the parent's sends are its own."""
    ended = run_program(
        BEGIN
        + """
with enter("parent", inbox=folder + "/inbox", record=folder + "/record") as bus, bus.publisher("import") as publisher:
    news = bus.subscribe("news")
    bus.put_many("news", ["one", "two", "three"])
    pending = bus.put_soon("other", "soon")
    for message in news:
        with bus.transaction() as tx:
            tx.put("copies", message.text)
            if message.text == "two" and os.fork() == 0:
                sys.exit(7)
        if message.text == "three":
            break
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    assert publisher.put("other", "import").offset == 1 and pending.result().offset == 0
""",
        where,
        tmp_path,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stored(where, "copies") == ["one", "two", "three"]
    assert stored(where, "other") == ["soon", "import"]


def test_a_child_may_open_a_bus_of_its_own(where: str, tmp_path: Path) -> None:
    """With a broker that works; a folder that the parent has open is in use, by the parent."""
    ended = run_program(
        BEGIN
        + """
bus = enter("parent", inbox=folder + "/inbox")
bus.put("news", "parent")
if os.fork() == 0:
    print(said(lambda: enter("child").put("news", "child")))
    print(said(lambda: tidings.open(folder + "/another", "child").put("news", "child")))
    print(said(lambda: enter("parent", inbox=folder + "/inbox")))
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print(said(lambda: bus.put("news", "after").topic))
bus.close()
""",
        where,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    own, another, inbox, after = ended.stdout.splitlines()
    assert ("is in use by another" in own) if "://" not in where else ("offset=1" in own)
    assert "offset=0" in another
    assert "in use by another" in inbox
    assert after == "'news'"
    assert stored(where, "news") == ["parent", *(["child"] if "://" in where else []), "after"]


def test_what_the_parent_has_open_is_free_once_the_parent_is_gone(tmp_path: Path) -> None:
    """A child that lives longer keeps neither the folder nor the inbox from the next process."""
    ended = run_program(
        BEGIN
        + """
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    bus = enter("parent", inbox=folder + "/inbox")
    bus.put("news", "one")
    orphan = os.fork()
    if orphan == 0:
        signal.pause()
    os.write(write_end, str(orphan).encode())
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
with enter("parent", inbox=folder + "/inbox") as bus:
    print(bus.put("news", "two").offset)
os.kill(int(os.read(read_end, 100)), signal.SIGKILL)
""",
        tmp_path / "data",
        tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_a_fork_while_other_threads_are_in_the_middle_of_calls(where: str, tmp_path: Path) -> None:
    """The locks that they had are nobody's in the child, and it does not wait for them."""
    ended = run_program(
        BEGIN
        + """
bus = enter("parent")
stop = threading.Event()

def put():
    while not stop.is_set():
        bus.put("news", "parent")

threads = [threading.Thread(target=put) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        text = said(lambda: bus.put("news", "child"))
        if "://" not in where:
            text += said(lambda: enter("child"))
        bus.close()
        os._exit(0 if "was forked from" in text else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads:
    thread.join()
bus.close()
print(codes)
""",
        where,
        tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0, f"{[0] * 20}\n"), ended.stderr
    assert set(stored(where, "news")) == {"parent"}


def test_a_fork_in_an_event_loop(where: str, tmp_path: Path) -> None:
    """The awaited bus says the same, and the loop of the parent goes on."""
    ended = run_program(
        BEGIN
        + """
async def main():
    async with (tidings.aconnect if "://" in where else tidings.aopen)(where, "parent", timeout=1.0) as bus:
        news = await bus.subscribe("news")
        await bus.put_many("news", ["one", "two"])
        async for message in news:
            if message.text == "one":
                child = os.fork()
                if child == 0:
                    said = []
                    for call in (lambda: bus.put("news", "child"), news.get, anext(aiter(news))):
                        try:
                            await (call() if callable(call) else call)
                        except tidings.TidingsError as error:
                            said.append("was forked from" in str(error))
                    await bus.close()
                    os._exit(0 if said == [True, True, True] else 1)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            else:
                break
        print((await bus.put("news", "after")).offset)

asyncio.run(main())
""",
        where,
        tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n2\n"), ended.stderr
    assert stored(where, "news") == ["one", "two", "after"]

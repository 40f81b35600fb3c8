"""E2, E3, E4, E7, E8: the sixteen tests of the document's section 7, with its inputs and its outputs.

Storage server, broker with its web service, editors and subscribers are real processes; a subscriber's input and
output are pipes. All of it runs three times: on a storage server; beside a member of a replica group that does not
lead; and there again with the programs in another network namespace, as if on another machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

import tidings
from tests.integration.broker_process import StorageProcess
from tests.integration.replica_group import Node, ReplicaGroup
from tests.integration.socket_programs import (
    ENVIRONMENT,
    Gateway,
    Reach,
    SocketBroker,
    SocketMember,
    SubscriberProgram,
    free_port,
    network_namespace,
    run_editor,
    wait_until,
)

LONG_TOPIC = "ñ" * 128
LONG_TEXT = "one more ship ☂!" * 64
SEVERAL = 3


class Place(NamedTuple):
    """A gateway, the address of its bus, and what lies behind it."""

    gateway: Gateway
    address: str
    behind: StorageProcess | Node


@pytest.fixture(scope="module", params=["storage", "member", "namespace"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("section-seven")
    with contextlib.ExitStack() as stack:
        if request.param == "storage":
            storage = stack.enter_context(StorageProcess(folder / "data"))
            broker = stack.enter_context(SocketBroker(storage.address, "--http", "0"))
            yield Place(broker, broker.address, storage)
            return
        allow, reach = stack.enter_context(network_namespace()) if request.param == "namespace" else ("", Reach())
        group = stack.enter_context(ReplicaGroup(folder))
        follower = group.followers()[0]
        yield Place(SocketMember(follower, reach, allow), group.address, follower)


@pytest.fixture(scope="module")
def broker(place: Place) -> Gateway:
    return place.gateway


@pytest.fixture(scope="module")
def bus(place: Place) -> Iterator[tidings.Bus]:
    with tidings.connect(place.address, "watcher") as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return str(request.node.name).replace("[", " in ").rstrip("]")


@pytest.fixture(scope="module")
def running(broker: Gateway) -> Iterator[SubscriberProgram]:
    with SubscriberProgram(broker.port, broker.spelling, broker.reach) as program:
        yield program
        assert program.errors == []
        assert program.quit() == 0


def publish(broker: Gateway, topic: str, text: str) -> None:
    done = broker.reach.run_editor(broker.port, topic, text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def texts(storage: StorageProcess) -> dict[str, list[str]]:
    """The lines of each topic's file."""
    files = (storage.data / "topics").glob("*.txt")
    return {unquote(file.stem): file.read_text().splitlines() for file in files}


def topics(bus: tidings.Bus) -> list[str]:
    return [info.name for info in bus.topics()]


def test_01_subscribe_gets_the_last_message(broker: Gateway, running: SubscriberProgram, topic: str) -> None:
    """E2, E4, E6: and its numbers are written out."""
    publish(broker, topic, "an older one")
    publish(broker, topic, "3 ships and 41 boats")
    running.command(
        f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : three ships and forty-one boats"
    )
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE OK")


def test_02_unsubscribe(broker: Gateway, running: SubscriberProgram, topic: str) -> None:
    """After it nothing of the topic comes, while another topic goes on."""
    other = f"{topic}, the other"
    for name in (topic, other):
        publish(broker, name, "first")
        running.command(f"SUBSCRIBE {name}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {name} : first")
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE OK")
    running.lines.clear()
    publish(broker, topic, "nobody is there")
    publish(broker, other, "second")
    running.expect(f"c> MESSAGE FROM {other} : second")
    running.command(f"UNSUBSCRIBE {other}", "c> UNSUBSCRIBE OK")


def test_03_unsubscribe_without_a_subscription(broker: Gateway, running: SubscriberProgram, topic: str) -> None:
    publish(broker, topic, "text")
    running.command(f"UNSUBSCRIBE {topic}", "c> TOPIC NOT SUBSCRIBED")


def test_04_subscribe_to_a_missing_topic(running: SubscriberProgram, bus: tidings.Bus, topic: str) -> None:
    running.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE FAIL")
    assert topic not in topics(bus), "a subscribe makes no topic at this door"


def test_05_unsubscribe_from_a_missing_topic(running: SubscriberProgram, topic: str) -> None:
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE FAIL")


def test_06_a_removed_data_folder_is_made_again(tmp_path: Path, topic: str) -> None:
    """E5: by the storage server; a broker without one does the same."""
    data = tmp_path / "data"
    with StorageProcess(data) as storage, SocketBroker(storage.address) as broker:
        publish(broker, topic, "text")
        assert (broker.stop(), storage.stop()) == (0, 0)
        shutil.rmtree(data)
        storage.start()
        broker.start()
        assert data.is_dir()
        with SubscriberProgram(broker.port) as program:
            program.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE FAIL")
            publish(broker, topic, "again")
            program.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : again")
            assert program.quit() == 0
        wait_until(lambda: texts(storage) == {topic: ["again"]}, "the topic's file")
    with SocketBroker(tmp_path / "another") as broker:
        assert broker.stop() == 0
        shutil.rmtree(tmp_path / "another")
        broker.start()
        publish(broker, topic, "again")


def test_06_a_members_removed_folder_is_made_again(
    place: Place, running: SubscriberProgram, bus: tidings.Bus, topic: str
) -> None:
    """E5: the member gets from the others what it had, and its subscribers get what was published meanwhile."""
    if not isinstance(place.gateway, SocketMember):
        pytest.skip("test_06_a_removed_data_folder_is_made_again is about the storage server")
    publish(place.gateway, topic, "text")
    running.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : text")
    running.lines.clear()
    assert isinstance(place.behind, Node) and place.behind.stop() == 0
    bus.put(topic, "meanwhile")
    place.behind.lose_disk()
    place.gateway.start()
    assert place.behind.data.is_dir()
    publish(place.gateway, topic, "again")
    running.expect(f"c> MESSAGE FROM {topic} : meanwhile", f"c> MESSAGE FROM {topic} : again")
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE OK")


def test_07_a_long_topic_is_published(broker: Gateway, bus: tidings.Bus) -> None:
    """E3: 128 characters, whatever they weigh."""
    publish(broker, LONG_TOPIC, "text")
    assert LONG_TOPIC in topics(bus)


def test_08_a_long_text_is_published(broker: Gateway, bus: tidings.Bus, topic: str) -> None:
    """E3: 1,024 characters."""
    assert len(LONG_TEXT) == 1024
    publish(broker, topic, LONG_TEXT)
    [message] = bus.subscribe(topic, start="earliest").messages(timeout=0)
    assert message.text == LONG_TEXT


@pytest.mark.parametrize("length", [129, 500])
def test_09_a_topic_that_is_too_long(broker: Gateway, bus: tidings.Bus, length: int) -> None:
    """E3: a warning and no operation."""
    before = topics(bus)
    done = broker.reach.run_editor(broker.port, "t" * length, "text")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"this one has {length}" in done.stderr and "Nothing was sent" in done.stderr
    assert topics(bus) == before


def test_10_a_text_that_is_too_long(broker: Gateway, bus: tidings.Bus, topic: str) -> None:
    done = broker.reach.run_editor(broker.port, topic, "x" * 1025)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this one has 1,025" in done.stderr and "Nothing was sent" in done.stderr
    assert topic not in topics(bus)


def test_11_a_long_topic_is_subscribed(broker: Gateway, running: SubscriberProgram) -> None:
    publish(broker, LONG_TOPIC, "text")
    running.command(f"SUBSCRIBE {LONG_TOPIC}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {LONG_TOPIC} : text")
    running.command(f"UNSUBSCRIBE {LONG_TOPIC}", "c> UNSUBSCRIBE OK")


def test_12_a_long_text_is_delivered(broker: Gateway, running: SubscriberProgram, topic: str) -> None:
    publish(broker, topic, LONG_TEXT)
    running.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : {LONG_TEXT}")
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE OK")


def test_13_subscribing_to_a_topic_that_is_too_long(running: SubscriberProgram) -> None:
    """E3: a warning and no operation, for both commands."""
    for command in ("SUBSCRIBE", "UNSUBSCRIBE"):
        running.lines.clear()
        running.type(f"{command} {'t' * 129}")
        wait_until(lambda: bool(running.lines), "a warning")
        [line] = running.lines
        assert line.startswith("c> WARNING: ") and "this one has 129" in line and line.endswith("Nothing was done.")


def test_14_several_subscribers_at_once(broker: Gateway, topic: str) -> None:
    """E8: each gets every message."""
    publish(broker, topic, "first")
    programs = [SubscriberProgram(broker.port, broker.spelling, broker.reach) for _ in range(SEVERAL)]
    try:
        for program in programs:
            program.type(f"SUBSCRIBE {topic}")
        for program in programs:
            program.expect("c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : first")
            program.lines.clear()
        publish(broker, topic, "2 more")
        for program in programs:
            program.expect(f"c> MESSAGE FROM {topic} : two more")
        assert [program.quit() for program in programs] == [0] * SEVERAL
    finally:
        for program in programs:
            program.__exit__()


def test_15_several_editors_at_once(
    place: Place, broker: Gateway, running: SubscriberProgram, bus: tidings.Bus, topic: str
) -> None:
    """E5, E8: every message is delivered and kept; at a storage server every topic has its file with its messages."""
    publish(broker, topic, "first")
    running.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : first")
    running.lines.clear()
    with ThreadPoolExecutor(2 * SEVERAL) as pool:
        for number in range(SEVERAL):
            pool.submit(publish, broker, topic, f"from editor {'abc'[number]}")
            pool.submit(publish, broker, f"{topic} {number}", "text")
    wait_until(lambda: len(running.lines) == SEVERAL, "a message of each editor")
    assert sorted(running.lines) == [f"c> MESSAGE FROM {topic} : from editor {name}" for name in "abc"[:SEVERAL]]
    expected = {f"{topic} {number}": ["text"] for number in range(SEVERAL)}
    expected[topic] = ["first", *(line.partition(" : ")[2] for line in running.lines)]
    if isinstance(place.behind, StorageProcess):
        storage = place.behind
        wait_until(lambda: expected.items() <= texts(storage).items(), "the topics' files")
    for name, said in expected.items():
        assert [value.decode() for batch in bus.read(name) for value in batch.values] == said
    running.command(f"UNSUBSCRIBE {topic}", "c> UNSUBSCRIBE OK")


def test_16_without_a_broker() -> None:
    """E8: each operation says that the connection failed, and the prompt goes on."""
    port = free_port()
    with SubscriberProgram(port) as program:
        for command in ("SUBSCRIBE news", "UNSUBSCRIBE news"):
            program.lines.clear()
            program.type(command)
            wait_until(lambda: bool(program.lines), "an answer")
            [line] = program.lines
            assert line.startswith(f"c> Error in the connection to broker 127.0.0.1:{port} ")
        assert program.quit() == 0
    done = run_editor(port, "news", "text")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error in the connection to broker 127.0.0.1:{port} ")


def test_wrong_usage_of_the_editor() -> None:
    """E2: all four arguments are needed, -h is the host, and only --help is help."""
    run = [sys.executable, "-m", "tidings", "editor"]
    for arguments, code, said in (
        (["-h", "127.0.0.1", "-p", "4200", "-t", "news"], 2, "-m"),
        (["-h"], 2, "-h"),
        (["-h", "127.0.0.1", "-p", "port", "-t", "news", "-m", "x"], 2, "not a port"),
        (["--help"], 0, "-h HOST"),
    ):
        done = subprocess.run([*run, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code
        assert said in done.stdout + done.stderr


def test_the_prompt_explains_itself_and_survives_the_web_service(broker: Gateway, topic: str) -> None:
    """E6: without the service the text is shown as it came, and that is said once."""
    with SubscriberProgram(broker.port, f"http://127.0.0.1:{free_port()}/spell", broker.reach) as program:
        help_line = "c> The commands are SUBSCRIBE <topic>, UNSUBSCRIBE <topic> and QUIT."
        program.command("HELLO", help_line)
        program.command("SUBSCRIBE", help_line)
        publish(broker, topic, "3 ships")
        program.command(f"subscribe {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : 3 ships")
        program.lines.clear()
        publish(broker, topic, "4 ships\nc> UNSUBSCRIBE OK \x1b[31m")
        program.expect(f"c> MESSAGE FROM {topic} : 4 ships\\nc> UNSUBSCRIBE OK \\x1b[31m")
        assert program.quit() == 0
        assert len(program.errors) == 1 and "numbers stay digits" in program.errors[0]


def test_bytes_that_are_no_text_are_no_surprise(broker: Gateway) -> None:
    """E2: neither program falls over them."""
    command = broker.reach.subscriber(broker.port)
    done = subprocess.run(
        command, input=b"SUBSCRIBE \xff\n\xff\nQUIT\n", capture_output=True, env=ENVIRONMENT, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"c> SUBSCRIBE FAIL\nc> The commands are ")
    for topic, text in (("news", "\udcff"), ("\udcff", "text")):
        refused = broker.reach.run_editor(broker.port, topic, text)
        assert refused.returncode == 1 and refused.stderr.startswith("Warning: ")


def test_quit_ends_the_subscriptions(broker: Gateway, bus: tidings.Bus, topic: str) -> None:
    publish(broker, topic, "text")
    with SubscriberProgram(broker.port, reach=broker.reach) as program:
        program.command(f"SUBSCRIBE {topic}", "c> SUBSCRIBE OK", f"c> MESSAGE FROM {topic} : text")
        assert bus.topic(topic).subscriptions == 1
        assert program.quit() == 0
    assert bus.topic(topic).subscriptions == 0


def test_at_a_terminal_messages_leave_the_typed_line_alone(broker: Gateway, topic: str) -> None:
    """E2: a message that comes while somebody types appears above the line, and what was typed still counts."""
    publish(broker, topic, "first")
    ours, theirs = os.openpty()
    command = broker.reach.subscriber(broker.port)
    environment = ENVIRONMENT | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                shown.extend(data)
        except OSError:
            return  # So a terminal ends.

    reader = threading.Thread(target=read)
    reader.start()
    try:
        wait_until(lambda: b"c>" in shown, "the prompt")
        os.write(ours, f"SUBSCRIBE {topic}\r".encode())
        wait_until(lambda: f"c> MESSAGE FROM {topic} : first".encode() in shown, f"the last message: {shown!r}")
        assert b"c> SUBSCRIBE OK" in shown
        os.write(ours, b"UNSUB")
        publish(broker, topic, "while typing")
        wait_until(lambda: f"c> MESSAGE FROM {topic} : while typing".encode() in shown, f"the next one: {shown!r}")
        os.write(ours, f"SCRIBE {topic}\r".encode())
        wait_until(lambda: b"c> UNSUBSCRIBE OK" in shown, f"the whole command: {shown!r}")
        os.write(ours, b"QUIT\r")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(ours)

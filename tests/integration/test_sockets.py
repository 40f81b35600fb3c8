"""E1, E3, E4, E8: the door for sockets, knocked at with plain sockets: its answers, its deliveries, and its bounds."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidings
from tests.integration.socket_programs import (
    ENVIRONMENT,
    Received,
    SocketBroker,
    free_port,
    read_all,
    run_editor,
    wait_until,
)
from tidings.errors import Unavailable
from tidings.gateways import calls
from tidings.transport import curve

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., SocketBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts brokers with settings of their doors."""
    brokers: list[SocketBroker] = []

    def make(*arguments: str, **settings: object) -> SocketBroker:
        environment = {f"TIDINGS_{name.upper()}": str(value) for name, value in settings.items()}
        brokers.append(SocketBroker(tmp_path / f"data{len(brokers)}", *arguments, settings=environment))
        return brokers[-1].start()

    yield make
    for broker in brokers:
        broker.kill()


def log_of(broker: SocketBroker) -> list[str]:
    """Stops the broker in good order; the lines that its door has logged, but for strangers.

    A client of another test's broker that is gone tries to reach it again, and that port may be this door's now.
    ZeroMQ begins with a byte with which no request of these tests does.
    """
    assert broker.stop() == 0
    lines = [line.rstrip("\n") for line in broker.log if line.startswith("sockets: ")]
    return [line for line in lines if r"it began with b'\xff" not in line]


def test_answers_byte_by_byte(start: Start) -> None:
    """E1: what each request is answered, and that the connection then ends."""
    broker = start()
    with Received() as received:
        port = received.port
        assert broker.ask("SUBSCRIBE", "news", port) == b"1\0"
        assert broker.ask("UNSUBSCRIBE", "news", port) == b"2\0"
        assert broker.ask("PUBLISH", "news", "first") == b"0\0"
        assert broker.ask("UNSUBSCRIBE", "news", port) == b"1\0"
        assert broker.ask("SUBSCRIBE", "news", port) == b"0\0"
        assert received.wait_for(1) == ["first"]
        assert broker.ask("SUBSCRIBE", "news", port) == b"0\0", "again is no error"
        assert broker.ask("PUBLISH", "news", "second") == b"0\0"
        assert received.wait_for(2) == ["first", "second"], "and repeats nothing"
        assert broker.ask("UNSUBSCRIBE", "news", port) == b"0\0"
        assert broker.ask("UNSUBSCRIBE", "news", port) == b"1\0"
    assert log_of(broker) == []


def test_a_delivery_byte_by_byte(start: Start) -> None:
    """E1: one connection, two fields, and its end."""
    broker = start()
    broker.ask("PUBLISH", "ñews", "3 ☂")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert broker.ask("SUBSCRIBE", "ñews", listener.getsockname()[1]) == b"0\0"
        listener.settimeout(30)
        connection, _ = listener.accept()
        with connection:
            assert read_all(connection) == "ñews\0003 ☂\0".encode()


def test_an_editor_may_close_without_waiting(start: Start) -> None:
    """E1: the document's editor sends three pieces and is gone; what it sent is kept."""
    broker = start()
    for number in range(20):
        with broker.connect() as connection:
            for piece in (b"PUBLISH\0", b"news\0", b"%d\0" % number):
                connection.sendall(piece)
    with tidings.connect(broker.address) as bus:
        wait_until(lambda: any(info.count == 20 for info in bus.topics()), "twenty messages")
        texts = [message.text for message in bus.subscribe("news", start="earliest").messages(timeout=0)]
    assert sorted(texts, key=int) == [str(number) for number in range(20)]
    assert log_of(broker) == []


@pytest.mark.parametrize("policy", ["auto", "on-subscribe", "on-publish"])
def test_a_subscribe_never_makes_a_topic(start: Start, policy: str) -> None:
    """E1: whatever the topic policy is."""
    broker = start("--topics", policy)
    assert broker.ask("SUBSCRIBE", "news", 4201) == b"1\0"
    assert broker.ask("PUBLISH", "news", "text") == (b"1\0" if policy == "on-subscribe" else b"0\0")
    with tidings.connect(broker.address) as bus:
        assert [info.name for info in bus.topics()] == ([] if policy == "on-subscribe" else ["news"])


def test_the_door_and_the_bus_are_one(start: Start) -> None:
    """E1: what the Python client puts reaches a socket, and what an editor publishes reaches a durable subscription."""
    broker = start()
    with tidings.connect(broker.address, "alice") as bus, Received() as received:
        bus.subscribe("news")
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        bus.put("news", "from the bus", key="k", headers={"a": "b"})
        bus.put_many("news", [f"many {number}" for number in range(100)])
        calls.publish("127.0.0.1", broker.port, "news", "from an editor")
        expected = ["from the bus", *(f"many {number}" for number in range(100)), "from an editor"]
        assert [bus.get("news", timeout=30).text for _ in expected] == expected
        assert received.wait_for(len(expected)) == expected


def test_what_the_protocol_cannot_carry_is_left_out_aloud(start: Start) -> None:
    """E3: a longer text, a NUL, bytes that are no text: a line in the log, and the next message."""
    broker = start()
    with tidings.connect(broker.address) as bus, Received() as received:
        bus.put("news", "first")
        broker.ask("SUBSCRIBE", "news", received.port)
        for value in ("x" * 1025, "a\0b", b"\xff", "☂" * 1024, "last"):
            bus.put("news", value)
        assert received.wait_for(3) == ["first", "☂" * 1024, "last"]
    lines = log_of(broker)
    assert len(lines) == 3
    assert all(f"message {number} of 'news'" in line for number, line in enumerate(lines, 1))


def test_many_editors_and_many_subscribers(start: Start) -> None:
    """E8: 50 and 50 at once; each message comes once to each subscriber, each editor's in order."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "start")
    editors, each = 50, 3
    inboxes = [Received() for _ in range(50)]

    def edit(name: int) -> None:
        for number in range(each):
            calls.publish("127.0.0.1", broker.port, "news", f"{name} {number}")

    try:
        with ThreadPoolExecutor(50) as pool:
            asked = pool.map(lambda inbox: broker.ask("SUBSCRIBE", "news", inbox.port), inboxes)
            assert set(asked) == {b"0\0"}
            list(pool.map(edit, range(editors)))
        for inbox in inboxes:
            texts = inbox.wait_for(1 + editors * each)
            assert texts[0] == "start"
            assert len(set(texts)) == len(texts) == 1 + editors * each
            assert texts == inboxes[0].texts, "all see the same order"
        positions = {text: place for place, text in enumerate(inboxes[0].texts)}
        for name in range(editors):
            places = [positions[f"{name} {number}"] for number in range(each)]
            assert places == sorted(places)
    finally:
        for inbox in inboxes:
            inbox.mailbox.close()
    assert log_of(broker) == []


def test_a_port_that_refuses_delays_nobody_and_is_dropped(start: Start) -> None:
    """E8: the others are served meanwhile; after its time the subscriber is forgotten, with one line in the log."""
    broker = start(sockets_refusal_ms_max=700)
    calls.publish("127.0.0.1", broker.port, "news", "start")
    refusing = free_port()
    with tidings.connect(broker.address) as bus, Received() as received:
        assert broker.ask("SUBSCRIBE", "news", refusing) == b"0\0"
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        for number in range(50):
            calls.publish("127.0.0.1", broker.port, "news", str(number))
        assert received.wait_for(51) == ["start", *map(str, range(50))]
        wait_until(lambda: bus.topic("news").subscriptions == 1, "the subscription that nobody answers is dropped")
        assert broker.ask("UNSUBSCRIBE", "news", refusing) == b"1\0"
        calls.publish("127.0.0.1", broker.port, "news", "still here")
        assert received.wait_for(52)[-1] == "still here"
    [line] = log_of(broker)
    assert f"127.0.0.1:{refusing} could not be reached for 0.7 s" in line and "refused" in line


def test_a_subscriber_that_comes_back_in_time_misses_nothing(start: Start) -> None:
    """E1: what it was owed stays on the bus, and comes in order and once."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "start")
    port = free_port()
    assert broker.ask("SUBSCRIBE", "news", port) == b"0\0"
    for number in range(10):
        calls.publish("127.0.0.1", broker.port, "news", str(number))
    found: list[bytes] = []
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(30)
        while len(found) < 11:
            connection, _ = listener.accept()
            with connection:
                found.append(read_all(connection))
    assert found == [b"news\0start\0", *(b"news\0%d\0" % number for number in range(10))]


def test_a_subscriber_that_reads_nothing_delays_nobody(start: Start) -> None:
    """E8: it takes connections and never looks at them; it gets its messages slowly, and only it."""
    broker = start(sockets_linger_ms=4_000)
    calls.publish("127.0.0.1", broker.port, "news", "start")
    with socket.create_server(("127.0.0.1", 0)) as deaf, Received() as received:
        assert broker.ask("SUBSCRIBE", "news", deaf.getsockname()[1]) == b"0\0"
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        for number in range(30):
            calls.publish("127.0.0.1", broker.port, "news", str(number))
        received.wait_for(31)
        assert waiting_connections(deaf) < 31, "the deaf one has not got all of them yet"


def waiting_connections(listener: socket.socket) -> int:
    """How many connections nobody has looked at."""
    listener.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_slow_silent_and_garbage_clients_cost_a_bounded_time(start: Start) -> None:
    """E8: they hold every place there is, each until its time is up, with one line in the log each."""
    broker = start(sockets_connections_max=4, sockets_request_ms=1_000)
    silent = [broker.connect() for _ in range(3)]
    slow = broker.connect()
    sent = threading.Event()

    def drip() -> None:
        """A byte now and then, until the door has had enough."""
        try:
            for byte in b"PUBLISH\0news\0" + b"x" * 10_000:
                slow.sendall(bytes([byte]))
                sent.set()
                time.sleep(0.02)
        except OSError:
            return

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        assert sent.wait(30)
        assert broker.ask("PUBLISH", "news", "in between") == b"0\0", "anyone who waits for a place gets one"
        assert [read_all(connection) for connection in silent] == [b""] * 3
        dripping.join(30)
        assert not dripping.is_alive()
        with broker.connect() as garbage:
            garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_all(garbage) == b""
        with broker.connect() as gone:
            gone.sendall(b"SUBSCRIBE\0ne")
        for request, answer in (
            (b"PUBLISH\0news\0" + b"x" * 5_000 + b"\0", b"1\0"),
            (b"PUBLISH\0" + b"n" * 129 + b"\0text\0", b"1\0"),
            (b"PUBLISH\0news\0" + b"x" * 1025 + b"\0", b"1\0"),
            (b"SUBSCRIBE\0news\0no port\0", b"1\0"),
            (b"UNSUBSCRIBE\0\xff\0001\0", b"2\0"),
        ):
            with broker.connect() as wrong:
                wrong.sendall(request)
                wrong.shutdown(socket.SHUT_WR)
                assert read_all(wrong) == answer
        with tidings.connect(broker.address) as bus:
            assert bus.topic("news").count == 1, "nothing of all this was stored"
            assert len(bus.topics()) == 1
    finally:
        for connection in [*silent, slow]:
            connection.close()
    lines = log_of(broker)
    assert len([line for line in lines if "not complete after 1 s" in line]) == 4
    assert len([line for line in lines if "is no operation" in line]) == 1
    assert len([line for line in lines if "ended before its request was complete" in line]) == 1
    assert len(lines) == 4 + 1 + 1 + 5


def test_limits_of_subscribers_and_topics(start: Start) -> None:
    """E8: one more is refused, and there is a place again when one has gone."""
    broker = start(sockets_subscribers_max=2, sockets_topics_max=2)
    for topic in ("a", "b", "c"):
        calls.publish("127.0.0.1", broker.port, topic, "text")
    with Received() as one, Received() as two, Received() as three:
        for topic, answer in (("a", b"0\0"), ("b", b"0\0"), ("c", b"1\0")):
            assert broker.ask("SUBSCRIBE", topic, one.port) == answer
        assert broker.ask("SUBSCRIBE", "a", two.port) == b"0\0"
        assert broker.ask("SUBSCRIBE", "a", three.port) == b"1\0"
        assert broker.ask("UNSUBSCRIBE", "a", two.port) == b"0\0"
        assert broker.ask("SUBSCRIBE", "a", three.port) == b"0\0"
        assert three.wait_for(1) == ["text"]
    lines = log_of(broker)
    assert len(lines) == 2 and "sockets_topics_max" in lines[0] and "sockets_subscribers_max" in lines[1]


def test_anyone_who_left_without_a_word_makes_room(start: Start) -> None:
    """E8: subscribers that are owed nothing and no longer listen do not fill the house for ever."""
    broker = start(sockets_subscribers_max=2)
    calls.publish("127.0.0.1", broker.port, "news", "text")
    with Received() as stays, Received() as comes:
        with Received() as leaves:
            for subscriber in (stays, leaves):
                assert broker.ask("SUBSCRIBE", "news", subscriber.port) == b"0\0"
                assert subscriber.wait_for(1) == ["text"]
        # What was delivered last may not be acknowledged yet, and until then it counts as owed.
        wait_until(lambda: broker.ask("SUBSCRIBE", "news", comes.port) == b"0\0", "a place")
        calls.publish("127.0.0.1", broker.port, "news", "more")
        assert (stays.wait_for(2), comes.wait_for(2)) == (["text", "more"], ["text", "more"])
    assert f"sockets: 127.0.0.1:{leaves.port} is gone and is dropped, to make room for another" in log_of(broker)


def test_without_file_descriptors_the_door_says_no_and_goes_on(start: Start) -> None:
    """E8: a process that may open no more files refuses, and takes up its work when it may again."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "text")
    before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    with Received() as received:
        used = len(os.listdir(f"/proc/{broker.pid}/fd"))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"1\0"
        assert broker.ask("PUBLISH", "news", "still here") == b"0\0"
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        assert received.wait_for(1) == ["still here"]
    assert any("no more sockets" in line for line in log_of(broker))


@pytest.mark.parametrize("end", [SocketBroker.kill, SocketBroker.stop], ids=["killed", "stopped"])
def test_a_restarted_broker_goes_on_delivering(start: Start, end: Callable[[SocketBroker], object]) -> None:
    """E1: subscribers are found in the journal; nothing is lost, and a kill repeats one message at most."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "start")
    calls.publish("127.0.0.1", broker.port, "sport", "start")
    with Received() as received:
        for topic in ("news", "sport"):
            assert broker.ask("SUBSCRIBE", topic, received.port) == b"0\0"
        received.wait_for(2)
        end(broker)
        broker.start()
        for number in range(5):
            calls.publish("127.0.0.1", broker.port, "news", f"news {number}")
            calls.publish("127.0.0.1", broker.port, "sport", f"sport {number}")
        wait_until(lambda: {("news", "news 4"), ("sport", "sport 4")} <= set(received.messages), "the last of both")
        for topic in ("news", "sport"):
            texts = [text for name, text in received.messages if name == topic]
            assert texts in (
                ["start", *(f"{topic} {number}" for number in range(5))],
                *([["start", "start", *(f"{topic} {number}" for number in range(5))]] * (end is SocketBroker.kill)),
            )
        assert broker.ask("UNSUBSCRIBE", "news", received.port) == b"0\0", "it knows what it had"
    assert log_of(broker) == []


def test_a_kill_in_the_middle_of_deliveries_loses_nothing(start: Start) -> None:
    """E1: of what one subscriber is owed at the moment of the crash, one message may come twice, in its place."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "start")
    texts = [str(number) for number in range(400)]
    with Received() as received:
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        with tidings.connect(broker.address) as bus:
            bus.put_many("news", texts)
        received.wait_for(50)
        broker.kill()
        seen = len(received.messages)
        broker.start()
        wait_until(lambda: received.texts[-1] == texts[-1], "the last one")
        came = received.texts
    assert list(dict.fromkeys(came)) == ["start", *texts], "all of them, in order"
    assert len(came) - len(set(came)) <= 1
    assert seen < len(came), "the crash was in the middle"


def test_with_keys_the_door_gets_in_and_strangers_do_not(start: Start, tmp_path: Path) -> None:
    """E1: the door's own way to the broker needs no key; nobody else's does without one."""
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "alice")
    broker = start("--keys", str(keys))
    with (
        tidings.connect(broker.address, "alice", keys=keys) as bus,
        Received() as received,
    ):
        bus.subscribe("news", start="earliest")
        calls.publish("127.0.0.1", broker.port, "news", "from an editor")
        assert bus.get("news", timeout=30).text == "from an editor"
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        bus.put("news", "from alice")
        assert received.wait_for(2) == ["from an editor", "from alice"]
        with pytest.raises(Unavailable):
            tidings.connect(broker.address, "mallory", timeout=0.3, retries=1)
    assert broker.stop() == 0


def test_anyone_who_takes_the_doors_name_does_not_keep_it(start: Start) -> None:
    """The door's session is fenced like any other; it takes its name back."""
    broker = start()
    assert broker.ask("PUBLISH", "news", "kept") == b"0\0"
    with tidings.connect(broker.address, "tidings.sockets"):
        assert broker.ask("PUBLISH", "news", "refused") == b"1\0"
        assert broker.ask("PUBLISH", "news", "kept") == b"0\0"
    [line] = log_of(broker)
    assert "newer session" in line


def test_names_that_the_door_has_not_given_lead_it_nowhere(start: Start, tmp_path: Path) -> None:
    """Anybody may use a name below the door's; after a restart it follows none of those to another machine."""
    broker = start()
    calls.publish("127.0.0.1", broker.port, "news", "text")
    calls.publish("127.0.0.1", broker.port, "sport", "text")
    with Received() as received:
        assert broker.ask("SUBSCRIBE", "news", received.port) == b"0\0"
        received.wait_for(1)
        for name in ("nobody", "192.0.2.1:80", "localhost:80", "127.0.0.1:0", "127.0.0.1:port"):
            with tidings.connect(broker.address, f"tidings.sockets/{name}") as bus:
                bus.subscribe("news")
        assert broker.stop() == 0
        with tidings.open(tmp_path / "data0", f"tidings.sockets/127.0.0.1:{received.port}") as bus:
            bus.subscribe(["news", "sport"])
        broker.start()
        calls.publish("127.0.0.1", broker.port, "news", "more")
        assert received.wait_for(2) == ["text", "more"]
    lines = log_of(broker)
    assert len([line for line in lines if "is not the name of a subscriber" in line]) == 5 == len(lines)


def test_a_port_in_use_is_a_sentence(start: Start, tmp_path: Path) -> None:
    """E1: the broker does not start without the door that it was told to open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "tidings", "serve", "--data", str(tmp_path / "d"), "--sockets", str(port)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"The door for sockets cannot listen on 127.0.0.1:{port} (Address already in use): "
        "stop who has it, or give --sockets another port.\n"
    )
    assert not (tmp_path / "d").exists(), "nothing was touched"


def test_an_interrupt_and_an_authorised_stop_close_the_door(start: Start) -> None:
    """E1: with connections open and a subscriber that refuses, the broker ends in good order and soon."""
    for number, end in enumerate(("SIGINT", "stop")):
        broker = start("--admin", "root")
        calls.publish("127.0.0.1", broker.port, "news", "text")
        assert broker.ask("SUBSCRIBE", "news", free_port()) == b"0\0"
        with broker.connect():
            if end == "stop":
                with tidings.connect(broker.address, "root") as bus:
                    bus.shutdown()
            else:
                os.kill(broker.pid, signal.SIGINT)
            assert broker.wait() == 0, number
        with pytest.raises(ConnectionRefusedError):
            broker.connect()


def test_an_editor_in_c(start: Start, tmp_path: Path) -> None:
    """E1: the protocol from another language, with nothing but POSIX sockets."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler on this machine")
    program = tmp_path / "editor"
    source = ROOT / "examples" / "editor.c"
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "-o", str(program), str(source)], check=True)
    broker = start()
    with tidings.connect(broker.address) as bus:
        assert run_editor(broker.port, "news", "3 ☂", [str(program)]).returncode == 0
        assert run_editor(broker.port, "ñ" * 128, "☂" * 1024, [str(program)]).returncode == 0
        for topic, text in (("n" * 129, "text"), ("news", "x" * 1025)):
            done = run_editor(broker.port, topic, text, [str(program)])
            assert done.returncode == 1 and "Warning" in done.stderr
        assert run_editor(broker.port, "", "an empty topic", [str(program)]).returncode == 1
        assert {info.name: info.count for info in bus.topics()} == {"news": 1, "ñ" * 128: 1}
        [message] = bus.subscribe("news", start="earliest").messages(timeout=0)
        assert message.text == "3 ☂"
    broker.kill()
    done = run_editor(broker.port, "news", "text", [str(program)])
    assert done.returncode == 1 and "Error in the connection to broker" in done.stderr
    assert subprocess.run([str(program), "-h", "x"], capture_output=True, check=False).returncode == 2

"""The broker's door: bad input, slow and vanished clients, keys, signals, full and failing disks."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tidings.message import Columns
from tidings.protocols.broker import messages
from tidings.wire import codec


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--admin", "root") as process:
        yield process


@pytest.fixture
def dealer(broker: BrokerProcess) -> Iterator[zmq.Socket[bytes]]:
    """A raw connection to the broker, for what our client would never send."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = 0
        raw.rcvtimeo = 60_000
        raw.connect(broker.address)
        yield raw


def ask(raw: zmq.Socket[bytes], *frames: bytes) -> messages.AnyAnswer:
    raw.send_multipart(frames)
    return codec.decode_answer(raw.recv_multipart()[0])


def works(broker: BrokerProcess) -> None:
    """Other clients notice nothing."""
    with tidings.connect(broker.address, "witness") as bus:
        bus.subscribe("witness")
        receipt = bus.put("witness", "still here")
        assert receipt.offset is not None
        message = bus.get("witness")
        assert message is not None
        assert message.offset == receipt.offset


def test_random_and_mangled_frames_are_answered_and_nobody_else_notices(
    broker: BrokerProcess, dealer: zmq.Socket[bytes]
) -> None:
    """Random bytes, truncated frames, unknown kinds and wrong versions each get their error."""
    rng = random.Random(7)
    hello = codec.encode(messages.Hello(1, 1, "mallory", b"t"))
    good = codec.encode(messages.Put(2, "mallory", 1, messages.Part((messages.Target("news", 1),), 1)))
    body = codec.encode(Columns(1, "mallory", [b"x" * 50]))
    assert isinstance(ask(dealer, hello), messages.Welcome)
    for _ in range(300):
        frames = [good, body]
        which = rng.randrange(2)
        kind = rng.randrange(3)
        if kind == 0:
            frames[which] = rng.randbytes(rng.randrange(1, 80))
        elif kind == 1:
            frames[which] = frames[which][: rng.randrange(1, len(frames[which]))]
        else:
            frames = frames + [rng.randbytes(10)] * rng.randrange(1, 5)
        assert isinstance(ask(dealer, *frames), messages.Failed)
    assert ask(dealer, codec.encode(["nonsense", 5])) == ask(dealer, codec.encode(["nonsense", 5]))
    answer = ask(dealer, codec.encode(messages.Hello(9, 99, "mallory", b"t")))
    assert isinstance(answer, messages.Failed)
    assert (answer.request, answer.number) == (9, tidings.ProtocolError.number)
    works(broker)


def test_oversized_frames_end_the_connection_and_nothing_else(broker: BrokerProcess) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = 0
        monitor = raw.get_monitor_socket()
        raw.connect(broker.address)
        raw.send_multipart([b"x", bytes(64 * 2**20)])
        monitor.rcvtimeo = 60_000
        while True:
            event = int.from_bytes(monitor.recv_multipart()[0][:2], sys.byteorder)
            if event == zmq.EVENT_DISCONNECTED:
                break
        raw.disable_monitor()
        monitor.close()
    works(broker)


def test_bytes_that_are_not_zeromq_are_dropped(broker: BrokerProcess) -> None:
    host, port = broker.address.removeprefix("tcp://").rsplit(":", 1)
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(data)
    works(broker)


def test_a_reader_that_stops_reading_holds_up_nobody(broker: BrokerProcess, dealer: zmq.Socket[bytes]) -> None:
    """Z12: it has granted credit for a million messages, and takes none of them."""
    assert isinstance(ask(dealer, codec.encode(messages.Hello(1, 1, "sloth", b"t"))), messages.Welcome)
    ask(dealer, codec.encode(messages.Subscribe(2, "sloth", 1, ("news",))))
    dealer.send(codec.encode(messages.Flow(0, "sloth", 1, ("news",), 1, (), 1_000_000, 64 * 2**20)))
    with tidings.connect(broker.address, "publisher") as publisher, tidings.connect(broker.address, "alice") as alice:
        subscription = alice.subscribe("news")
        publisher.put_many("news", [bytes(1000)] * 20_000)
        seen = 0
        for batch in subscription.batches():
            seen += len(batch)
            if seen == 20_000:
                break
    works(broker)


def test_many_clients_at_once(broker: BrokerProcess) -> None:
    """Z12."""
    failures: list[BaseException] = []

    def chat(number: int) -> None:
        try:
            with tidings.connect(broker.address, f"client{number}") as bus:
                bus.subscribe(f"topic{number % 5}")
                for count in range(20):
                    bus.put(f"topic{number % 5}", f"{number}:{count}")
                own = [
                    text
                    for text in (m.text for m in bus.subscribe(f"topic{number % 5}").messages(timeout=0))
                    if text.startswith(f"{number}:")
                ]
                assert own == [f"{number}:{count}" for count in range(20)]
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=chat, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures


def test_no_broker_is_unavailable_after_the_tries(tmp_path: Path) -> None:
    """Z8: a clear sentence, the right error, the number of tries as asked for."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(tidings.Unavailable, match=f"{address}.*2 tries"):
            tidings.connect(address, "alice", timeout=0.05, retries=2)


def test_a_client_waits_out_a_restart(broker: BrokerProcess) -> None:
    """Z8: the same request, again and again, until the broker is back."""
    with tidings.connect(broker.address, "alice", timeout=0.2, retries=100) as bus:
        bus.subscribe("news")
        bus.put("news", "one")
        broker.kill()
        revival = threading.Thread(target=broker.start)
        revival.start()
        assert bus.put("news", "two").offset == 1
        revival.join()
        assert [message.text for message in iter(lambda: bus.get("news"), None)] == ["one", "two"]


def test_an_authorised_client_can_shut_the_broker_down(broker: BrokerProcess) -> None:
    """Z14: what was acknowledged is there after the restart."""
    with tidings.connect(broker.address, "alice") as bus:
        bus.put("news", "kept")
        with pytest.raises(tidings.Unauthorized, match="--admin alice"):
            bus.shutdown()
    with tidings.connect(broker.address, "root") as bus:
        bus.shutdown()
    assert broker.wait() == 0
    broker.start()
    with tidings.connect(broker.address, "reader") as bus:
        bus.subscribe("news", start="earliest")
        message = bus.get("news")
        assert message is not None
        assert message.text == "kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_in_good_order(broker: BrokerProcess, number: signal.Signals) -> None:
    works(broker)
    os.kill(broker.pid, number)
    assert broker.wait() == 0


def test_a_second_broker_on_the_same_folder_is_refused(broker: BrokerProcess) -> None:
    other = BrokerProcess(broker.data)
    with pytest.raises(AssertionError, match="in use"):
        other.start()
    other.kill()
    works(broker)


def test_the_bare_req_example_runs(broker: BrokerProcess) -> None:
    """Z16: only pyzmq and msgpack; the example in the documentation is the file that runs here."""
    example = ROOT / "examples" / "bare_req.py"
    assert example.read_text() in (ROOT / "docs" / "wire.md").read_text()
    assert "tidings." not in example.read_text().partition('"""\n')[2]
    for offset in range(2):
        done = subprocess.run([sys.executable, example, broker.address], capture_output=True, text=True, check=True)
        assert done.stdout == f"news {offset} hello from a bare socket\n"


def fill_the_disk(bus: tidings.Bus, data: Path, pid: int) -> None:
    """Puts three messages, the second while the files in `data`, which `pid` writes, cannot become larger."""
    bus.put("news", bytes(100_000))  # With the large one below it does not fit into the room that was made ahead.
    size = sum(file.stat().st_size for file in data.glob("*.journal"))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 1000, resource.RLIM_INFINITY))
    with pytest.raises(tidings.Overloaded, match="disk is full"):
        bus.put("news", bytes(1_000_000))
    assert bus.put("news", "small").offset == 1
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert bus.put("news", bytes(1_000_000)).offset == 2


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(broker: BrokerProcess) -> None:
    """A file size limit on the running process stands for the full disk."""
    with tidings.connect(broker.address, "alice") as bus:
        fill_the_disk(bus, broker.data, broker.pid)
    broker.kill()
    broker.start()
    with tidings.connect(broker.address, "alice") as bus:
        assert bus.topic("news").count == 3


FAILING_SYNC = """
import errno, os, sys, types
from tidings.journal import disk
class Os(types.ModuleType):
    def __getattr__(self, name):
        return getattr(os, name)
    def fdatasync(self, descriptor):
        if os.path.exists(sys.argv[-1]):
            raise OSError(errno.EIO, "planted")
        os.fdatasync(descriptor)
disk.os = Os("os")
from tidings.cli import main
sys.exit(main(sys.argv[1:-1]))
"""


def test_a_failed_sync_ends_the_process_without_an_answer(tmp_path: Path) -> None:
    """What the kernel said it lost is not retried, and nobody is told that it is stored."""
    trigger = tmp_path / "trigger"
    arguments = ["serve", "--data", str(tmp_path / "data"), "--bind", "tcp://127.0.0.1:*", str(trigger)]
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING_SYNC, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stderr is not None
    address = next(word for line in process.stderr for word in line.split() if word.startswith("tcp://"))
    with tidings.connect(address, "alice", timeout=0.3, retries=100) as bus:
        bus.put("news", "stored")
        bus.be_patient(0.3)
        trigger.touch()
        with pytest.raises(tidings.Unavailable):
            bus.put("news", "with an unknown outcome")
        assert process.wait() == 74
        assert "could not be written" in process.stderr.read()
        process.stderr.close()


def test_keys_decide_who_gets_in(tmp_path: Path) -> None:
    """Encrypted, and only for those on the list; anything but loopback is refused without keys."""
    keys = tmp_path / "keys"
    tool = [sys.executable, "-m", "tidings"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for arguments in (["keys", str(keys)], ["keys", str(keys), "--client", "alice"]):
        subprocess.run([*tool, *arguments], check=True, env=environment, capture_output=True)
    refused = subprocess.run(
        [*tool, "serve", "--data", str(tmp_path / "open"), "--bind", "tcp://0.0.0.0:*"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "keys" in refused.stderr
    with BrokerProcess(tmp_path / "data", "--keys", str(keys), "--admin", "alice") as broker:
        with tidings.connect(broker.address, "alice", keys=keys) as bus:
            bus.put("news", "secret")
        with pytest.raises(tidings.Unavailable):
            tidings.connect(broker.address, "mallory", timeout=0.3, retries=1)
        others = tmp_path / "others"
        for arguments in (["keys", str(others)], ["keys", str(others), "--client", "alice"]):
            subprocess.run([*tool, *arguments], check=True, env=environment, capture_output=True)
        (others / "server.pub").write_bytes((keys / "server.pub").read_bytes())
        with pytest.raises(tidings.Unavailable):
            tidings.connect(broker.address, "alice", timeout=0.3, retries=1, keys=others)
        with tidings.connect(broker.address, "alice", keys=keys) as bus:
            bus.shutdown()
        assert broker.wait() == 0

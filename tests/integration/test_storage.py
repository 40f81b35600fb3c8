"""A broker and its storage server as real processes: texts, the last message, absences, fences, bad disks."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

import tidings
from tests.integration.broker_process import ROOT, ServerProcess, StorageProcess, StoredBrokerProcess
from tests.integration.test_door import FAILING_SYNC, fill_the_disk
from tidings.admin.ports import free_address
from tidings.protocols.storage import Failed
from tidings.storage import questions
from tidings.storage.lines import file_name
from tidings.wire.storage import decode_storage_answer

SECONDS_MAX = 60.0


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StorageProcess]:
    with StorageProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def broker(storage: StorageProcess) -> Iterator[StoredBrokerProcess]:
    with StoredBrokerProcess(storage.address) as process:
        yield process


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def text_of(storage: StorageProcess, topic: str) -> list[str]:
    path = storage.data / "topics" / file_name(topic)
    return path.read_text().splitlines() if path.exists() else []


def has_text(storage: StorageProcess, topic: str, lines: list[str]) -> None:
    eventually(lambda: text_of(storage, topic) == lines, f"the text of {topic} is {text_of(storage, topic)}")


def tidings_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidings", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        timeout=SECONDS_MAX,
        check=False,
    )


# Texts and the last message.


def test_a_readable_text_for_each_topic(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5, section 3.4 of the document: a text for each topic, one message a line."""
    with tidings.connect(broker.address, "editor") as bus:
        bus.put("news", "first")
        bus.put("news", "two\nlines and a \\")
        bus.put("news", b"\xff\x00")
        for topic in ("../x", "/etc/passwd", ".", "a b", "ü✓", "😀" * 128):
            bus.put(topic, "odd name")
    has_text(storage, "news", ["first", "two\\nlines and a \\\\", "\\xff\x00"])
    for topic in ("../x", "/etc/passwd", ".", "a b", "ü✓", "😀" * 128):
        has_text(storage, topic, ["odd name"])
    assert {path.parent for path in storage.data.parent.rglob("*.txt")} == {storage.data / "topics"}


def test_the_last_message_of_a_topic(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5: by a remote call and by a command, at once and after a restart."""
    with tidings.connect(broker.address, "editor") as bus:
        bus.put_many("news", ["one", "two"])
        assert questions.last(storage.address, "news").text == "two"
        bus.put("news", "three")
        message = questions.last(storage.address, "news")
        assert (message.text, message.offset, message.publisher) == ("three", 2, "editor")
        bus.put("sport", "goal")
    storage.kill()
    storage.start()
    # A broker without work notices by itself that the server was away, and tells it what it has to be final.
    eventually(lambda: questions.status(storage.address)["topics"] == 2, "the server does not know its topics")
    done = tidings_command("storage", "last", "news", "--storage", storage.address)
    assert (done.returncode, done.stdout) == (0, "three\n")
    done = tidings_command("storage", "last", "news", "--storage", storage.address, "--json")
    assert json.loads(done.stdout)["offset"] == 2
    done = tidings_command("storage", "last", "nowhere", "--storage", storage.address)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no topic 'nowhere'" in done.stderr
    done = tidings_command("storage", "status", "--storage", storage.address, "--json")
    assert json.loads(done.stdout)["topics"] == 2


def test_6_a_removed_folder_is_made_again_before_the_start(storage: StorageProcess) -> None:
    """E5, E7, test 6 of the document: the folder is deleted before the broker is executed, and is there again."""
    broker = StoredBrokerProcess(storage.address)
    with broker, tidings.connect(broker.address, "editor") as bus:
        bus.put_many("news", ["one", "two"])
        has_text(storage, "news", ["one", "two"])
    storage.stop()
    shutil.rmtree(storage.data / "topics")
    with storage, broker, tidings.connect(broker.address, "editor") as bus:
        has_text(storage, "news", ["one", "two"])
        bus.put("news", "three")
        has_text(storage, "news", ["one", "two", "three"])


def test_6_without_any_folder_it_is_made(storage: StorageProcess) -> None:
    """E5, E7, test 6 of the document: nothing at all is left, and the system works."""
    storage.stop()
    shutil.rmtree(storage.data)
    with storage, StoredBrokerProcess(storage.address) as broker, tidings.connect(broker.address) as bus:
        bus.put("news", "hello")
        has_text(storage, "news", ["hello"])


def test_a_folder_that_is_removed_while_it_runs_is_made_again(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5: with all its texts, whether new messages come or not."""
    with tidings.connect(broker.address, "editor") as bus:
        bus.put_many("news", ["one", "two"])
        bus.put("sport", "goal")
        has_text(storage, "sport", ["goal"])
        shutil.rmtree(storage.data / "topics")
        has_text(storage, "news", ["one", "two"])
        has_text(storage, "sport", ["goal"])
        shutil.rmtree(storage.data / "topics")
        bus.put("news", "three")
        has_text(storage, "news", ["one", "two", "three"])
        has_text(storage, "sport", ["goal"])


def test_15_several_editors_at_once(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5, E7, test 15 of the document: topic files are made and every message is delivered and in its file."""
    failures: list[BaseException] = []

    def edit(number: int) -> None:
        try:
            with tidings.connect(broker.address, f"editor{number}") as bus:
                for count in range(20):
                    bus.put(f"topic{number % 3}", f"{number}:{count}")
        except BaseException as error:
            failures.append(error)
            raise

    with tidings.connect(broker.address, "subscriber") as bus:
        subscriptions = [bus.subscribe(f"topic{number}") for number in range(3)]
        editors = [threading.Thread(target=edit, args=(number,)) for number in range(9)]
        for editor in editors:
            editor.start()
        for editor in editors:
            editor.join(SECONDS_MAX)
        assert not failures
        for number, subscription in enumerate(subscriptions):
            delivered = [message.text for message in subscription.messages(timeout=0)]
            assert len(delivered) == 60
            has_text(storage, f"topic{number}", delivered)


def test_the_same_folder_serves_with_and_without_a_storage_server(tmp_path: Path) -> None:
    """E5: it is the same journal, and texts catch up with what was written without them."""
    data = tmp_path / "data"
    with tidings.open(data, "alice") as bus:
        bus.put("news", "embedded")
    with StorageProcess(data) as storage, StoredBrokerProcess(storage.address) as broker:
        with tidings.connect(broker.address, "alice") as bus:
            bus.put("news", "stored")
        has_text(storage, "news", ["embedded", "stored"])
        with pytest.raises(tidings.Unavailable, match="in use"):
            tidings.open(data, "alice")
    with tidings.open(data, "alice") as bus:
        assert [message.text for message in bus.subscribe("news", start="earliest").messages(timeout=0)] == [
            "embedded",
            "stored",
        ]


def test_retention_removes_segments_and_the_texts_have_everything(storage: StorageProcess) -> None:
    """E5: a segment goes when the texts have passed it, and they keep what the journal forgets."""
    settings = {"TIDINGS_SEGMENT_RECORDS_MAX": "20", "TIDINGS_RETAIN_BYTES": "2000"}
    with (
        StoredBrokerProcess(storage.address, settings=settings) as broker,
        tidings.connect(broker.address, "editor") as bus,
    ):
        texts: list[str] = []

        def put_one() -> bool:
            texts.append(f"message {len(texts)}")
            bus.put("news", texts[-1])
            return bus.topic("news").first_offset > 40

        eventually(put_one, "nothing was forgotten")
        for _ in range(25):  # The next segment begins, and the oldest goes.
            put_one()
        eventually(lambda: not (storage.data / "00000000000000000000.journal").exists(), "no segment was removed")
        has_text(storage, "news", texts)
        broker.kill()
        storage.kill()
        storage.start()
        broker.start()
        with tidings.connect(broker.address, "editor") as again:
            again.put("news", "one more")
            has_text(storage, "news", [*texts, "one more"])


def test_durability_of_the_system_survives_the_death_of_either(storage: StorageProcess) -> None:
    """E5: written and not synced, so only a power cut can take it."""
    with (
        StoredBrokerProcess(storage.address, "--durability", "os") as broker,
        tidings.connect(broker.address, "editor", timeout=1.0, retries=60) as bus,
    ):
        for number in range(20):
            bus.put("news", str(number))
            if number % 8 == 3:
                storage.kill()
                storage.start()
            if number % 8 == 7:
                broker.kill()
                broker.start()
        has_text(storage, "news", [str(number) for number in range(20)])


# One of the two is away.


def test_puts_wait_while_the_storage_server_is_away_and_go_on_when_it_is_back(
    storage: StorageProcess, broker: ServerProcess
) -> None:
    """E5: a put is Unavailable after its tries, or done when the storage is back in time, by itself."""
    with (
        tidings.connect(broker.address, "alice", timeout=0.2, retries=500) as patient,
        tidings.connect(broker.address, "bob", timeout=0.2, retries=500) as hasty,
    ):
        messages = patient.subscribe("news").messages(timeout=SECONDS_MAX)
        hasty.put_many("news", ["first", "before"])
        assert next(messages).text == "first"
        storage.kill()
        hasty.be_patient(0.4)
        with pytest.raises(tidings.Unavailable):
            hasty.put("news", "with an unknown outcome")
        # What needs no disk is answered as ever, and what is in memory can be read.
        assert [topic.name for topic in patient.topics()] == ["news"]
        assert next(messages).text == "before"
        revival = threading.Thread(target=storage.start)
        revival.start()
        offset = patient.put("news", "after").offset
        revival.join()
        assert offset in (2, 3)  # What was with an unknown outcome may have been stored, once.
        texts = [next(messages).text for _ in range(2, offset + 1)]
        assert texts == ["with an unknown outcome", "after"][-len(texts) :]


def test_a_backlog_that_is_not_in_memory_is_read_when_the_storage_is_back(
    storage: StorageProcess, broker: ServerProcess
) -> None:
    """E5: a reader that meets the absence loses nothing, and the loop answers others meanwhile."""
    count = 400
    with tidings.connect(broker.address, "publisher") as bus:
        bus.put_many("news", [b"%06d" % number + bytes(50_000) for number in range(count)])
    # A new broker has nothing in memory.
    broker.kill()
    broker.start()
    with (
        tidings.connect(broker.address, "reader", timeout=1.0, retries=100) as bus,
        tidings.connect(broker.address, timeout=SECONDS_MAX, retries=1) as other,
    ):
        subscription = bus.subscribe("news", start="earliest")
        seen = 0
        for message in subscription.messages(timeout=SECONDS_MAX):
            assert message.value[:6] == b"%06d" % seen
            seen += 1
            if seen == 50:
                storage.kill()
                assert other.topics()[0].name == "news"
                storage.start()
            if seen == count:
                break
        assert seen == count


def test_no_storage_server_at_the_start(tmp_path: Path) -> None:
    """E5: a bounded wait, a sentence, exit 1."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{reserved.getsockname()[1]}"
        broker = StoredBrokerProcess(address, settings={"TIDINGS_STORAGE_WAIT_MS": "300"})
        broker.launch()
        assert broker.wait() == 1
        assert f"No storage server answers at {address}" in "".join(broker.log)


def test_a_storage_server_that_comes_a_little_later_is_waited_for(tmp_path: Path) -> None:
    storage = StorageProcess(tmp_path / "data").start()
    storage.kill()
    broker = StoredBrokerProcess(storage.address, settings={"TIDINGS_STORAGE_WAIT_MS": "60000"})
    broker.launch()
    try:
        storage.start()
        broker.wait_until_ready()
        with tidings.connect(broker.address) as bus:
            assert bus.put("news", "hello").offset == 0
    finally:
        broker.kill()
        storage.kill()


def test_a_broker_can_be_stopped_while_its_storage_server_is_away(
    storage: StorageProcess, broker: ServerProcess
) -> None:
    with tidings.connect(broker.address, "alice", timeout=0.1, retries=500) as bus:
        bus.put("news", "stored")
        storage.kill()
        bus.be_patient(0.1)
        with pytest.raises(tidings.Unavailable):
            bus.put("news", "with an unknown outcome")
        assert broker.stop() == 1
    assert "storage server does not answer" in "".join(broker.log)


def test_a_second_broker_fences_the_first(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5: the first stops without an answer, as after a failed sync; the second has everything."""
    with tidings.connect(broker.address, "alice", timeout=0.3, retries=100) as first:
        first.put("news", "from the first")
        first.be_patient(0.6)
        with StoredBrokerProcess(storage.address) as other, tidings.connect(other.address, "bob") as second:
            with pytest.raises(tidings.Unavailable):
                first.put("news", "too late")
            assert broker.wait() == 74
            assert "taken over" in "".join(broker.log)
            assert second.put("news", "from the second").offset == 1
        has_text(storage, "news", ["from the first", "from the second"])


def test_a_fenced_broker_without_work_stops_too(storage: StorageProcess, broker: ServerProcess) -> None:
    with StoredBrokerProcess(storage.address):
        assert broker.wait() == 74
    assert "taken over" in "".join(broker.log)


# The storage server's disk and its door.


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(storage: StorageProcess, broker: ServerProcess) -> None:
    """E5: a file size limit on the storage server stands for the full disk."""
    with tidings.connect(broker.address, "alice") as bus:
        fill_the_disk(bus, storage.data, storage.pid)
    broker.kill()
    broker.start()
    with tidings.connect(broker.address, "alice") as bus:
        assert bus.topic("news").count == 3


def test_a_failed_sync_ends_the_storage_server_without_an_answer(tmp_path: Path) -> None:
    """E5: the broker waits, and what was not synced is sent again to the next one."""
    trigger, data = tmp_path / "trigger", tmp_path / "data"
    arguments = ["storage", "--data", str(data), "--bind", free_address(), str(trigger)]
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING_SYNC, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stderr is not None
    address = next(word for line in process.stderr for word in line.split() if word.startswith("tcp://"))
    with (
        StoredBrokerProcess(address) as broker,
        tidings.connect(broker.address, "alice", timeout=0.3, retries=100) as bus,
    ):
        bus.put("news", "stored")
        bus.be_patient(0.3)
        trigger.touch()
        with pytest.raises(tidings.Unavailable):
            bus.put("news", "with an unknown outcome")
        assert process.wait() == 74
        assert "could not be written" in process.stderr.read()
        process.stderr.close()
        trigger.unlink()
        next_one = StorageProcess(data)
        next_one._bind = address
        with next_one, tidings.connect(broker.address, "alice", timeout=1.0, retries=60) as again:
            again.put("news", "after")
            texts = [message.text for message in again.subscribe("news", start="earliest").messages(timeout=0)]
        assert texts[0] == "stored"
        assert texts[-1] == "after"
        assert len(set(texts)) == len(texts)


def test_rubbish_at_the_storage_servers_door_is_answered_and_nobody_notices(
    storage: StorageProcess, broker: ServerProcess
) -> None:
    rng = random.Random(5)
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = 0
        raw.rcvtimeo = 60_000
        raw.connect(storage.address)
        for _ in range(200):
            raw.send_multipart([rng.randbytes(rng.randrange(1, 60)) for _ in range(rng.randrange(1, 4))])
            assert isinstance(decode_storage_answer(raw.recv_multipart()[0]), Failed)
        raw.send_multipart([b"x", bytes(64 * 2**20)])
    with tidings.connect(broker.address) as bus:
        assert bus.put("news", "still here").offset == 0


def test_keys_decide_which_broker_gets_in(tmp_path: Path) -> None:
    """E5: nothing but loopback without keys; with keys only who is on the list."""
    keys = tmp_path / "keys"
    refused = tidings_command("storage", "--data", str(tmp_path / "open"), "--bind", "tcp://0.0.0.0:*")
    assert refused.returncode == 1
    assert "keys" in refused.stderr
    assert tidings_command("keys", str(keys)).returncode == 0
    assert tidings_command("keys", str(keys), "--client", "broker").returncode == 0
    with StorageProcess(tmp_path / "data", "--keys", str(keys)) as storage:
        stranger = StoredBrokerProcess(storage.address, settings={"TIDINGS_STORAGE_WAIT_MS": "300"})
        stranger.launch()
        assert stranger.wait() == 1
        with (
            StoredBrokerProcess(storage.address, "--storage-keys", str(keys)) as broker,
            tidings.connect(broker.address) as bus,
        ):
            bus.put("news", "secret")
            asked = tidings_command("storage", "last", "news", "--storage", storage.address, "--keys", str(keys))
            assert (asked.returncode, asked.stdout) == (0, "secret\n")
        assert (
            tidings_command("storage", "last", "news", "--storage", storage.address, "--timeout", "0.3").returncode == 1
        )


def test_storage_server_ends_in_good_order(storage: StorageProcess, broker: ServerProcess) -> None:
    with tidings.connect(broker.address) as bus:
        bus.put("news", "hello")
    assert storage.stop() == 0
    assert text_of(storage, "news") == ["hello"]
    assert (storage.data / "positions").exists()


def test_wrong_usage() -> None:
    for arguments in (["storage"], ["storage", "first", "news"], ["storage", "last"], ["serve"]):
        assert tidings_command(*arguments).returncode == 2

"""C1, C3, C9: `tidings work` and `tidings get --group`, as people start them, on every kind of broker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess, StorageProcess, StoredBrokerProcess
from tests.integration.replica_group import Node, ReplicaGroup
from tests.integration.socket_programs import ENVIRONMENT, wait_until
from tidings.admin.ports import free_address

CHANNELS = ["--preset", "channels"]
HANDLER = """\
import os, sys
keys = ("TOPIC", "OFFSET", "ATTEMPT", "KEY", "KEY_BASE64")
said = [os.environ.get(f"TIDINGS_{key}", "-") for key in keys]
with open(sys.argv[1], "a") as log:
    log.write(" ".join([*said, repr(sys.stdin.buffer.read())]) + "\\n")
sys.exit(int(os.environ["TIDINGS_ATTEMPT"]) == 1 and sys.argv[2] == "fail-first")
"""
Command = subprocess.Popen[str]


@pytest.fixture(scope="module", params=["broker", "storage", "group", "ring"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "broker":
        with BrokerProcess(folder / "data") as broker:
            yield broker.address
    elif request.param == "storage":
        with StorageProcess(folder / "data") as storage, StoredBrokerProcess(storage.address) as broker:
            yield broker.address
    elif request.param == "group":
        with ReplicaGroup(folder) as group:
            yield group.address
    else:
        with (
            Node(folder / "a", free_address(), "--ring") as first,
            Node(folder / "b", free_address(), "--join", first.address) as second,
        ):
            # While a topic moves nobody knows for sure what members have handed out.
            wait_until(
                lambda: [group["share"] > 0 for group in groups(second.address)] == [True, True], "both own some"
            )
            yield second.address


def groups(address: str) -> list[dict[str, Any]]:
    """The groups of a ring, as a node sees them."""
    done = subprocess.run(
        [sys.executable, "-m", "tidings", "ring", "status", "--at", address, "--json"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)["groups"] if done.returncode == 0 else []
    return found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def bus(address: str) -> Iterator[tidings.Bus]:
    with tidings.connect(address, "watcher", retries=20) as connected:
        yield connected


def begin(address: str, *words: str, out: Path | None = None) -> Command:
    with contextlib.ExitStack() as stack:
        stdout = subprocess.PIPE if out is None else stack.enter_context(out.open("w"))
        return start(stdout, address, *words)


def start(stdout: object, address: str, *words: str) -> Command:
    return subprocess.Popen(
        [sys.executable, "-m", "tidings", words[0], "--bus", address, "--retries", "20", *words[1:]],
        stdout=stdout,  # type: ignore[arg-type]
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def run(address: str, *words: str) -> tuple[int, str, str]:
    process = begin(address, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def lag(bus: tidings.Bus, topic: str) -> int:
    [info] = bus.groups(topic)
    return info.lag


def test_messages_are_printed_and_acked(address: str, bus: tidings.Bus, topic: str) -> None:
    """C1, C5: from the first one on, in order; what was printed does not come again."""
    bus.put_many(topic, [str(number) for number in range(5)])
    assert run(address, "work", topic, "--group", "g", "--count", "2") == (0, "0\n1\n", "")
    code, out, err = run(address, "work", topic, "--group", "g", "--timeout", "1", "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["text"], each["offset"], each["attempt"]) for each in found] == [(str(n), n, 1) for n in (2, 3, 4)]
    assert run(address, "work", topic, "--group", "g", "--timeout", "0.2") == (3, "", "")
    assert lag(bus, topic) == 0


def test_get_takes_one_message_of_a_group(address: str, bus: tidings.Bus, topic: str) -> None:
    """C1: 3 when there is none; the next one for the next command, whoever runs it."""
    bus.put_many(topic, ["a", "b"])
    assert run(address, "get", topic, "--group", "g") == (0, "a\n", "")
    assert run(address, "get", topic, "--group", "g", "--as", "bob") == (0, "b\n", "")
    assert run(address, "get", topic, "--group", "g") == (3, "", "")
    assert run(address, "get", topic, "--group", "g", "--timeout", "0.2") == (3, "", "")


def test_a_command_acks_with_0_and_gives_back_with_anything_else(
    address: str, bus: tidings.Bus, topic: str, tmp_path: Path
) -> None:
    """C1, C9: it finds the message on its input, and the rest in its environment; a failure is another attempt."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", HANDLER, str(log), "fail-first"]
    bus.put(topic, b"one\0two", key=b"k")
    bus.put(topic, "x" * 300_000)
    bus.put(topic, "last", key=b"a\0b")
    flags = ["--group", "g", "--count", "6", "--retry", "0.1"]
    code, out, err = run(address, "work", topic, *flags, "--", *command)
    assert (code, out) == (0, "")
    assert err.count("goes back to the group (exit code 1)") == 3
    lines = sorted(log.read_text().splitlines())
    assert len(lines) == 6
    for attempt in "12":
        assert f"{topic} 0 {attempt} k - b'one\\x00two'" in lines
        assert f"{topic} 1 {attempt} - - b'{'x' * 300_000}'" in lines
        assert f"{topic} 2 {attempt} - YQBi b'last'" in lines
    assert lag(bus, topic) == 0


def test_several_share_the_work_and_keep_the_order_of_keys(
    address: str, bus: tidings.Bus, topic: str, tmp_path: Path
) -> None:
    """C3: three at once; each message once, those of a key in order."""
    workers = [
        begin(
            address,
            "work",
            topic,
            "--group",
            "g",
            "--timeout",
            "3",
            "--",
            sys.executable,
            "-c",
            HANDLER,
            str(tmp_path / name),
            "",
        )
        for name in "abc"
    ]
    bus.put_many(topic, [str(n) for n in range(30)], keys=[f"k{n % 6}" for n in range(30)])
    for worker in workers:
        worker.communicate(timeout=120)
    files = [file for name in "abc" if (file := tmp_path / name).exists()]
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    assert sorted(int(line[1]) for line in lines) == list(range(30))
    assert lag(bus, topic) == 0
    for file in files:
        offsets: dict[str, list[int]] = {}
        for line in file.read_text().splitlines():
            _, offset, _, key, *_ = line.split()
            offsets.setdefault(key, []).append(int(offset))
        assert all(each == sorted(each) for each in offsets.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_current_message(
    address: str, bus: tidings.Bus, topic: str, tmp_path: Path, number: signal.Signals
) -> None:
    """C7: the current one is finished and acked, the rest goes to others; without one it ends at once."""
    script = "import sys, time, pathlib\nat = pathlib.Path(sys.argv[1])\n(at / 'begun').touch()\n"
    script += "while not (at / 'go').exists(): time.sleep(0.01)\n(at / 'done').touch()"
    bus.put_many(topic, ["a", "b"])
    worker = begin(address, "work", topic, "--group", "g", "--", sys.executable, "-c", script, str(tmp_path))
    wait_until(lambda: (tmp_path / "begun").exists(), "the command")
    os.kill(worker.pid, number)
    (tmp_path / "go").touch()
    assert worker.communicate(timeout=120) == ("", "")
    assert worker.returncode == 0 and (tmp_path / "done").exists()
    assert lag(bus, topic) == 1
    assert run(address, "work", topic, "--group", "g", "--count", "1") == (0, "b\n", "")
    idle = begin(address, "work", topic, "--group", "g")
    wait_until(lambda: any(each.active for info in bus.groups(topic) for each in info.members), "a member")
    os.kill(idle.pid, number)
    assert idle.communicate(timeout=120) == ("", "") and idle.returncode == 0


def test_a_second_signal_ends_the_command_too(address: str, bus: tidings.Bus, topic: str, tmp_path: Path) -> None:
    """C9: and the message goes back."""
    script = "import sys, time, pathlib\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)"
    bus.put(topic, "a")
    worker = begin(address, "work", topic, "--group", "g", "--", sys.executable, "-c", script, str(tmp_path / "begun"))
    wait_until(lambda: (tmp_path / "begun").exists(), "the command")
    os.kill(worker.pid, signal.SIGINT)

    def ends() -> bool:
        os.kill(worker.pid, signal.SIGTERM)
        return worker.poll() is not None

    wait_until(ends, "the end")
    _, err = worker.communicate(timeout=120)
    assert "goes back to the group (signal 15)" in err
    assert run(address, "work", topic, "--group", "g", "--count", "1") == (0, "a\n", "")


def test_a_topic_is_limited_from_the_command_line(address: str, topic: str) -> None:
    """C6: for this topic, on every kind of broker; the message too many is refused and not dropped."""
    assert run(address, "subscribe", topic)[0] == 0
    code, out, _ = run(address, "topics", topic, "--max-backlog", "2", "--json")
    assert code == 0 and json.loads(out)["max_backlog"] == 2
    for text in "ab":
        assert run(address, "put", topic, text)[0] == 0
    code, out, err = run(address, "put", topic, "c")
    assert (code, out) == (1, "") and "limit of 2 (max_backlog)" in err
    assert run(address, "topics", topic, "--max-backlog", "none")[0] == 0
    assert run(address, "put", topic, "c")[0] == 0
    code, out, _ = run(address, "topics", topic, "--max-backlog", "default", "--json")
    assert code == 0 and json.loads(out)["max_backlog"] is None
    assert run(address, "topics", topic, "--max-backlog", "0")[0] == 2


def test_late_acks_are_counted(address: str, bus: tidings.Bus, topic: str) -> None:
    """C7, table 4: a delay of 0.3 s is seen in `tidings groups`, and costs the member nothing."""
    with tidings.connect(address, f"member of {topic}", retries=20) as member:
        jobs = member.subscribe(topic, group="g")
        bus.put_many(topic, ["a", "b", "c"])
        for number in range(3):
            job = jobs.get(timeout=60)
            assert job is not None
            if number == 1:
                time.sleep(0.4)  # What is counted is the time itself.
            jobs.ack(job)
        code, out, _ = run(address, "groups", topic, "--json")
        [info] = json.loads(out)["members"]
        assert code == 0 and info["delayed_acks"] >= 1 and info["longest_ms"] >= 400
        assert (info["slow_acks"], info["slow"], info["active"]) == (0, False, True)
        code, out, _ = run(address, "groups", topic, "--delays")
        assert code == 0 and "delayed" in out and f"{info['longest_ms']:,} ms" in out


def test_a_long_command_keeps_its_message(tmp_path: Path) -> None:
    """C9: for much longer than the broker waits for an answer, though another member has nothing to do."""
    script = "import sys, time\nopen(sys.argv[1], 'a').write('begun ')\ntime.sleep(6)"  # The time is what is tested.
    with BrokerProcess(tmp_path / "data", settings={"TIDINGS_REDELIVERY_MS": "1500"}) as broker:
        with tidings.connect(broker.address, "watcher") as bus:
            bus.put("jobs", "a")
        command = ("--", sys.executable, "-c", script, str(tmp_path / "log"))
        workers = [begin(broker.address, "work", "jobs", "--group", "g", "--timeout", "8", *command) for _ in "ab"]
        assert sorted(worker.communicate(timeout=120) for worker in workers) == [("", ""), ("", "")]
        with tidings.connect(broker.address, "watcher") as bus:
            assert lag(bus, "jobs") == 0
    assert (tmp_path / "log").read_text() == "begun "


def test_the_documents_own_setting(tmp_path: Path) -> None:
    """C3, C6, table 1: 1,000 messages of two publishers in two partitions for two members: each within a second, whole
    blocks in order; the 1,001st that waits is refused.
    """
    with BrokerProcess(tmp_path / "data", *CHANNELS) as broker:
        files = [tmp_path / name for name in "ab"]
        words = ("work", "channel", "--group", "g", "--json", *CHANNELS)
        workers = [begin(broker.address, *words, out=file) for file in files]
        with contextlib.ExitStack() as stack:
            for worker in workers:
                stack.callback(worker.communicate)
                stack.callback(worker.terminate)
            bus = stack.enter_context(tidings.connect(broker.address, "watcher"))
            wait_until(lambda: any(len(info.members) == 2 for info in bus.groups("channel")), "two members")
            publishers = [stack.enter_context(tidings.connect(broker.address, f"publisher {n}")) for n in range(2)]
            seconds = []
            for _ in range(5):  # What other programs of this machine take must not decide it.
                began = time.monotonic()
                for number, publisher in enumerate(publishers):
                    texts = [f"{number} {n}" for n in range(500)]
                    publisher.put_many("channel", texts, keys=[str(n % 2) for n in range(500)])
                wait_until(lambda: lag(bus, "channel") == 0, "all of it")
                seconds.append(time.monotonic() - began)
            for worker in workers:
                worker.terminate()
            assert [worker.communicate(timeout=120)[1] for worker in workers] == ["", ""]
            said = [file.read_text() for file in files]
            bus.put_many("channel", ["waits"] * 1_000)
            with pytest.raises(tidings.Overloaded, match="limit of 1000 "):
                bus.put("channel", "one too many")
    assert min(seconds) < 1.0, seconds
    found = [[json.loads(line) for line in lines.splitlines()] for lines in said]
    assert sorted(each["offset"] for member in found for each in member) == list(range(5_000))
    for member in found:
        blocks: dict[tuple[str, str], list[int]] = {}
        for each in member:
            blocks.setdefault((each["publisher"], each["key"]), []).append(each["offset"])
        assert all(offsets == sorted(offsets) for offsets in blocks.values())


def test_wrong_usage(address: str) -> None:
    code, _, err = run(address, "work", "jobs", "--group", "g", "--", "no-such-program")
    assert (code, err) == (1, "There is no program 'no-such-program' to run: give its path, or make it executable.\n")
    code, _, err = run(address, "work", "jobs", "--group", "g", "--json", "--", "true")
    assert code == 2 and "--json prints messages, and does not go with a command" in err
    assert run(address, "work", "jobs")[0] == 2
    assert run(address, "get", "--group", "g")[0] == 2

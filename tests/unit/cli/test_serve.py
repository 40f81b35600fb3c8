"""`tidings serve` and `tidings stop`: flags become settings, and a real broker on loopback obeys them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidings import cli
from tidings.cli import gateways, main
from tidings.journal.folder import BROKER
from tidings.node import process
from tidings.node.loop import Door
from tidings.settings import BrokerSettings, JournalSettings, NodeSettings

SOURCE = Path(cli.__file__).parents[2]
Served = dict[str, object]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("TIDINGS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """What `serve` handed to the node, which here only says that it is ready."""
    seen: Served = {}

    def serve(
        data: Path,
        role: str,
        configuration: process.NodeConfiguration,
        on_ready: Callable[[str], None],
        doors: Sequence[Door],
    ) -> None:
        on_ready("tcp://127.0.0.1:12345")
        ready = Path("address")
        broker, journal, node, *_ = configuration
        seen.update(data=data, role=role, broker=broker, journal=journal, node=node, doors=len(doors))
        seen["ready"] = ready.read_text() if ready.exists() else None

    monkeypatch.setattr(process, "serve", serve)
    return seen


def test_flags_become_settings(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    argv = "serve --data data --bind tcp://127.0.0.1:0 --topics on-publish --durability os --admin alice --admin bob"
    argv += " --retain-age 7d --retain-bytes 1GB --drop-acknowledged --topic-idle 30d --lease 4s --ready-file address"
    assert main(argv.split()) == 0
    assert served == {
        "data": Path("data"),
        "role": BROKER,
        "broker": BrokerSettings(
            topics="on-publish",
            admins=("alice", "bob"),
            retain_age_ms=7 * 86_400_000,
            retain_bytes=10**9,
            drop_acknowledged=True,
            topic_idle_ms=30 * 86_400_000,
            lease_ms=4_000,
        ),
        "journal": JournalSettings(durability="os"),
        "node": NodeSettings(bind="tcp://127.0.0.1:*"),
        "doors": 0,
        "ready": "tcp://127.0.0.1:12345\n",
    }
    assert capsys.readouterr() == ("", "tidings serves tcp://127.0.0.1:12345 from data\n")
    assert not Path("address").exists()


def test_without_flags_the_file_and_then_the_defaults_count(served: Served) -> None:
    Path("tidings.toml").write_text('[broker]\ntopics = "on-subscribe"\ndrop_acknowledged = true\n')
    assert main(["serve", "--data", "data"]) == 0
    assert served["broker"] == BrokerSettings(topics="on-subscribe", drop_acknowledged=True)
    assert served["node"] == NodeSettings()


@pytest.mark.parametrize("way", ["flag", "variable", "file"])
def test_the_door_for_sockets_is_opened_when_it_is_asked_for(
    way: str, served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: on loopback, at the port that a flag, a variable or the file names; 0 is any free one."""
    if way == "variable":
        monkeypatch.setenv("TIDINGS_SOCKETS_PORT", "0")
    if way == "file":
        Path("tidings.toml").write_text("[sockets]\nsockets_port = 0\n")
    assert main(["serve", "--data", "data", "--digits", *(["--sockets", "0"] if way == "flag" else [])]) == 0
    assert served["doors"] == 1
    assert "\ntidings takes editors and subscribers at 127.0.0.1:" in capsys.readouterr().err


def test_plain_sockets_bring_the_web_service_for_numbers(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: by itself; where the port is taken, or the extra is missing, one sentence says so and the rest goes on."""
    monkeypatch.setattr(gateways, "HTTP_PORT", 0)
    assert main(["serve", "--data", "data", "--sockets", "0"]) == 0
    assert "\ntidings spells numbers at http://127.0.0.1:" in capsys.readouterr().err
    assert main(["serve", "--data", "data", "--sockets", "0", "--digits"]) == 0
    assert "spells" not in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(gateways, "HTTP_PORT", taken.getsockname()[1])
        assert main(["serve", "--data", "data", "--sockets", "0"]) == 0
        said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and f"Port {gateways.HTTP_PORT} of 127.0.0.1 is already in use" in said[0]
    monkeypatch.delitem(sys.modules, "tidings.gateways.http", raising=False)
    monkeypatch.setitem(sys.modules, "h11", None)
    assert main(["serve", "--data", "data", "--sockets", "0"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and "needs h11, which is not installed: pip install '.[web]' in a checkout." in said[0]
    assert main(["serve", "--data", "data", "--sockets", "0", "--http"]) == 1


def test_a_limit_and_a_preset(served: Served) -> None:
    """C6: an option counts before the preset."""
    assert main(["serve", "--data", "data", "--preset", "channels", "--lease", "4s"]) == 0
    assert served["broker"] == BrokerSettings(max_backlog=1_000, delayed_ack_ms=300, lease_ms=4_000)
    assert main(["serve", "--data", "data", "--preset", "channels", "--max-backlog", "7"]) == 0
    assert served["broker"] == BrokerSettings(max_backlog=7)


def test_other_machines_are_let_in_only_with_keys(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data", "data", "--bind", "tcp://*:7400"]) == 1
    assert "tidings keys" in capsys.readouterr().err
    assert served == {}
    assert main(["serve", "--data", "data", "--bind", "tcp://*:7400", "--keys", "keys"]) == 0


def test_the_web_service_has_a_line_of_its_own(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """E6: who reads only the first line of the file or of stderr reads what was always there."""
    assert main(["serve", "--data", "data", "--http", "0", "--ready-file", "address"]) == 0
    first, second = str(served["ready"]).splitlines()
    assert (first, second.startswith("http://127.0.0.1:")) == ("tcp://127.0.0.1:12345", True)
    lines = [f"tidings serves {first} from data", f"tidings spells numbers at {second}/spell"]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--topics never",
        "--durability no",
        "--retain-age soon",
        "--retain-bytes 0",
        "--http 65536",
        "--http x",
        "--sockets 65536",
    ],
)
def test_wrong_usage(flags: str, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *(["--data", "d"] if flags else []), *flags.split()]) == 2
    assert served == {}


def test_a_wrong_setting_or_address_is_a_sentence(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--data", "d", "--bind", "127.0.0.1:7400"]) == 1
    assert "tcp://127.0.0.1:7400" in capsys.readouterr().err
    Path("tidings.toml").write_text("[broker]\nno_such_setting = 1\n")
    assert main(["serve", "--data", "d"]) == 1
    assert "no_such_setting" in capsys.readouterr().err
    assert served == {}


class Broker:
    """A real broker process."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "tidings", "serve", "--data", "data", "--bind", "tcp://127.0.0.1:0", *flags]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("tidings serves tcp://127.0.0.1:"), line + self.process.stderr.read()
        self.address = line.split()[2]

    def end(self) -> tuple[int, str]:
        """The exit code and what else was said, once the process has ended by itself."""
        assert self.process.stderr is not None
        with self.process.stderr:
            said = self.process.stderr.read()
        return self.process.wait(), said


@pytest.fixture
def start() -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def start(*flags: str) -> Broker:
        brokers.append(Broker(*flags))
        return brokers[-1]

    yield start
    for broker in brokers:
        if broker.process.poll() is None:
            broker.process.kill()
            broker.end()


def test_an_administrator_stops_the_broker_and_nothing_is_lost(
    start: Callable[..., Broker], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Z14: an authorised client can shut the broker down; what was acknowledged is there after the restart."""
    broker = start("--admin", "alice", "--ready-file", "address")
    assert Path("address").read_text().strip() == broker.address
    monkeypatch.setenv("TIDINGS_BUS", broker.address)
    assert main(["subscribe", "news", "--as", "bob"]) == 0
    assert main(["put", "news", "kept"]) == 0
    assert main(["stop", "--as", "mallory"]) == 1
    assert broker.process.poll() is None
    capsys.readouterr()
    assert main(["stop", "--as", "alice"]) == 0
    assert broker.end() == (0, "")
    assert not Path("address").exists()

    monkeypatch.setenv("TIDINGS_BUS", start().address)
    capsys.readouterr()
    assert main(["get", "news", "--as", "bob"]) == 0
    assert capsys.readouterr().out == "kept\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_in_good_order(start: Callable[..., Broker], number: signal.Signals) -> None:
    broker = start()
    broker.process.send_signal(number)
    assert broker.end() == (0, "")


def test_keys_decide_who_gets_in(
    start: Callable[..., Broker], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["keys", "keys"])
    main(["keys", "keys", "--client", "alice"])
    main(["keys", "keys", "--client", "mallory"])
    Path("keys/clients/mallory.pub").unlink()
    broker = start("--keys", "keys")
    monkeypatch.setenv("TIDINGS_BUS", broker.address)
    patience = ["--timeout", "0.4", "--retries", "1"]
    with_keys = ["put", "news", "hello", "--keys", "keys"]
    assert main([*with_keys, "--as", "alice"]) == 0
    assert main([*with_keys, "--as", "mallory", *patience]) == 1
    assert main(["put", "news", "hello", *patience]) == 1
    capsys.readouterr()
    assert main(["topics", "--keys", "keys", "--as", "alice", "--json"]) == 0
    assert '"count": 1' in capsys.readouterr().out


def test_a_key_is_good_for_its_own_name_only(start: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker knows whose key a request came under: alice cannot read bob's subscriptions."""
    main(["keys", "keys"])
    for name in ("alice", "bob"):
        main(["keys", "keys", "--client", name])
    monkeypatch.setenv("TIDINGS_BUS", start("--keys", "keys").address)
    Path("keys/bob.key").write_bytes(Path("keys/alice.key").read_bytes())
    assert main(["subscribe", "news", "--keys", "keys", "--as", "alice"]) == 0
    assert main(["subscribe", "news", "--keys", "keys", "--as", "bob"]) == 1


class Follower:
    """`tidings get news --follow` in a process of its own."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "tidings", "get", "news", "--follow", "--as", "bob", *flags]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            # Anyone who runs the tests in the background may have had Ctrl-C ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def next(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        with self.process.stderr:
            said = self.process.stderr.read()
        return self.process.wait(), said


@pytest.fixture
def bus(start: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a broker, which is also the default of every command."""
    address = start().address
    monkeypatch.setenv("TIDINGS_BUS", address)
    return address


def test_follow_prints_as_they_come_and_ctrl_c_is_quiet(bus: str) -> None:
    main(["subscribe", "news", "--as", "bob"])
    follower = Follower()
    for text in ("one", "two"):
        main(["put", "news", text])
        assert follower.next() == f"{text}\n"
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == (130, "")


def test_what_found_no_reader_is_not_acknowledged(bus: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A message is acknowledged after it was printed, so that a pipe that breaks loses nothing."""
    main(["subscribe", "news", "--as", "bob"])
    follower = Follower()
    main(["put", "news", "one"])
    assert follower.next() == "one\n"
    assert follower.process.stdout is not None
    follower.process.stdout.close()
    main(["put", "news", "two"])
    assert follower.end() == (141, "")
    capsys.readouterr()
    assert main(["get", "news", "--as", "bob"]) == 0
    assert capsys.readouterr().out == "two\n"


def test_get_waits_for_a_message(bus: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["subscribe", "news", "--as", "bob"])
    assert main(["get", "news", "--as", "bob", "--timeout", "0.05"]) == 3
    publisher = threading.Timer(0.1, main, [["put", "news", "late"]])
    publisher.start()
    capsys.readouterr()
    assert main(["get", "news", "--as", "bob", "--timeout", "30"]) == 0
    publisher.join()
    assert "late\n" in capsys.readouterr().out


def test_a_newer_session_of_the_name_takes_over(bus: str) -> None:
    main(["subscribe", "news", "--as", "bob"])
    follower = Follower()
    main(["put", "news", "one"])
    follower.next()
    main(["get", "news", "--as", "bob"])
    code, said = follower.end()
    assert code == 1
    assert said.count("\n") == 1

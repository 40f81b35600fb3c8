"""In which role `tidings serve` opens a folder: what the folder is, what the options say, who is at their address."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidings.cli import main, roles
from tidings.errors import InvalidRequest
from tidings.journal.folder import BROKER, MEMBER, RING, Folder, role_of
from tidings.settings import GroupSettings, NodeSettings, RingSettings

ONE = "tcp://127.0.0.1:7401"
GROUP = "tcp://127.0.0.1:7501"
"""What is asked at this address says that it is in no ring."""
IN_RING = "tcp://127.0.0.1:7502"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Whom the roles ask, instead of real nodes."""
    found: list[str] = []

    def is_in_ring(addresses: Sequence[str], keys: str | None, seconds: float = 0.0, takes_alone: bool = False) -> bool:
        found.extend(addresses)
        return addresses[0] == IN_RING

    monkeypatch.setattr(roles, "is_in_ring", is_in_ring)
    monkeypatch.chdir(tmp_path)
    return found


def decide(role: str | None, words: str) -> tuple[str, GroupSettings]:
    """What is decided for a folder of this role; None is a new one."""
    if role is not None:
        home = Folder(Path("data"), role)
        home.enter()
        home.close()
    given = words.split()
    options = {name: [value] for name, value in itertools.pairwise(given) if value.startswith("tcp:")}
    group = GroupSettings(tuple(options.get("--group", ())), tuple(options.get("--into", ())))
    ring = RingSettings(tuple(options.get("--join", ())))
    return roles.decide(Path("data"), "--ring" in given, group, ring, NodeSettings())


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ("", BROKER),
        (f"--group {ONE}", MEMBER),
        (f"--into {GROUP}", MEMBER),
        (f"--into {IN_RING}", RING),
        ("--ring", RING),
        (f"--ring --group {ONE}", RING),
        (f"--join {IN_RING}", RING),
        (f"--join {IN_RING} --group {ONE}", RING),
        (f"--join {GROUP}", MEMBER),
    ],
)
def test_the_options_decide_for_a_new_folder(words: str, role: str) -> None:
    assert decide(None, words)[0] == role
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (BROKER, ""),
        (MEMBER, ""),
        (MEMBER, f"--group {ONE}"),
        (MEMBER, f"--into {IN_RING}"),
        (MEMBER, f"--join {GROUP}"),
        (RING, ""),
        (RING, "--ring"),
        (RING, f"--ring --group {ONE}"),
        (RING, f"--into {GROUP}"),
        (RING, f"--join {GROUP}"),
        (RING, f"--join {GROUP} --group {ONE}"),
    ],
)
def test_a_folder_keeps_its_role(role: str, words: str) -> None:
    assert decide(role, words)[0] == role


@pytest.mark.parametrize(
    ("role", "words", "grown"),
    [
        (BROKER, f"--group {ONE}", MEMBER),
        (BROKER, "--ring", RING),
        (BROKER, f"--ring --group {ONE}", RING),
        (MEMBER, "--ring", RING),
        (MEMBER, f"--ring --group {ONE}", RING),
        (BROKER, f"--join {IN_RING}", RING),
        (BROKER, f"--join {IN_RING} --group {ONE}", RING),
        (MEMBER, f"--join {IN_RING}", RING),
        (MEMBER, f"--join {IN_RING} --group {ONE}", RING),
    ],
)
def test_a_folder_grows(role: str, words: str, grown: str) -> None:
    assert decide(role, words)[0] == grown
    assert role_of(Path("data")) == role, "that is for the node itself to change"


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (BROKER, f"--into {GROUP}"),
        (BROKER, f"--join {IN_RING} --into {GROUP}"),
        (MEMBER, f"--join {IN_RING} --into {GROUP}"),
        (RING, f"--group {ONE}"),
    ],
)
def test_options_of_another_role_are_refused(role: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=r"data belongs to a .*: start that with `tidings serve --data data`"):
        decide(role, words)


def test_a_broker_alone_joins_no_group_by_join() -> None:
    with pytest.raises(InvalidRequest, match=f"{GROUP} is not in a ring: start its nodes with --ring first"):
        decide(BROKER, f"--join {GROUP}")


def test_a_broker_alone_joins_a_ring_without_other_founders() -> None:
    decide(BROKER, "")
    others = GroupSettings((ONE, GROUP, IN_RING))
    with pytest.raises(InvalidRequest, match="the other founders would not have its messages"):
        roles.decide(Path("data"), False, others, RingSettings((IN_RING,)), NodeSettings())


def test_nobody_is_asked_where_the_folder_or_the_options_say_enough(asked: list[str]) -> None:
    for role, words in ((None, f"--join {IN_RING} --group {ONE}"), (MEMBER, f"--into {GROUP}"), (RING, "--ring")):
        decide(role, words)
        for path in Path().glob("data/*"):
            path.unlink()
    assert asked == []


@pytest.mark.parametrize("role", [None, MEMBER])
def test_a_group_is_still_found_by_join_with_a_hint(role: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert decide(role, f"--join {GROUP}") == (MEMBER, GroupSettings(join=(GROUP,)))
    said = capsys.readouterr().err
    assert f"write `--into {GROUP}` for a group" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (f"--ring --join {IN_RING}", 2, "--ring and --join contradict each other: begin a ring or join one"),
        (f"--ring --into {GROUP}", 2, "--ring and --into contradict each other"),
        (f"--group {ONE} --into {GROUP}", 2, "--group and --into contradict each other"),
        ("--dissemination gossip", 2, "only a ring has --dissemination"),
        (f"--group {ONE} --dissemination gossip", 2, "only a ring has --dissemination"),
        ("--ring --dissemination mail", 2, "invalid choice"),
        ("--ring --sockets 0 --digits --http", 2, "--digits and --http contradict each other"),
        ("--ring --sockets 0.0.0.0:0", 1, "--sockets has no keys: to listen on 0.0.0.0, name the networks that may"),
        ("--ring --sockets 0.0.0.0:0 --sockets-allow x", 1, "--sockets-allow cannot use 'x'"),
        ("--ring --sockets host:0", 1, "--sockets cannot listen on 'host': give an IPv4 address"),
        ("--ring --http 0.0.0.0:0", 1, "--http has no keys: to listen on 0.0.0.0, name the networks that may"),
        ("--ring --sockets :0", 2, "':0' has no host before its colon"),
        (f"--into {GROUP} --bind {GROUP}", 1, f"{GROUP} is the address of this node itself: name another node"),
        (f"--join {ONE} --bind {ONE}", 1, f"{ONE} is the address of this node itself: name another node"),
        ("--join nowhere", 1, "'tcp://nowhere' cannot be reached by other nodes: write tcp://HOST:PORT.\n"),
        ("--into nowhere", 1, "'nowhere' cannot be reached by other nodes: write tcp://HOST:PORT.\n"),
        ("--ring --bind tcp://*:7400", 1, "without keys anybody"),
    ],
)
def test_what_contradicts_is_refused_before_a_byte_is_written(
    words: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--data", "data", *words.split()]) == code
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert not Path("data").exists()


@pytest.mark.parametrize("words", ["--ring", f"--group {ONE}", f"--into {GROUP}", f"--join {IN_RING}"])
def test_a_storage_server_keeps_no_node_of_a_group(
    words: str, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--storage", ONE, *words.split()]) == 2
    assert "keeps its own folder: give --data" in capsys.readouterr().err and asked == []


@pytest.mark.parametrize("command", ["serve", "storage"])
def test_a_folder_without_a_name_is_not_the_current_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--data", ""]) == 2
    assert "the folder's name is empty: write . for the current folder" in capsys.readouterr().err
    assert not list(Path().iterdir())

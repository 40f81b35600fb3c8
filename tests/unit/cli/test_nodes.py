"""`tidings nodes` and `tidings node`: what they print, and what they refuse (P10)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Thread

import pytest

from tidings.cli import main
from tidings.cli.node import moved
from tidings.peer.node import PeerNode
from tidings.peer.stacks import LayerSettings
from tidings.settings import PeerSettings


@pytest.fixture(params=["chord", "hyparview"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A node that is alone."""
    node = PeerNode(PeerSettings(bind="tcp://127.0.0.1:*", overlay=request.param), LayerSettings())
    thread = Thread(target=node.run, daemon=True)
    thread.start()
    yield node.address
    node.stop()
    thread.join(30.0)


def test_one_node_for_people_and_for_programs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", "--at", address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"node           {address} (")
    assert main(["nodes", "--at", address.removeprefix("tcp://"), "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert view["address"] == address and view["joined"] is (view["overlay"] == "hyparview")
    if view["overlay"] == "chord":
        assert "waits for      1 more founding members" in lines


def test_an_overlay_that_is_not_whole_is_an_error(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A lone node is a whole overlay of views; a ring it is not."""
    code = main(["nodes", "--at", address, "--all", "--json"])
    survey = json.loads(capsys.readouterr().out)
    assert survey["whole"] is (survey["overlay"] == "hyparview")
    assert code == (0 if survey["whole"] else 1)
    assert survey["problems"] == ([] if survey["whole"] else [f"{address} has not joined"])
    assert main(["nodes", "--at", address, "--all"]) == code
    printed = capsys.readouterr()
    assert address in printed.out
    assert ("1 nodes are connected" in printed.out) is survey["whole"]
    assert ("has not joined" in printed.err) is not survey["whole"]


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["nodes", "--at", "tcp://127.0.0.1:9"], 1, "does not answer"),
        (["nodes", "--at", "tcp://127.0.0.1:9", "--all"], 1, "does not answer"),
        (["nodes", "shell", "--at", "tcp://127.0.0.1:9"], 1, "does not answer"),
        (["nodes", "drive", "--at", "tcp://127.0.0.1:9"], 1, "does not answer"),
        (["nodes", "drive", "--at", "tcp://127.0.0.1:9", "--all"], 1, "does not answer"),
        (["nodes", "--at", "nowhere"], 1, "write tcp://HOST:PORT"),
        (["nodes", "--keys", "keys"], 1, "--as NAME"),
        (["nodes", "dance"], 2, "invalid choice"),
        (["node", "--group", "tcp://127.0.0.1:7401"], 2, "unrecognized arguments: --group"),
        (["node", "--overlay", "star"], 2, "invalid choice"),
        (["node", "--join", "nowhere"], 1, "cannot join by 'tcp://nowhere'"),
        (["node", "--join", "tcp://192.0.2.1:7500"], 1, "without keys a node connects only to its own"),
        (["node", "--founders", "1"], 1, "founders must be 2 to 256"),
        (["node", "--bind", "tcp://*:7500"], 1, "without keys anybody there could read and write"),
        (["node", "--bind", "tcp://127.0.0.1:port"], 1, "cannot be bound"),
        (["node", "--bind", "127.0.0.1:7500"], 1, "write tcp://127.0.0.1:7500"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert complaint in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--data d", "serve --ring --data d"),
        ("--data=d --group tcp://a:1 --verbose", "serve --ring --data d --group tcp://a:1"),
        ("--overlay chord --data d --founders=2 --join a:1 --join b:1", "serve --data d --join a:1 --join b:1"),
        ("--data d --into tcp://a:1 --address tcp://b:1", "serve --data d --into tcp://a:1 --advertise tcp://b:1"),
    ],
)
def test_a_node_with_data_is_a_server_and_a_hint_says_so(
    old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert moved(old.split()) == new.split()
    assert capsys.readouterr().err == (
        f"tidings: write `tidings {new}` instead; `tidings node --data` will be removed in the next release.\n"
    )
    assert moved(["--bind", "tcp://127.0.0.1:7500", "--join", "a:1"]) is None

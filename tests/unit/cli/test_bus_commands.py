"""put, get, subscribe, unsubscribe and topics, on an embedded bus in this process."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidings.cli import main
from tidings.cli.connection import default_identity, embedded_folder
from tidings.errors import InvalidRequest


class Outcome(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command on a bus that lives in a folder of the test's own."""
    monkeypatch.setenv("TIDINGS_BUS", f"{tmp_path}/bus")
    for name in ("TIDINGS_AS", "TIDINGS_KEYS"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(argv)
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out, captured.err.decode())

    return run


def test_the_four_operations(run: Run) -> None:
    """Z1, Z3: what one command subscribed the next one finds, each in a session of its own."""
    assert run("subscribe", "news").code == 0
    assert run("put", "news", "hello") == (0, b"news: offset 0\n", "")
    assert run("put", "news", "world") == (0, b"news: offset 1\n", "")
    assert run("get", "news") == (0, b"hello\n", "")
    assert run("get", "news") == (0, b"world\n", "")
    assert run("get", "news") == (3, b"", "")
    assert run("unsubscribe", "news").code == 0
    assert run("get", "news").code == 1


def test_get_tells_not_subscribed_from_no_such_topic(run: Run) -> None:
    """Z6: next message, or empty, or NotSubscribed, or NoSuchTopic."""
    missing = run("get", "news")
    assert (missing.code, missing.out) == (1, b"")
    run("put", "news", "hello")
    unsubscribed = run("get", "news")
    assert (unsubscribed.code, unsubscribed.out) == (1, b"")
    assert missing.err != unsubscribed.err
    for outcome in (missing, unsubscribed):
        assert outcome.err.count("\n") == 1
        assert "news" in outcome.err


def test_unsubscribe_twice_is_an_error(run: Run) -> None:
    """Z5: a missing subscription and a missing topic are clear errors."""
    assert run("unsubscribe", "news").code == 1
    run("subscribe", "news")
    assert run("subscribe", "news").code == 0
    assert run("unsubscribe", "news").code == 0
    assert run("unsubscribe", "news").code == 1


def test_get_without_a_topic_takes_one_of_each(run: Run) -> None:
    """Z6: get_all."""
    run("subscribe", "news", "sport")
    assert run("get") == (3, b"", "")
    run("put", "news", "n0")
    run("put", "news", "n1")
    run("put", "sport", "s0")
    outcome = run("get")
    assert outcome.code == 0
    assert sorted(outcome.out.splitlines()) == [b"news: n0", b"sport: s0"]
    assert run("get").out == b"news: n1\n"
    assert run("get").code == 3


def test_clients_have_cursors_of_their_own(run: Run) -> None:
    run("subscribe", "news", "--as", "alice")
    run("subscribe", "news", "--as", "bob")
    run("put", "news", "hello")
    assert run("get", "news", "--as", "alice").out == b"hello\n"
    assert run("get", "news", "--as", "bob").out == b"hello\n"
    assert run("get", "news", "--as", "alice").code == 3


def test_start_decides_where_a_subscription_begins(run: Run) -> None:
    for text in ("a", "b", "c"):
        run("put", "news", text)
    for start, first in (("earliest", b"a\n"), ("1", b"b\n"), ("last", b"c\n")):
        run("subscribe", "news", "--start", start, "--as", start)
        assert run("get", "news", "--as", start).out == first
    run("subscribe", "news", "--as", "now")
    assert run("get", "news", "--as", "now").code == 3
    assert run("subscribe", "news", "--start", "never").code == 2


def test_json_of_a_message(run: Run) -> None:
    run("subscribe", "news")
    run("put", "news", "grüße", "--key", "k", "--header", "kind=text", "--id", "m-1", "--as", "alice")
    [fields] = run("get", "news", "--json").objects
    assert fields.pop("published_at") > 1.7e9
    assert fields == {
        "topic": "news",
        "offset": 0,
        "text": "grüße",
        "key": "k",
        "headers": {"kind": "text"},
        "id": "m-1",
        "publisher": "alice",
        "attempt": 1,
        "redelivered": False,
    }


def test_bytes_that_are_no_text_pass_through_and_are_base64_in_json(run: Run) -> None:
    value = b"\xff\x00\x1b[31m"
    run("subscribe", "raw")
    for _ in range(2):
        assert run("put", "raw", stdin=value).code == 0
    assert run("get", "raw").out == value + b"\n"
    [fields] = run("get", "raw", "--json").objects
    assert base64.b64decode(fields["base64"]) == value
    assert "text" not in fields


def test_a_put_to_several_topics(run: Run) -> None:
    """P13: all or none."""
    run("subscribe", "a", "b")
    assert run("put", "a", "both", "--also", "b", "--json").objects == [
        {"topic": "a", "offset": 0, "duplicate": False},
        {"topic": "b", "offset": 0, "duplicate": False},
    ]
    assert sorted(run("get").out.splitlines()) == [b"a: both", b"b: both"]
    assert run("put", "a", "both", "--also", "x" * 129).code == 1
    assert run("topics", "a", "--json").objects[0]["next_offset"] == 1


def test_an_id_that_was_taken_is_a_duplicate(run: Run) -> None:
    """Z13."""
    assert run("put", "news", "one", "--id", "x").out == b"news: offset 0\n"
    assert run("put", "news", "two", "--id", "x").out == b"news: offset 0 (stored before)\n"
    assert run("topics", "--json").objects[0]["count"] == 1


def test_lines_are_messages(run: Run) -> None:
    run("subscribe", "news")
    assert run("put", "news", "--lines", stdin=b"one\ntwo\r\n\nfour").out == b"news: 4 messages\n"
    assert [run("get", "news").out for _ in range(4)] == [b"one\n", b"two\n", b"\n", b"four\n"]
    assert run("put", "news", "--lines", "--key", "k", "--json", stdin=b"five\n").objects == [
        {"topic": "news", "first_offset": 4, "count": 1, "duplicates": 0}
    ]
    assert run("get", "news", "--json").objects[0]["key"] == "k"
    assert run("put", "news", "--lines").out == b"news: 0 messages\n"


def test_many_lines(run: Run) -> None:
    count = 20_000
    run("put", "numbers", "--lines", stdin=b"".join(b"%d\n" % n for n in range(count)))
    [info] = run("topics", "--json").objects
    assert (info["name"], info["first_offset"], info["next_offset"], info["count"]) == ("numbers", 0, count, count)


def test_follow_prints_what_comes_and_stops_after_the_time_out(run: Run) -> None:
    run("subscribe", "news")
    for text in ("a", "b", "c"):
        run("put", "news", text)
    assert run("get", "news", "--follow", "--timeout", "0.01") == (0, b"a\nb\nc\n", "")
    assert run("get", "news", "--follow", "--timeout", "0.01").code == 3
    assert run("get", "news").code == 3


def test_follow_needs_a_subscription(run: Run) -> None:
    run("put", "news", "a")
    outcome = run("get", "news", "--follow", "--timeout", "0")
    assert outcome.code == 1
    assert "tidings subscribe" in outcome.err


def test_topics_is_an_aligned_table(run: Run) -> None:
    assert run("topics") == (0, b"", "There are no topics yet.\n")
    run("subscribe", "news")
    run("put", "a much longer name", "hello")
    head, *rows = run("topics").out.decode().splitlines()
    assert head.split() == ["topic", "messages", "first", "next", "subscriptions", "size", "limit"]
    assert len(rows) == 2
    assert {row.index(" 0") for row in rows} != {-1}
    end = head.index("messages") + len("messages")
    assert {row[:end].split()[-1] for row in rows} == {"0", "1"}
    assert run("topics", "missing").code == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("put",),
        ("put", "news", "text", "--lines"),
        ("put", "news", "--lines", "--id", "x"),
        ("put", "news", "--lines", "--also", "sport"),
        ("put", "news", "--lines", "--header", "a=b"),
        ("put", "news", "text", "--header", "novalue"),
        ("put", "news", "text", "--timeout", "soon"),
        ("put", "news", "text", "--retries", "0"),
        ("get", "--follow"),
        ("get", "--timeout", "1"),
        ("get", "news", "--timeout", "-1"),
        ("subscribe",),
        ("unsubscribe",),
        ("stop",),
    ],
)
def test_wrong_usage_exits_2(run: Run, argv: tuple[str, ...]) -> None:
    outcome = run(*argv)
    assert (outcome.code, outcome.out) == (2, b"")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("topic", ["", "x" * 129, "with\0nul", "new\nline"])
def test_a_bad_topic_is_one_sentence(run: Run, topic: str) -> None:
    for argv in (("put", topic, "text"), ("subscribe", topic), ("get", topic)):
        outcome = run(*argv)
        assert (outcome.code, outcome.out) == (1, b"")
        assert outcome.err.count("\n") == 1


def test_a_topic_named_like_a_path_is_only_a_name(run: Run, tmp_path: Path) -> None:
    run("subscribe", "../x")
    run("put", "../x", "hello")
    assert run("get", "../x").out == b"hello\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bus"]


def test_a_broker_that_is_not_there_is_one_sentence(run: Run) -> None:
    """Z8: after its tries a client gives up with Unavailable."""
    outcome = run("put", "news", "x", "--bus", "tcp://127.0.0.1:1", "--timeout", "0.05", "--retries", "1")
    assert (outcome.code, outcome.out) == (1, b"")
    assert outcome.err.count("\n") == 1
    assert "127.0.0.1:1" in outcome.err


def test_keys_need_a_name(run: Run) -> None:
    outcome = run("put", "news", "x", "--bus", "tcp://127.0.0.1:1", "--keys", "keys")
    assert outcome.code == 1
    assert "--as NAME" in outcome.err


@pytest.mark.parametrize(
    ("bus", "folder"),
    [
        ("tcp://127.0.0.1:7400", None),
        ("ipc:///tmp/bus", None),
        ("data/", "data"),
        ("./data", "data"),
        ("/var/data", "/var/data"),
        ("file:data", "data"),
        ("file:///var/data", "/var/data"),
    ],
)
def test_a_bus_is_an_address_or_a_folder(bus: str, folder: str | None) -> None:
    found = embedded_folder(bus)
    assert (None if found is None else str(found)) == folder


@pytest.mark.parametrize("bus", ["127.0.0.1:7400", "localhost:7400", "[::1]:7400", "localhost", ""])
def test_a_bus_that_is_neither_is_refused(bus: str) -> None:
    with pytest.raises(InvalidRequest, match="write tcp://"):
        embedded_folder(bus)


def test_the_default_identity_is_lasting() -> None:
    assert default_identity() == default_identity()
    assert "@" in default_identity()
